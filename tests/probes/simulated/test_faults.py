"""When scripted faults come and go."""

from __future__ import annotations

import math

import pytest

from probes.simulated.faults import Fault, FaultKind, FaultScript, throttle_events, throttle_mhz


def test_a_fault_is_there_from_an_instant_and_a_run_on() -> None:
    """It is active once both have come, until its end."""
    fault = Fault(kind=FaultKind.CAP_IGNORED, from_s=5.0, until_s=8.0, from_run=2)
    assert [fault.is_active(5.0, 1), fault.is_active(4.9, 2), fault.is_active(5.0, 2), fault.is_active(8.0, 3)] == [
        False,
        False,
        True,
        False,
    ]


def test_the_next_turn_is_the_first_later_instant() -> None:
    """Comings and goings are turns alike; after the last there is none."""
    script = FaultScript(
        [Fault(kind=FaultKind.DEVICE_LOST, from_s=9.0), Fault(kind=FaultKind.WRITE_REFUSED, from_s=2.0, until_s=4.0)]
    )
    assert [script.next_turn_s(at_s) for at_s in (0.0, 2.0, 4.0, 9.0)] == [2.0, 4.0, 9.0, math.inf]
    assert FaultScript().next_turn_s(0.0) == math.inf


def test_throttles_show_their_events_and_the_lowest_clock() -> None:
    """Two throttles at once allow the lower of their clocks and show the events of both once."""
    both = (
        Fault(kind=FaultKind.POWER_BRAKE, clock_mhz=600),
        Fault(kind=FaultKind.HW_THERMAL, clock_mhz=900),
        Fault(kind=FaultKind.CAP_IGNORED),
    )
    assert throttle_mhz(both) == 600
    assert throttle_events(both) == ("hw_slowdown", "power_brake", "hw_thermal")
    assert (throttle_mhz(()), throttle_events(())) == (math.inf, ())


def test_a_script_that_makes_no_sense_is_refused() -> None:
    """A throttle needs its clock, nothing else has one, and a stretch ends after it begins."""
    with pytest.raises(ValueError, match="clock_mhz is None for sw_thermal"):
        Fault(kind=FaultKind.SW_THERMAL)
    with pytest.raises(ValueError, match="clock_mhz is 300 for device_lost"):
        Fault(kind=FaultKind.DEVICE_LOST, clock_mhz=300)
    with pytest.raises(ValueError, match="until_s is 1"):
        Fault(kind=FaultKind.DEVICE_LOST, from_s=2.0, until_s=1.0)
