"""Doing something on several devices side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Barrier, Event

import pytest

from probes.clock import SystemClock
from probes.errors import DeviceLost
from probes.metering.together import together
from tests.probes.fake_clock import FakeClock

LONGEST_S = 30.0


def test_results_are_in_order_of_the_calls() -> None:
    """Whichever call ends first, its result stands where the call stood; no call at all gives none."""
    clock = SystemClock()
    second_has_ended = Event()

    def first() -> int:
        assert second_has_ended.wait(LONGEST_S)
        return 1

    def second() -> int:
        second_has_ended.set()
        return 2

    assert together([first, second], clock) == [1, 2]
    empty: list[Callable[[], int]] = []
    assert together(empty, clock) == []


def test_calls_run_at_the_same_time() -> None:
    """Four calls that each wait for the other three all come back."""
    barrier = Barrier(4)
    together([partial(barrier.wait, LONGEST_S)] * 4, SystemClock())
    assert not barrier.broken


def test_waits_overlap_on_the_clock(clock: FakeClock) -> None:
    """Three calls that each wait for two seconds take two seconds, not six, and time never runs backwards."""
    seen_s: list[float] = []

    def wait() -> None:
        for _ in range(20):
            clock.wait(Event(), 0.1)
            seen_s.append(clock.monotonic_s())

    before_s = clock.monotonic_s()
    together([wait] * 3, clock)
    assert 2.0 <= clock.monotonic_s() - before_s < 2.1
    assert seen_s == sorted(seen_s)


def test_an_error_comes_after_all_have_ended(clock: FakeClock) -> None:
    """The first error is raised, and not before the calls beside it are done."""
    ended = []

    def fail() -> int:
        raise DeviceLost("gone")

    def work() -> int:
        clock.wait(Event(), 1.0)
        ended.append("work")
        return 0

    with pytest.raises(DeviceLost, match="gone"):
        together([fail, work], clock)
    assert ended == ["work"]
