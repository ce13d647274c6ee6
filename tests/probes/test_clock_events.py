"""NVML's clock event bits in words."""

from __future__ import annotations

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import clock_events
from probes.clock_events import events_of


@pytest.mark.parametrize(
    ("constant", "event"),
    [
        ("nvmlClocksEventReasonGpuIdle", clock_events.IDLE),
        ("nvmlClocksEventReasonSwPowerCap", clock_events.SW_POWER_CAP),
        ("nvmlClocksThrottleReasonHwSlowdown", clock_events.HW_SLOWDOWN),
        ("nvmlClocksEventReasonSyncBoost", clock_events.SYNC_BOOST),
        ("nvmlClocksEventReasonSwThermalSlowdown", clock_events.SW_THERMAL),
        ("nvmlClocksThrottleReasonHwThermalSlowdown", clock_events.HW_THERMAL),
        ("nvmlClocksThrottleReasonHwPowerBrakeSlowdown", clock_events.POWER_BRAKE),
        ("nvmlClocksEventReasonDisplayClockSetting", clock_events.DISPLAY_CLOCK),
    ],
)
def test_each_bit_is_the_one_of_the_bindings(constant: str, event: str) -> None:
    """The driver's own constant for each reason gives that reason's word and no other."""
    assert (event,) == events_of(getattr(pynvml, constant))


def test_no_bits_are_no_events() -> None:
    """A GPU that runs freely has none."""
    assert events_of(0) == ()


def test_a_set_clock_says_nothing() -> None:
    """The bit for clocks set by a user, documented as no longer used, is left out."""
    assert (events_of(0x02), events_of(0x06)) == ((), ("sw_power_cap",))


def test_an_unknown_bit_is_kept() -> None:
    """Bits of a later driver are shown by their number, together and last."""
    assert events_of(0x1 | 0x400 | 0x1000) == ("idle", "bit_0x1400")


@given(st.integers(min_value=0, max_value=2**64 - 1))
def test_nothing_is_lost(bits: int) -> None:
    """Whatever the driver says, each known bit gives one word, and the others one more."""
    known = 0x1FD
    names = events_of(bits)
    assert (bits & known).bit_count() + bool(bits & ~known & ~0x02) == len(names) == len(set(names))
