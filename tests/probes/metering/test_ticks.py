"""The steps of a counter, measured and waited for."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.errors import CounterReset, DeviceLost, NotSupported, ProbeError
from probes.metering.sampler import Failure
from probes.metering.ticks import LONGEST_EDGE_S, MEASURING_S, POLL_S, Edge, EdgedCounter, edge, measure_tick
from probes.validity import Reason
from tests.probes.fake_clock import FakeClock


def stepping(clock: FakeClock, tick_s: float, *, counts: int = 1000) -> Callable[[], int]:
    """A counter that rises by `counts` at every multiple of `tick_s`."""
    return lambda: math.floor(clock.monotonic_s() / tick_s + 1e-6) * counts


@settings(deadline=None)
@given(tick_s=st.floats(min_value=0.01, max_value=0.1))
def test_the_period_is_measured(tick_s: float) -> None:
    """Between 10 and 100 ms the median interval is the counter's own to within one poll."""
    clock = FakeClock()
    tick = measure_tick(stepping(clock, tick_s), clock)
    assert tick.period_s is not None
    assert abs(tick.period_s - tick_s) <= POLL_S + 1e-9


def test_measuring_stops_when_enough_is_seen(clock: FakeClock) -> None:
    """Twenty intervals of 10 ms are enough, so a fast counter does not cost two seconds."""
    tick = measure_tick(stepping(clock, 0.01), clock)
    assert pytest.approx(0.21, abs=0.02) == clock.monotonic_s() - 1000.0
    assert tick.rise == 21_000


def test_a_counter_that_stands_still_has_no_period(clock: FakeClock) -> None:
    """After two seconds without a step the period is None and the rise 0."""
    tick = measure_tick(lambda: 77, clock)
    assert (tick.period_s, tick.rise) == (None, 0)
    assert pytest.approx(MEASURING_S, abs=2 * POLL_S) == tick.watched_s


def test_a_counter_that_moves_once_is_slow(clock: FakeClock) -> None:
    """One step in two seconds shows no interval, so the whole time stands for it."""
    tick = measure_tick(lambda: int(clock.monotonic_s() > 1001.0), clock)
    assert tick.period_s == MEASURING_S


def test_a_counter_that_goes_back_is_refused(clock: FakeClock) -> None:
    """A fall while the steps are measured raises CounterReset."""
    with pytest.raises(CounterReset, match="went back by 5"):
        measure_tick(lambda: 10 if clock.monotonic_s() < 1000.5 else 5, clock)


def test_a_driver_that_is_not_ready_is_asked_again(clock: FakeClock) -> None:
    """An error that may pass is waited out."""

    def read() -> int:
        if clock.monotonic_s() < 1000.2:
            raise ProbeError("not ready")
        return stepping(clock, 0.1)()

    assert pytest.approx(0.1, abs=POLL_S) == measure_tick(read, clock).period_s


@pytest.mark.parametrize("error", [NotSupported("none here"), DeviceLost("gone")])
def test_a_final_answer_is_taken_at_once(clock: FakeClock, error: ProbeError) -> None:
    """Where asking again is pointless no time is spent on it."""

    def read() -> int:
        raise error

    with pytest.raises(type(error)):
        measure_tick(read, clock)
    assert clock.monotonic_s() == 1000.0


def test_a_driver_that_is_never_ready_says_so(clock: FakeClock) -> None:
    """After two seconds of refusals the last of them is raised."""

    def read() -> int:
        raise ProbeError("not ready")

    with pytest.raises(ProbeError, match="not ready"):
        measure_tick(read, clock)
    assert pytest.approx(1000.0 + MEASURING_S, abs=POLL_S) == clock.monotonic_s()


@settings(deadline=None)
@given(
    tick_s=st.floats(min_value=0.01, max_value=0.1),
    into_tick=st.floats(min_value=0.0, max_value=1.0, exclude_max=True),
)
def test_an_edge_lies_at_a_step(tick_s: float, into_tick: float) -> None:
    """Wherever in a step's time it is asked for, the edge is within one poll after a step, with the new value."""
    clock = FakeClock(1000.0 + into_tick * tick_s)
    read = stepping(clock, tick_s)
    found = edge(read, clock, tick_s)
    assert isinstance(found, Edge)
    assert found.is_aligned
    assert pytest.approx(POLL_S) == found.slack_s
    since_step_s = found.sample.time_s - found.sample.value / 1000 * tick_s
    assert -1e-6 <= since_step_s <= POLL_S + 1e-6


