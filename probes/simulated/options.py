"""What can be chosen about a simulated device beside which one it is; the defaults are those of a tuning job.

Knows nothing of how any of it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from probes.simulated.faults import COUNTER_FAULTS, Fault
from probes.simulated.thermal import Thermal


class Sensor(StrEnum):
    """What a meter reads."""

    EXACT = "exact"  # the model's energy itself, which no real device can tell
    COUNTER = "counter"  # an energy counter that moves in steps
    INSTANT = "instant"  # power as a mean of the last 25 of each 100 ms
    AVERAGE = "average"  # power as a mean of the last second


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """How a device is simulated."""

    sensor: Sensor = Sensor.EXACT
    #: Keep what `SimulatedDevice.sensors` needs; a meter of any but the exact sensor needs it as well.
    has_sensors: bool = False
    #: What all sensors show of the true power: gain times it, plus offset. Real ones are within 5 % (arXiv 2312.02741).
    sensor_gain: float = 1.0
    sensor_offset_w: float = 0.0
    thermal: Thermal = field(default_factory=Thermal)
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a sensor that is not there, and a script that nobody would notice."""
        if self.sensor is not Sensor.EXACT and not self.has_sensors:
            raise ValueError(f"sensor is {self.sensor} and has_sensors False; switch the sensors on")
        broken = [fault.kind for fault in self.faults if fault.kind in COUNTER_FAULTS]
        if broken and not self.has_sensors:
            raise ValueError(f"faults contain {broken[0]} and has_sensors is False; there is no counter to break")
