"""Virtual time."""

from __future__ import annotations

from threading import Event

from hypothesis import given
from hypothesis import strategies as st

from probes.clock import Clock
from probes.simulated.clock import TICKS_PER_S, VirtualClock


class Looker:
    """Notes when it was called, every `interval_s`."""

    def __init__(self, clock: VirtualClock, interval_s: float, seen: list[tuple[str, float]], name: str) -> None:
        self.due_s = clock.now_s + interval_s
        self._interval_s = interval_s
        self._clock = clock
        self._seen = seen
        self._name = name

    def visit(self, now_s: float) -> None:
        assert now_s == self._clock.now_s
        self._seen.append((self._name, now_s))
        self.due_s += self._interval_s


def test_waiting_is_letting_time_pass() -> None:
    """A wait ends at once with its whole time gone, and says whether the event is set."""
    clock: Clock = VirtualClock()
    event = Event()
    assert clock.wait(event, 2.5) is False
    assert (clock.monotonic_s(), clock.boottime_s()) == (2.5, 2.5)
    event.set()
    assert clock.wait(event, -1.0) is True
    assert clock.monotonic_s() == 2.5


def test_time_never_goes_back() -> None:
    """To advance to the past changes nothing."""
    clock = VirtualClock()
    clock.advance_to(3.0)
    clock.advance_to(1.0)
    assert clock.now_s == 3.0


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_instants_lie_on_a_grid_that_is_never_before_what_was_asked(one_s: float, other_s: float) -> None:
    """Each instant is the first of the grid at or after the one asked for, so that differences are exact."""
    clock = VirtualClock()
    for asked_s in sorted((one_s, other_s)):
        clock.advance_to(asked_s)
        assert 0 <= clock.now_s - asked_s <= 1 / TICKS_PER_S
        assert (clock.now_s * TICKS_PER_S).is_integer()


def test_visitors_are_called_at_their_instants_in_order() -> None:
    """Each is called when it is due, the first added first where two are, and no more once it is removed."""
    clock = VirtualClock()
    seen: list[tuple[str, float]] = []
    slow, quick = Looker(clock, 1.0, seen, "slow"), Looker(clock, 0.5, seen, "quick")
    clock.add(slow)
    clock.add(quick)
    clock.advance_to(1.25)
    assert seen == [("quick", 0.5), ("slow", 1.0), ("quick", 1.0)]
    assert clock.now_s == 1.25
    clock.remove(quick)
    clock.remove(quick)
    clock.advance_to(2.0)
    assert seen[3:] == [("slow", 2.0)]
