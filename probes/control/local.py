"""Control from within this process, which must have the permission itself.

What was found comes back by `restore`, by `close`, and at the interpreter's exit. A process that is killed cannot put
anything back: its entry stays in the journal, and whoever starts next recovers it. For that a guard is the better
way. Knows nothing of journals or drivers.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

import structlog

from probes.control.journal import Holder
from probes.control.keeper import Keeper
from probes.control.shield import shielded
from probes.errors import ProbeError, Uncontrolled
from probes.identity import process_identity
from probes.settings import DeviceSettings

log = structlog.get_logger()


class LocalControl:
    """Sets the knobs of some devices for one server; only the process that made it ever sets or restores."""

    def __init__(self, keeper: Keeper, uuids: Sequence[str], label: str) -> None:
        self._keeper = keeper
        self._uuids = tuple(uuids)
        self._holder = Holder(process=process_identity(), label=label)
        self._settings = DeviceSettings()
        atexit.register(self._restore_at_exit)

    @property
    def description(self) -> str:
        """This process."""
        return f"this process ({self._holder.process.pid})"

    def apply(self, settings: DeviceSettings) -> None:
        """Set and verify; see `probes.control.seam`."""
        if not self._is_ours:
            raise Uncontrolled(f"device settings belong to process {self._holder.process.pid}, this is {os.getpid()}")
        self._settings = DeviceSettings()  # what is in force should it fail
        self._keeper.apply(self._uuids, settings, self._holder)
        self._settings = settings

    def problems(self) -> tuple[str, ...]:
        """Return the reasons why what was applied no longer holds. Reads only."""
        return self._keeper.problems(self._uuids, self._settings)

    def restore(self) -> None:
        """Put back what was found, uninterrupted by signals; in a forked child, do nothing."""
        if not self._is_ours:
            return
        with shielded():
            self._settings = DeviceSettings()
            self._keeper.restore(self._uuids, holder=self._holder)

    def close(self) -> None:
        """Restore; where that fails, it is tried once more at exit."""
        self.restore()
        atexit.unregister(self._restore_at_exit)

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self._holder.process.pid

    def _restore_at_exit(self) -> None:
        try:
            self.restore()
        except ProbeError as error:
            log.error("restore_failed_at_exit", devices=self._uuids, reason=str(error))
