"""The background sampler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from probes.errors import DeviceLost
from probes.metering.sampler import Failure, Sample, Sampler, timed
from probes.validity import Reason
from tests.probes.fake_clock import FakeClock


def make_sampler(read: Callable[[], float], clock: FakeClock, *, interval_s: float = 1.0) -> Sampler[float]:
    return Sampler(read, interval_s=interval_s, clock=clock)


def test_reads_at_both_edges_and_in_between(clock: FakeClock) -> None:
    """A run holds a reading at start, one per interval and one at stop, in order of time."""
    sampler = make_sampler(clock.monotonic_s, clock)
    sampler.start()
    clock.advance(2.5)
    run = sampler.stop()
    assert [sample.time_s for sample in run.samples] == [1000.0, 1001.0, 1002.0, 1002.5]
    assert not run.has_died
    assert run.longest_gap_s == 1.0


def test_a_reading_belongs_to_the_middle_of_its_call(clock: FakeClock) -> None:
    """The time of a reading is the midpoint between before and after the call."""

    def slow_read() -> float:
        clock.jump(0.2)
        return 1.0

    sampler = make_sampler(slow_read, clock)
    opening = sampler.start()
    sampler.cancel()
    assert pytest.approx(1000.1) == opening.time_s


def test_a_timed_reading_raises_what_the_reading_raises(clock: FakeClock) -> None:
    """Timing one call changes neither its value nor its error."""

    def refuse() -> float:
        raise DeviceLost("gone")

    assert timed(lambda: 7.0, clock) == Sample(time_s=1000.0, value=7.0)
    with pytest.raises(DeviceLost):
        timed(refuse, clock)


def test_a_probe_error_is_a_failure_and_sampling_goes_on(clock: FakeClock) -> None:
    """A reading that cannot be had is recorded with its kind and the later ones are still taken."""

    def read() -> float:
        if 1000.5 < clock.monotonic_s() < 1002.5:
            raise DeviceLost("gone")
        return 1.0

    sampler = make_sampler(read, clock)
    sampler.start()
    clock.advance(4.0)
    run = sampler.stop()
    assert [failure.kind for failure in run.failures] == ["device_lost", "device_lost"]
    assert run.longest_gap_s == 3.0
    assert not run.has_died


def test_any_other_error_ends_the_thread_and_the_run_says_so(clock: FakeClock) -> None:
    """A sampler that crashed is marked as dead, and its closing reading is a failure, not a guess."""

    def read() -> float:
        if clock.monotonic_s() > 1000.5:
            raise ZeroDivisionError
        return 1.0

    sampler = make_sampler(read, clock)
    sampler.start()
    clock.advance(2.0)
    run = sampler.stop()
    assert run.has_died
    assert run.failed_edges() == (Reason.SAMPLER_DIED,)


def test_an_edge_is_asked_again(clock: FakeClock) -> None:
    """One bad reading at an edge costs a failure but not the edge."""
    refusals = [DeviceLost("once")]

    def read() -> float:
        if refusals:
            raise refusals.pop()
        return 7.0

    sampler = make_sampler(read, clock)
    opening = sampler.start()
    sampler.cancel()
    assert isinstance(opening, Sample)
    assert opening.value == 7.0


def test_an_edge_that_stays_bad_is_a_failure(clock: FakeClock) -> None:
    """An edge that cannot be read is a failure that names the kind of error."""

    def read() -> float:
        raise DeviceLost("for good")

    sampler = make_sampler(read, clock)
    opening = sampler.start()
    run = sampler.stop()
    assert isinstance(opening, Failure)
    assert run.failed_edges() == ("device_lost",)


def test_cancel_is_idempotent_and_works_before_start(clock: FakeClock) -> None:
    """A sampler cancelled too early still starts, and one cancelled twice has ended and reads no more."""
    reads_s: list[float] = []

    def read() -> float:
        reads_s.append(clock.monotonic_s())
        return 1.0

    sampler = make_sampler(read, clock)
    sampler.cancel()
    sampler.start()
    clock.advance(1.5)
    sampler.cancel()
    sampler.cancel()
    clock.advance(3.0)
    assert reads_s == [1000.0, 1001.0]
    assert not sampler.stop().has_died


def test_stopping_what_never_started_is_a_mistake_of_the_caller(clock: FakeClock) -> None:
    """Stop without start raises RuntimeError."""
    with pytest.raises(RuntimeError, match="never started"):
        make_sampler(clock.monotonic_s, clock).stop()
