"""What can be set on a device: the knobs of clocks and power, the values they take, and one choice of them.

Knows nothing of how a device is told, nor of who asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from probes.errors import InvalidSetting

SM_CLOCK_CAP = "sm_clock_cap_mhz"
POWER_CAP = "power_cap_w"
CPU_CLOCK_CAP = "cpu_clock_cap_mhz"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """One choice of a device's knobs; None leaves a knob as it was found."""

    #: Highest clock of a GPU's streaming multiprocessors.
    sm_clock_cap_mhz: int | None = None
    #: Power limit of a GPU's board.
    power_cap_w: int | None = None
    #: Highest clock of the CPU's cores.
    cpu_clock_cap_mhz: int | None = None

    def as_dict(self) -> dict[str, int]:
        """Return the knobs that are set, by name."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def is_empty(self) -> bool:
        """Whether everything is left as it was found."""
        return not self.as_dict()


DEVICE_KNOBS = tuple(field.name for field in fields(DeviceSettings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settable:
    """A knob that a device has, and the values it takes."""

    name: str
    #: Ascending; for a range its two ends.
    values: tuple[int, ...]
    #: Whether every whole number between the two ends is allowed as well.
    is_range: bool = False

    @property
    def lowest(self) -> int:
        """The lowest value."""
        return self.values[0]

    @property
    def highest(self) -> int:
        """The highest value: that of a device which nobody limits."""
        return self.values[-1]

    def snapped(self, asked: float) -> int:
        """Return the highest allowed value that is not above `asked`; never one above it.

        Raises InvalidSetting where there is none: below the lowest value nothing can be promised.
        """
        if not math.isfinite(asked) or asked < self.lowest:
            raise InvalidSetting(f"{self.name} is {asked:g}: the lowest value of this device is {self.lowest}")
        if self.is_range:
            return min(math.floor(asked), self.highest)
        return max(value for value in self.values if value <= asked)

    def up_to(self, ceiling: float) -> Settable:
        """Return the knob without what is above `ceiling`, a limit that somebody else set; the lowest value stays."""
        if self.is_range:
            highest = math.floor(max(self.lowest, min(self.highest, ceiling)))
            return replace(self, values=(self.lowest, highest))
        return replace(self, values=tuple(value for value in self.values if value <= ceiling) or self.values[:1])

    def step_below(self, value: int) -> int:
        """Return the distance from an allowed value to the next lower one; 1 where there is none."""
        lower = [other for other in self.values if other < value]
        return 1 if self.is_range or not lower else value - lower[-1]
