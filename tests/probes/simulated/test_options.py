"""What can be chosen about a simulated device."""

from __future__ import annotations

import pytest

from probes.simulated.faults import Fault, FaultKind
from probes.simulated.options import Sensor, SimulationOptions


def test_a_sensor_must_be_switched_on() -> None:
    """A meter of a sensor that is not there is refused; the exact one needs none."""
    with pytest.raises(ValueError, match="sensor is counter and has_sensors False"):
        SimulationOptions(sensor=Sensor.COUNTER)
    assert SimulationOptions().sensor is Sensor.EXACT


def test_a_counter_that_is_not_there_cannot_break() -> None:
    """A script for the counter needs sensors, else nobody would notice it."""
    with pytest.raises(ValueError, match="counter_stuck"):
        SimulationOptions(faults=(Fault(kind=FaultKind.COUNTER_STUCK),))
