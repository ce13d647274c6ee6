"""The guard where there is one, else this process: for whoever needs devices set, put back, or known to be blocked.

Knows which way is taken and what a start-up owes the machine; nothing of how either works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from probes.control.guard_answers import GuardStatus, recoveries_of, status_of
from probes.control.guard_client import GuardedControl
from probes.control.guard_link import GuardLink
from probes.control.guard_wire import Op, Request, WireError
from probes.control.journal import Damaged, Entry, Journal, State
from probes.control.keeper import Keeper, Recovery
from probes.control.local import LocalControl
from probes.control.seam import DeviceControl
from probes.cpu.paths import HostPaths
from probes.detect import Host
from probes.errors import ProbeError
from probes.identity import is_other_boot
from probes.settings import Settable

log = structlog.get_logger()


def open_control(
    device_uuids: Sequence[str],
    *,
    host: Host,
    state_dir: Path,
    guard_socket: Path,
    label: str,
    prior_caps_mhz: Mapping[str, int] | None = None,
) -> DeviceControl:
    """Return who sets these devices: the guard if its socket is there, else this process.

    `label` tells people what for. `prior_caps_mhz` are SM clock caps in MHz that were set before us, by GPU; a guard
    has its own. Raises GuardUnavailable, naming the remedy, where the socket is there and the guard does not serve us.
    """
    if _is_there(guard_socket):
        return GuardedControl(guard_socket, device_uuids, label)
    keeper = Keeper(host, Journal(state_dir), prior_caps_mhz=prior_caps_mhz)
    return LocalControl(keeper, device_uuids, label)


def recover(
    *,
    host: Host,
    state_dir: Path,
    guard_socket: Path,
    prior_caps_mhz: Mapping[str, int] | None = None,
    device_uuids: Sequence[str] | None = None,
) -> tuple[Recovery, ...]:
    """Put back what dead processes left set, and try again what failed; return what was done.

    The guard does it where it answers, and then for every device. Otherwise, as when it was killed too, this process
    does as far as it may, for `device_uuids` where they are given. Raises Uncontrolled where the journal cannot be
    read.
    """
    done, is_complete = _recovered_by_guard(state_dir, guard_socket)
    journal = Journal(state_dir) if device_uuids is None else _PartOfJournal(state_dir, device_uuids)
    if is_complete or not journal.entries():
        return done
    return (*done, *Keeper(host, journal, prior_caps_mhz=prior_caps_mhz).recover())


def offered(device_uuid: str, guard_socket: Path) -> tuple[Settable, ...] | None:
    """Return the knobs of a device with the values that the guard allows; None where there is no guard.

    Raises GuardUnavailable where the socket is there and the guard does not serve us.
    """
    if not _is_there(guard_socket):
        return None
    link = GuardLink(guard_socket, label="offers")
    try:
        offers = {offer.device_uuid: offer.knobs for offer in link.welcome.offers}
    finally:
        link.close()
    return tuple(offers.get(device_uuid, ()))


def guard_status(guard_socket: Path) -> GuardStatus | None:
    """Return who holds what through the guard, and what it could not put back; None where no guard answers."""
    if not _is_there(guard_socket):
        return None
    try:
        link = GuardLink(guard_socket, label="status")
        try:
            return status_of(link.ask(Request(op=Op.STATUS)))
        finally:
            link.close()
    except (ProbeError, WireError) as error:
        log.warning("guard_unavailable", reason=str(error))
        return None


def blocked(state_dir: Path, *, paths: HostPaths | None = None) -> Mapping[str, str]:
    """Return the devices that may not be used until they are put back, with the reasons; nothing is changed.

    Those are devices whose restore failed, whose journal entry cannot be read, and those that a dead process left set;
    one of another PID namespace may be alive. What was set before the machine restarted is undone. Raises Uncontrolled
    where the journal cannot be read.
    """
    proc = (paths or HostPaths()).proc
    reasons = {entry.device_uuid: _why_blocked(entry, proc) for entry in Journal(state_dir).entries()}
    return {uuid: reason for uuid, reason in reasons.items() if reason is not None}


class _PartOfJournal(Journal):
    """The entries of some devices."""

    def __init__(self, folder: Path, device_uuids: Sequence[str]) -> None:
        super().__init__(folder)
        self._device_uuids = frozenset(device_uuids)

    def entries(self) -> tuple[Entry | Damaged, ...]:
        return tuple(entry for entry in super().entries() if entry.device_uuid in self._device_uuids)


def _why_blocked(entry: Entry | Damaged, proc: Path) -> str | None:
    if isinstance(entry, Damaged):
        return f"its journal entry {entry.path} cannot be read: {entry.reason}"
    if is_other_boot(entry.boot_id, proc):
        return None
    if entry.state is State.RESTORE_FAILED:
        return entry.detail
    if entry.holder.process.may_be_alive(proc):
        return None
    return f"{entry.holder} ended and left it set"


def _recovered_by_guard(state_dir: Path, guard_socket: Path) -> tuple[tuple[Recovery, ...], bool]:
    """Return what the guard did, and whether that was for our journal."""
    if not _is_there(guard_socket):
        return (), False
    try:
        link = GuardLink(guard_socket, label="recovery")
        try:
            done = recoveries_of(link.ask(Request(op=Op.RECOVER)))
        finally:
            link.close()
    except (ProbeError, WireError) as error:
        log.warning("guard_unavailable", reason=str(error))
        return (), False
    return done, Path(link.welcome.state_dir) == state_dir


def _is_there(guard_socket: Path) -> bool:
    try:
        return guard_socket.exists()
    except PermissionError:
        return False  # in a folder that is closed to this user: no guard for it
