"""What the guard allows, and to whom: a TOML file that only root, or the guard's own user, can write.

Everything wrong is refused at the start, with file, key, value and remedy. Knows nothing of what devices take.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from probes.errors import InvalidSetting
from probes.settings import DEVICE_KNOBS

SOCKET = Path("/run/wattfront/guard.sock")
STATE_DIR = Path("/var/lib/wattfront")
#: The group that may use the guard where no file says otherwise.
GROUP = "wattfront"
#: A client speaks every 2 s; five missed heartbeats are a client that hangs.
LAPSE_S = 10.0
SHORTEST_LAPSE_S = 0.5
LONGEST_LAPSE_S = 600.0
#: Stands for every device that has no table of its own.
ANY_DEVICE = "*"
PRIOR_CAP = "prior_sm_clock_cap_mhz"
_KEYS = ("socket", "group", "users", "groups", "lapse_s", "state_dir", "devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRules:
    """What may be set on one device."""

    #: Lowest and highest allowed value, by knob; a knob that is not here may not be set.
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: The SM clock cap that an administrator had set before, which the driver cannot tell.
    prior_sm_clock_cap_mhz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What the guard allows, and to whom; root and the guard's own user are always allowed."""

    socket: Path = SOCKET
    state_dir: Path = STATE_DIR
    #: Whose group the socket is; None leaves the guard's own.
    socket_gid: int | None = None
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    #: Silence of so many seconds ends a lease.
    lapse_s: float = LAPSE_S
    #: By UUID or ANY_DEVICE; where it is empty, whatever a device takes may be set.
    devices: Mapping[str, DeviceRules] = field(default_factory=dict)

    def rules_of(self, device_uuid: str) -> DeviceRules:
        """Return the rules of a device: its own, else those of any device, else nothing may be set on it.

        Where there are no rules at all, `devices` is empty, and this says nothing.
        """
        return self.devices.get(device_uuid) or self.devices.get(ANY_DEVICE) or DeviceRules()

    def allows(self, uid: int, gids: Iterable[int]) -> bool:
        """Return whether a process of this user and these groups may use the guard."""
        return uid in (0, os.geteuid()) or uid in self.uids or not self.gids.isdisjoint(gids)


def load_config(path: Path | None, *, socket: Path | None = None, state_dir: Path | None = None) -> GuardConfig:
    """Read a file, or nothing; `socket` and `state_dir` win over what it says.

    Raises InvalidSetting naming file, key, value and remedy.
    """
    config = GuardConfig(**_group_default()) if path is None else _File(path).config()
    for name, place in (("--socket", socket), ("--state-dir", state_dir)):
        if place is not None and not place.is_absolute():
            raise InvalidSetting(f"{name} is {place}: give the whole path, beginning with /")
    return replace(config, socket=socket or config.socket, state_dir=state_dir or config.state_dir)


def require_private(path: Path) -> None:
    """Raise InvalidSetting where others than root and the guard's own user could write a file or folder."""
    _require_private(path, os.stat(path))


