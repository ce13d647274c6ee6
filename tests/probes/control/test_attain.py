"""Whether a cap is kept under load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.control.attain import NUM_READS, cap_attained
from probes.errors import NotSupported
from probes.validity import Reason
from tests.probes.fake_clock import FakeClock

NOT_ATTAINED = (Reason.CLOCK_NOT_ATTAINED,)


def reading(*clocks_mhz: float | None, then: float | None) -> Callable[[], float | None]:
    """Return readings in turn, then the last one for ever."""
    readings: Iterator[float | None] = chain(clocks_mhz, repeat(then))
    return lambda: next(readings)


def test_five_readings_in_a_row_suffice(clock: FakeClock) -> None:
    """A clock that is within its cap at once is believed after five readings, 100 ms apart."""
    start_s = clock.monotonic_s()
    assert cap_attained(reading(then=1005), 1005, 15, clock) == ()
    assert clock.monotonic_s() - start_s == pytest.approx(0.4)


def test_a_clock_that_switches_late_is_waited_for(clock: FakeClock) -> None:
    """Seconds at the former clock do no harm when it is within the cap before the time is up."""
    assert cap_attained(reading(*[1980] * 90, then=1005), 1005, 15, clock) == ()


def test_a_row_begins_anew_after_a_reading_above_the_cap(clock: FakeClock) -> None:
    """Four readings within the cap before one above it do not count."""
    asked: list[float] = []
    readings = reading(*[1005] * 4, 1980, then=1005)

    def read() -> float | None:
        value = readings()
        asked.append(value or 0)
        return value

    assert cap_attained(read, 1005, 15, clock) == ()
    assert asked == [*[1005] * 4, 1980, *[1005] * 5]


def test_a_clock_that_stays_high_is_not_attained(clock: FakeClock) -> None:
    """After ten seconds above the cap the answer is no."""
    start_s = clock.monotonic_s()
    assert cap_attained(reading(then=1980), 1005, 15, clock) == NOT_ATTAINED
    assert clock.monotonic_s() - start_s <= 10.0


@pytest.mark.parametrize(("clock_mhz", "reasons"), [(1012.5, ()), (1013, NOT_ATTAINED), (600, ())])
def test_half_a_step_above_the_cap_is_allowed(clock: FakeClock, clock_mhz: float, reasons: tuple[Reason, ...]) -> None:
    """The next higher clock is not within the cap; any lower one is."""
    assert cap_attained(reading(then=clock_mhz), 1005, 15, clock) == reasons


@pytest.mark.parametrize("clock_mhz", [None, 0])
def test_no_reading_is_no_evidence(clock: FakeClock, clock_mhz: float | None) -> None:
    """A device that does not tell its clock cannot be trusted to keep the cap."""
    assert cap_attained(reading(then=clock_mhz), 1005, 15, clock) == NOT_ATTAINED


def test_a_failing_reading_is_no_evidence(clock: FakeClock) -> None:
    """An error of the driver begins the row anew, as a clock above the cap does."""

    def refuse() -> float:
        raise NotSupported("no clock")

    assert cap_attained(refuse, 1005, 15, clock) == NOT_ATTAINED


@given(is_within=st.lists(st.booleans(), max_size=90))
def test_attained_is_exactly_five_in_a_row(is_within: list[bool]) -> None:
    """Whatever the clock does, the answer is yes exactly if five readings in a row were within the cap."""
    has_row = any(all(is_within[start : start + NUM_READS]) for start in range(len(is_within) - NUM_READS + 1))
    clocks_mhz = [1005 if within else 1980 for within in is_within]
    seen = cap_attained(reading(*clocks_mhz, then=1980), 1005, 15, FakeClock())
    assert seen == (() if has_row else NOT_ATTAINED)