@pytest.mark.parametrize(("tick_s", "waited_s"), [(0.02, 0.05), (0.1, 0.25), (2.0, LONGEST_EDGE_S)])
def test_an_edge_is_not_waited_for_for_ever(clock: FakeClock, tick_s: float, waited_s: float) -> None:
    """After two and a half ticks, or half a second, the last reading stands, not aligned."""
    found = edge(lambda: 5, clock, tick_s)
    assert isinstance(found, Edge)
    assert (found.is_aligned, found.sample.value, found.slack_s) == (False, 5, tick_s)
    assert pytest.approx(1000.0 + waited_s, abs=POLL_S) == found.sample.time_s


def test_one_bad_reading_does_not_cost_an_edge(clock: FakeClock) -> None:
    """A refusal amid polls makes the step less certain, and no more."""

    def read() -> int:
        if 1000.097 < clock.monotonic_s() < 1000.101:
            raise ProbeError("busy")
        return stepping(clock, 0.1)()

    found = edge(read, clock, 0.1)
    assert isinstance(found, Edge)
    assert found.is_aligned
    assert found.slack_s > POLL_S


def test_an_edge_that_stays_unreadable_is_a_failure(clock: FakeClock) -> None:
    """Three refusals in a row are enough, with their kind."""

    def read() -> int:
        raise DeviceLost("off the bus")

    found = edge(read, clock, 0.1)
    assert isinstance(found, Failure)
    assert found.kind == "device_lost"


def test_a_counter_that_goes_back_at_an_edge_is_a_failure(clock: FakeClock) -> None:
    """A reset while an edge is polled is no step."""
    found = edge(lambda: 10 if clock.monotonic_s() < 1000.05 else 0, clock, 0.1)
    assert isinstance(found, Failure)
    assert found.kind == "counter_reset"


def test_a_counter_between_two_edges(clock: FakeClock) -> None:
    """Opening, glances and closing make one run, with the slack of both edges."""
    counter = EdgedCounter(stepping(clock, 0.1), tick_s=0.1, clock=clock)
    start_s = counter.open()
    clock.advance(1.0)
    counter.glance()
    clock.advance(1.0)
    run, slack_s = counter.close(has_died=False)
    assert [sample.value for sample in run.samples] == [10_001_000, 10_011_000, 10_022_000]
    assert (run.opening.time_s, run.failures) == (start_s, ())
    assert pytest.approx(2 * POLL_S) == slack_s


def test_one_edge_without_a_step_leaves_the_run_unaligned(clock: FakeClock) -> None:
    """A counter that stops stepping before the end has no slack to tell."""
    counter = EdgedCounter(lambda: min(stepping(clock, 0.1)(), 10_011_000), tick_s=0.1, clock=clock)
    counter.open()
    clock.advance(2.0)
    _run, slack_s = counter.close(has_died=False)
    assert slack_s is None


def test_a_glance_that_fails_is_kept_as_a_failure(clock: FakeClock) -> None:
    """A refusal in between stands in the run with its kind."""
    refusals: list[ProbeError] = []

    def read() -> int:
        if refusals:
            raise refusals.pop()
        return stepping(clock, 0.1)()

    counter = EdgedCounter(read, tick_s=0.1, clock=clock)
    counter.open()
    refusals.append(CounterReset("went back"))
    counter.glance()
    run, _slack_s = counter.close(has_died=False)
    assert [failure.kind for failure in run.failures] == ["counter_reset"]


def test_a_hanging_driver_is_not_asked_for_the_last_edge(clock: FakeClock) -> None:
    """Where the glancing thread died, the closing is a failure and the counter is not read."""
    reads: list[float] = []

    def read() -> int:
        reads.append(clock.monotonic_s())
        return stepping(clock, 0.1)()

    counter = EdgedCounter(read, tick_s=0.1, clock=clock)
    counter.open()
    num_before = len(reads)
    run, slack_s = counter.close(has_died=True)
    assert (len(reads), slack_s) == (num_before, None)
    assert run.failed_edges() == (Reason.SAMPLER_DIED,)


def test_closing_what_was_never_opened_is_a_mistake_of_the_caller(clock: FakeClock) -> None:
    """Close without open raises RuntimeError."""
    with pytest.raises(RuntimeError, match="never opened"):
        EdgedCounter(lambda: 0, tick_s=0.1, clock=clock).close(has_died=False)