def _require_private(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise InvalidSetting(
            f"{path} belongs to {_user_name(found.st_uid)}: whoever owns it decides what the guard does; "
            f"run `chown {_user_name(os.geteuid())} {path}`"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidSetting(
            f"{path} has mode {stat.S_IMODE(found.st_mode):o}: others than its owner can write it; "
            f"run `chmod go-w {path}`"
        )


class _File:
    """One file as it is read: every complaint names it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def config(self) -> GuardConfig:
        document = self._document()
        self._refuse_unknown(document, _KEYS, "")
        socket, state_dir = self._path_of(document, "socket"), self._path_of(document, "state_dir")
        default = GuardConfig(**_group_default())
        users, groups = self._ids(document, "users", _uid), self._ids(document, "groups", _gid)
        return GuardConfig(
            socket=socket or SOCKET,
            state_dir=state_dir or STATE_DIR,
            socket_gid=self._id("group", document["group"], _gid) if "group" in document else default.socket_gid,
            uids=users or frozenset(),
            # Whoever names users or groups has said who; the default group is for those who did not.
            gids=groups or (default.gids if users is None and groups is None else frozenset()),
            lapse_s=self._lapse_s(document.get("lapse_s", LAPSE_S)),
            devices=self._devices(document.get("devices", {})),
        )

    def _document(self) -> dict[str, Any]:
        try:
            with self._path.open("rb") as file:
                # Of the file that is open, not of whatever the name stands for a moment later.
                _require_private(self._path, os.fstat(file.fileno()))
                return tomllib.load(file)
        except OSError as error:
            raise InvalidSetting(
                f"{self._path} cannot be read ({error.strerror or error}); give --config a file that the guard can read"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidSetting(f"{self._path} is not TOML: {error}; correct it") from error

    def _devices(self, tables: Any) -> Mapping[str, DeviceRules]:
        if not isinstance(tables, dict):
            raise self._wrong("devices", tables, 'write a table per device, as in [devices."GPU-..."] or [devices."*"]')
        return {uuid: self._rules(f'devices."{uuid}"', table) for uuid, table in tables.items()}

    def _rules(self, key: str, table: Any) -> DeviceRules:
        if not isinstance(table, dict):
            raise self._wrong(key, table, f"write a table, as in [{key}]")
        self._refuse_unknown(table, (*DEVICE_KNOBS, PRIOR_CAP), f"{key}.")
        prior = table.get(PRIOR_CAP)
        if prior is not None and not _is_whole(prior):
            raise self._wrong(f"{key}.{PRIOR_CAP}", prior, "write a whole number of MHz above 0")
        ranges = {knob: self._range(f"{key}.{knob}", table[knob]) for knob in DEVICE_KNOBS if knob in table}
        return DeviceRules(ranges=ranges, prior_sm_clock_cap_mhz=prior)

    def _range(self, key: str, value: Any) -> tuple[int, int]:
        is_pair = isinstance(value, list) and len(value) == 2 and all(map(_is_whole, value))
        if not is_pair or value[0] > value[1]:
            raise self._wrong(key, value, "write the lowest and the highest allowed value, as in [300, 700]")
        return value[0], value[1]

    def _lapse_s(self, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not SHORTEST_LAPSE_S <= value <= LONGEST_LAPSE_S:  # also of nan
            raise self._wrong("lapse_s", value, f"write seconds from {SHORTEST_LAPSE_S:g} to {LONGEST_LAPSE_S:g}")
        return float(value)

    def _path_of(self, document: Mapping[str, Any], key: str) -> Path | None:
        value = document.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not Path(value).is_absolute() or "\0" in value:
            raise self._wrong(key, value, "write a whole path, beginning with /")
        return Path(value)

    def _ids(self, document: Mapping[str, Any], key: str, find: Callable[[str], int]) -> frozenset[int] | None:
        value = document.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong(key, value, 'write a list of names or numbers, as in ["tuner"]')
        return frozenset(self._id(key, one, find) for one in value)

    def _id(self, key: str, value: Any, find: Callable[[str], int]) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32 - 1:
            return value
        if not isinstance(value, str):
            raise self._wrong(key, value, "write a name, or its number")
        try:
            return find(value)
        except KeyError:
            raise self._wrong(key, value, "this machine has none of that name; add it, or correct the name") from None

    def _refuse_unknown(self, table: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
        for key in table:
            if key not in known:
                raise self._wrong(f"{prefix}{key}", table[key], f"there is no such key; there are {', '.join(known)}")

    def _wrong(self, key: str, value: Any, remedy: str) -> InvalidSetting:
        return InvalidSetting(f"{self._path}: {key} is {value!r}: {remedy}")


def _group_default() -> dict[str, Any]:
    """Return the group of the socket and of those who may use it, where the machine has the group for it."""
    try:
        gid = _gid(GROUP)
    except KeyError:
        return {}
    return {"socket_gid": gid, "gids": frozenset({gid})}


def _uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def _gid(name: str) -> int:
    return grp.getgrnam(name).gr_gid


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**32
