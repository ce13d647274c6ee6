"""One knob of one device, as the driver or the kernel knows it: read what is there, set, verify, put back.

Knows nothing of journals or of who asks; every write goes through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from probes.settings import Settable

#: What was found before anything was set, as whole numbers by name, so that it can be kept as JSON. Empty where the
#: driver does not tell (it has no getter for locked clocks).
Found = Mapping[str, int]


class Actuator(Protocol):
    """Sets one knob of one device. Every method may raise a ProbeError: NotPermitted, NotSupported, DeviceLost, ..."""

    @property
    def device_uuid(self) -> str:
        """Whose knob it is."""

    @property
    def knob(self) -> str:
        """Which field of DeviceSettings it sets."""

    def settable(self) -> Settable:
        """Return the values it takes. Raises NotSupported with the reason where the device lacks the knob."""

    def look(self) -> Found:
        """Return what is set now, before anything is changed."""

    def value_of(self, found: Found) -> int | None:
        """Return the knob's value that was in force when this was found; None where that is not known."""

    def set(self, value: int) -> None:
        """Set an allowed value."""

    def deviation(self, value: int) -> str | None:
        """Return why `value` is not in force, or None when it is, or when the driver cannot say."""

    def put_back(self, found: Found) -> None:
        """Set what `look` found and verify it; raise when it is not in force then."""

    def reset(self) -> None:
        """Set what the device came with: only for when what was found can no longer be known."""
