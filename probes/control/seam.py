"""What whoever sets a device's knobs must promise: this process itself, or the guard on its behalf.

Knows nothing of drivers, journals or sockets.
"""

from __future__ import annotations

from typing import Protocol

from probes.settings import DeviceSettings


class DeviceControl(Protocol):
    """Sets the knobs of one server's devices, and gives back what it found."""

    @property
    def description(self) -> str:
        """Who does the setting, in words for people."""

    def apply(self, settings: DeviceSettings) -> None:
        """Set these knobs on every device and verify them by reading back; the others are as they were found.

        What was found is on disk before the first write. All or nothing: where one write fails on one device,
        everything is put back as it was found. Raises Uncontrolled (refused or not taken), InvalidSetting (not a
        value of the device), DeviceInUse (somebody else holds it), ControlLeaseLost, GuardUnavailable, or
        RestoreFailed when putting back failed too.
        """

    def problems(self) -> tuple[str, ...]:
        """Return the reasons why what was applied no longer holds; empty while it does. Reads only."""

    def restore(self) -> None:
        """Put back everything that was found. Idempotent, and not interrupted by signals.

        Every knob of every device is tried even where others fail; then raises RestoreFailed with all errors, and the
        devices stay blocked until a restore succeeds.
        """

    def close(self) -> None:
        """Restore, then let go of whatever was opened. Idempotent."""
