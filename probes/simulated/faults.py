"""What can be scripted to go wrong with a simulated device, and from when on.

Knows when each fault is there, not what comes of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from probes import clock_events


class FaultKind(StrEnum):
    """What goes wrong."""

    SW_THERMAL = "sw_thermal"  # too hot: the driver lowers the clock
    HW_THERMAL = "hw_thermal"  # far too hot: the hardware does
    HW_SLOWDOWN = "hw_slowdown"  # the hardware lowers the clock for another reason
    POWER_BRAKE = "power_brake"  # the rack's power supply asks for less
    COUNTER_STUCK = "counter_stuck"  # the energy counter stands still
    COUNTER_RESET = "counter_reset"  # the energy counter begins anew, once
    DEVICE_LOST = "device_lost"  # nothing is answered any more
    CAP_IGNORED = "cap_ignored"  # a clock cap is accepted and has no effect
    WRITE_REFUSED = "write_refused"  # nothing can be set, nor put back


#: Each with the clock events that a driver shows for it.
THROTTLES = {
    FaultKind.SW_THERMAL: (clock_events.SW_THERMAL,),
    FaultKind.HW_THERMAL: (clock_events.HW_SLOWDOWN, clock_events.HW_THERMAL),
    FaultKind.HW_SLOWDOWN: (clock_events.HW_SLOWDOWN,),
    FaultKind.POWER_BRAKE: (clock_events.HW_SLOWDOWN, clock_events.POWER_BRAKE),
}
COUNTER_FAULTS = frozenset({FaultKind.COUNTER_STUCK, FaultKind.COUNTER_RESET})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, from an instant and a run on: whichever comes last."""

    kind: FaultKind
    #: Of the device's clock.
    from_s: float = 0.0
    until_s: float = math.inf
    #: Counted from 1; 0 is before any run, too.
    from_run: int = 0
    #: Clock that a throttle allows at most; None where it is none.
    clock_mhz: int | None = None

    def __post_init__(self) -> None:
        """Refuse a throttle without its clock, a clock without a throttle, and a stretch that is none."""
        if (self.clock_mhz is not None) is not (self.kind in THROTTLES):
            raise ValueError(f"clock_mhz is {self.clock_mhz} for {self.kind}; throttles have one, others none")
        if not self.from_s < self.until_s:
            raise ValueError(f"until_s is {self.until_s}; give more than from_s, {self.from_s}")

    def is_active(self, time_s: float, run: int) -> bool:
        """Return whether it is there at an instant in (or after) the run of this number."""
        return self.from_s <= time_s < self.until_s and run >= self.from_run


class FaultScript:
    """All that is to go wrong with one device."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._faults = tuple(faults)

    def active(self, time_s: float, run: int) -> tuple[Fault, ...]:
        """Return what is wrong at an instant in (or after) the run of this number."""
        return tuple(fault for fault in self._faults if fault.is_active(time_s, run))

    def next_turn_s(self, time_s: float) -> float:
        """Return the first later instant at which a fault comes or goes by itself; infinite where none will."""
        turns_s = (turn_s for fault in self._faults for turn_s in (fault.from_s, fault.until_s))
        return min((turn_s for turn_s in turns_s if turn_s > time_s), default=math.inf)


def throttle_mhz(active: Sequence[Fault]) -> float:
    """Return the clock that the throttles among these allow at most; infinite without one."""
    return min((fault.clock_mhz for fault in active if fault.clock_mhz is not None), default=math.inf)


def throttle_events(active: Sequence[Fault]) -> tuple[str, ...]:
    """Return the clock events that these show."""
    return tuple(dict.fromkeys(event for fault in active for event in THROTTLES.get(fault.kind, ())))
