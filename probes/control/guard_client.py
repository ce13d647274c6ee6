"""Control through the guard: for a process that may not set anything itself.

The guard holds the settings for as long as it hears from us. Knows nothing of journals or drivers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import structlog

from probes.control.guard_answers import GuardStatus, problems_of, status_of
from probes.control.guard_link import GuardLink
from probes.control.guard_wire import Op, Request, WireError
from probes.control.shield import shielded
from probes.errors import ControlLeaseLost, GuardUnavailable, ProbeError, RestoreFailed
from probes.settings import DeviceSettings

#: A guard that was killed is there again after so long, where systemd restarts it, and has put everything back by then.
LONGEST_RESTART_S = 15.0
_LOOK_EVERY_S = 0.1

log = structlog.get_logger()


class GuardedControl:
    """Sets the knobs of some devices for one server, through the guard."""

    def __init__(
        self, socket: Path, uuids: Sequence[str], label: str, *, longest_restart_s: float = LONGEST_RESTART_S
    ) -> None:
        """Connect. Raises GuardUnavailable where nobody answers or we are refused."""
        self._socket = socket
        self._uuids = tuple(uuids)
        self._label = label
        self._longest_restart_s = longest_restart_s
        #: Whether there may be something to put back.
        self._is_owed = False
        #: Whether putting back failed: what was set is the guard's then, no longer our lease's.
        self._has_failed = False
        #: Whether the lease was found lost at the last restore.
        self._was_lost = False
        #: By which a forked child knows that nothing here is its own.
        self._pid = os.getpid()
        self._link = self._connected()

    @property
    def description(self) -> str:
        """Which guard."""
        return f"the guard on {self._socket} (process {self._link.welcome.guard_pid})"

    def apply(self, settings: DeviceSettings) -> None:
        """Set and verify; see `probes.control.seam`. After a lost lease this begins a new one."""
        with shielded():
            if self._pid != os.getpid():
                self._pid, self._is_owed, self._has_failed = os.getpid(), False, False
            if self._link.is_lost:
                self._make_sure_of_restore()
                self._link = self._connected()
            self._is_owed, self._was_lost = True, False
            try:
                self._link.ask(Request(op=Op.APPLY, uuids=self._uuids, settings=settings))
            except (ControlLeaseLost, GuardUnavailable):
                raise
            except RestoreFailed:
                self._has_failed = True
                raise
            except ProbeError:
                self._is_owed = self._has_failed
                raise
            self._is_owed, self._has_failed = not settings.is_empty, False

    def problems(self) -> tuple[str, ...]:
        """Return why what was applied no longer holds; `control_lease_lost` when the guard is gone or has ended it.

        A lease that was found lost only at the restore is told until the next apply.
        """
        if self._is_unset:
            return (ControlLeaseLost.kind,) if self._was_lost and self._pid == os.getpid() else ()
        try:
            return problems_of(self._link.ask(Request(op=Op.PROBLEMS)))
        except (ProbeError, WireError) as error:
            log.warning("control_lost", devices=self._uuids, reason=str(error))
            return (error.kind if isinstance(error, ProbeError) else GuardUnavailable.kind,)

    def restore(self) -> None:
        """Put back what was found, uninterrupted by signals; in a forked child, do nothing.

        Where the lease was lost, wait until a guard says that everything is put back. Raises RestoreFailed where it
        says otherwise, or where none answers in time.
        """
        with shielded():
            if self._is_unset:
                return
            if self._has_failed:
                self._make_sure_of_restore()
            else:
                self._ask_for_restore()
            self._is_owed, self._has_failed = False, False

    def close(self) -> None:
        """Restore, then let go of the guard."""
        try:
            self.restore()
        finally:
            self._link.close()

    @property
    def _is_unset(self) -> bool:
        return not self._is_owed or self._pid != os.getpid()

    def _ask_for_restore(self) -> None:
        try:
            self._link.ask(Request(op=Op.RESTORE))
        except (ControlLeaseLost, GuardUnavailable):
            self._was_lost = True
            self._make_sure_of_restore()
        except RestoreFailed:
            self._has_failed = True
            raise

    def _connected(self) -> GuardLink:
        link = GuardLink(self._socket, label=self._label)
        link.keep_alive()
        return link

    def _make_sure_of_restore(self) -> None:
        """Return once a guard holds nothing of ours any more; a guard that starts puts everything back first."""
        if self._is_unset:
            return
        ours = self._link.welcome.lease
        deadline_s = time.monotonic() + self._longest_restart_s
        why = "its lease has not ended"
        while time.monotonic() < deadline_s:
            try:
                status = _status_after_recovery(self._socket)
            except ProbeError as error:
                why = str(error)
            else:
                if failed := [f"{uuid}: {status.failed[uuid]}" for uuid in self._uuids if uuid in status.failed]:
                    raise RestoreFailed("; ".join(failed))
                if not any(held.lease == ours for held in status.held):
                    return
            Event().wait(_LOOK_EVERY_S)
        raise RestoreFailed(
            f"what was set on {', '.join(self._uuids)} may still be set ({why}); the next start of `wattfront guard`, "
            "or `wattfront restore` as root, puts it back"
        )


def _status_after_recovery(socket: Path) -> GuardStatus:
    """Let the guard try again what failed, then ask who holds what."""
    link = GuardLink(socket)
    try:
        link.ask(Request(op=Op.RECOVER))
        return status_of(link.ask(Request(op=Op.STATUS)))
    except WireError as error:
        raise GuardUnavailable(f"the guard on {socket} answers in another way: {error}") from error
    finally:
        link.close()
