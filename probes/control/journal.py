"""What was found before anything was set, on disk: one JSON file per device, there until everything is put back.

A file is written whole or not at all: a temporary file is flushed, takes the final name in one step, and the folder is
flushed after it. Needs a local Linux file system. Knows nothing of drivers, nor of when something must be put back.
Holders are told apart by process id, start time and PID namespace. Root reads and writes only where nobody else could
have planted an entry.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from probes.control.actuator import Found
from probes.control.trust import distrust, read_regular
from probes.errors import DeviceInUse, InvalidSetting, Uncontrolled
from probes.identity import ProcessIdentity
from probes.settings import DEVICE_KNOBS

FORMAT = 1
SUFFIX = ".json"


class State(StrEnum):
    """How far an entry has come."""

    APPLIED = "applied"  # knobs were set, or are about to be
    RESTORE_FAILED = "restore_failed"  # putting back was tried, and failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """On whose behalf something is set."""

    process: ProcessIdentity
    #: In words for people: the job, or the user.
    label: str

    def __str__(self) -> str:
        return f"process {self.process.pid} ({self.label})"


#: Of entries whose file could not be read.
UNKNOWN_HOLDER = Holder(process=ProcessIdentity(pid=0, started="", boot_id=""), label="unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One device of which something was changed, or is about to be."""

    device_uuid: str
    #: Of the boot in which it was changed; no setting outlives a boot.
    boot_id: str
    #: The energy counter at that time: a lower one later shows that the driver was loaded anew.
    energy_mj: int | None
    holder: Holder
    #: By knob; None where that can no longer be known.
    found: Mapping[str, Found | None]
    #: The values last set, or about to be, by knob.
    written: Mapping[str, int]
    state: State = State.APPLIED
    #: What went wrong; empty when nothing did.
    detail: str = ""
    since: datetime

    def __post_init__(self) -> None:
        if self.since.tzinfo is None:
            raise ValueError(f"since is {self.since}, without a time zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """An entry that cannot be read; whose it is follows from the file's name."""

    device_uuid: str
    path: Path
    reason: str


class Journal:
    """The entries of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self._folder

    def entry(self, device_uuid: str) -> Entry | Damaged | None:
        """Return a device's entry; None when there is none. Raises Uncontrolled where the folder cannot be read."""
        path = self._path(device_uuid)
        self._require_trusted()
        try:
            return _decoded(device_uuid, read_regular(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise self._refused("read", error) from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            return Damaged(device_uuid=device_uuid, path=path, reason=f"{type(error).__name__}: {error}")

    def entries(self) -> tuple[Entry | Damaged, ...]:
        """Return all entries, in order of their devices; none where the folder is not there.

        Raises Uncontrolled where the folder cannot be read.
        """
        self._require_trusted()
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._refused("read", error) from error
        uuids = (name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and not name.startswith("."))
        found = (self.entry(uuid) for uuid in uuids if _is_uuid(uuid))
        return tuple(entry for entry in found if entry is not None)  # None: removed since the folder was listed

    def claim(self, entry: Entry) -> None:
        """Write a device's first entry; raise DeviceInUse when another process was quicker.

        Raises Uncontrolled when it cannot be written.
        """
        self._write(entry, _link)

    def write(self, entry: Entry) -> None:
        """Replace a device's entry. Raises Uncontrolled when it cannot be written; then the former one stands."""
        self._write(entry, _replace)

    def remove(self, device_uuid: str) -> None:
        """Remove a device's entry, if there is one. Raises Uncontrolled when it cannot be removed."""
        self._require_trusted()
        try:
            self._path(device_uuid).unlink(missing_ok=True)
            self._flush_folder()
        except FileNotFoundError:
            return  # no folder, no entry
        except OSError as error:
            raise self._refused("written", error) from error

    def _write(self, entry: Entry, publish: Callable[[str, Path], None]) -> None:
        path = self._path(entry.device_uuid)
        temporary: str | None = None
        self._require_trusted()  # nothing is to be made for root in a place that is not trusted either
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._require_trusted()
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".tmp")
            with os.fdopen(descriptor, "w") as file:
                file.write(_encoded(entry))
                file.flush()
                os.fchmod(descriptor, 0o644)  # mkstemp's is private; `wattfront doctor` may run as anyone
                os.fsync(descriptor)
            publish(temporary, path)
            self._flush_folder()
        except OSError as error:
            raise self._refused("written", error) from error
        finally:
            if temporary is not None:
                with suppress(OSError):  # after a rename it is no longer there
                    os.unlink(temporary)

    def _flush_folder(self) -> None:
        """Make names durable: flushing a file says nothing of the folder that names it, see fsync(2)."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, device_uuid: str) -> Path:
        if not _is_uuid(device_uuid):
            raise InvalidSetting(f"{device_uuid!r} is no device's UUID: letters, digits and hyphens make one")
        return self._folder / f"{device_uuid}{SUFFIX}"

    def _require_trusted(self) -> None:
        try:
            reason = distrust(self._folder)
        except OSError as error:
            raise self._refused("read", error) from error
        if reason is not None:
            raise Uncontrolled(
                f"root does not trust the journal of device settings in {self._folder}: {reason}, or give it another "
                "state folder"
            )

    def _refused(self, done: str, error: OSError) -> Uncontrolled:
        return Uncontrolled(
            f"the journal of device settings in {self._folder} cannot be {done} ({error.strerror or error}); "
            "give this process a folder of its own on a local disk for it, or tune without clock and power knobs"
        )


def _link(temporary: str, path: Path) -> None:
    # A link fails where the name is taken, which a rename does not.
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise DeviceInUse(f"{path.stem}: another process has just begun to set it; wait until it is done") from error


def _replace(temporary: str, path: Path) -> None:
    os.replace(temporary, path)


def _is_uuid(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", text) is not None


def _encoded(entry: Entry) -> str:
    document = {
        "format": FORMAT,
        "device_uuid": entry.device_uuid,
        "boot_id": entry.boot_id,
        "energy_mj": entry.energy_mj,
        "holder": asdict(entry.holder),
        "found": {knob: None if found is None else dict(found) for knob, found in entry.found.items()},
        "written": dict(entry.written),
        "state": str(entry.state),
        "detail": entry.detail,
        "since": entry.since.isoformat(),
    }
    return json.dumps(document, indent=1) + "\n"


def _decoded(device_uuid: str, text: str) -> Entry:
    """Return the entry; raise ValueError, LookupError or TypeError where anything is not as it was written."""
    document = _object(json.loads(text))
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r}; this version reads {FORMAT}")
    if document["device_uuid"] != device_uuid:
        raise ValueError(f"it is of device {document['device_uuid']!r}")
    if unknown := set(_object(document["found"])) - set(DEVICE_KNOBS):
        raise ValueError(f"it tells of knobs that this version does not know: {', '.join(sorted(unknown))}")
    holder = _object(document["holder"])
    process = _object(holder["process"])
    energy_mj = document["energy_mj"]
    return Entry(
        device_uuid=device_uuid,
        boot_id=_text(document["boot_id"]),
        energy_mj=None if energy_mj is None else _whole(energy_mj),
        holder=Holder(
            process=ProcessIdentity(
                pid=_whole(process["pid"]),
                started=_text(process["started"]),
                boot_id=_text(process["boot_id"]),
                pid_namespace=_whole(process.get("pid_namespace", 0)),  # older entries are without
            ),
            label=_text(holder["label"]),
        ),
        found={knob: None if found is None else _wholes(found) for knob, found in _object(document["found"]).items()},
        written=_wholes(document["written"]),
        state=State(document["state"]),
        detail=_text(document["detail"]),
        since=datetime.fromisoformat(document["since"]),
    )


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no object")
    return value


def _wholes(value: Any) -> dict[str, int]:
    return {name: _whole(number) for name, number in _object(value).items()}


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
