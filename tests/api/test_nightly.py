"""APScheduler as an alarm clock: it wakes whoever keeps the nights, and lives through what goes wrong there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from api.nightly import Nightly
from db.errors import DatabaseBusy

LONGEST_S = 60.0

Start = Callable[..., Nightly]


@pytest.fixture
def started() -> Iterator[Start]:
    """Start alarm clocks that are stopped when the test ends."""
    running: list[Nightly] = []

    def start(keep: Callable[[], datetime | None], now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Nightly:
        nightly = Nightly(keep, now)
        running.append(nightly)
        nightly.start()
        return nightly

    yield start
    for nightly in running:
        nightly.stop()


def test_it_looks_when_it_starts(started: Start) -> None:
    """What was due while the service was down is looked at without waiting for the next due time."""
    assert started(lambda: None).wait_for_look(1, timeout_s=LONGEST_S)


def test_it_wakes_when_something_is_due(started: Start) -> None:
    """The next look comes at the time that the last one named, by the clock that it named it on."""
    clock = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    dues = iter([clock + timedelta(milliseconds=50), clock + timedelta(milliseconds=20)])
    assert started(lambda: next(dues, None), lambda: clock).wait_for_look(3, timeout_s=LONGEST_S)


def test_it_can_be_woken(started: Start) -> None:
    """A schedule that was just made is looked at soon, not after the minute of the safety net."""
    nightly = started(lambda: None)
    assert nightly.wait_for_look(1, timeout_s=LONGEST_S)
    nightly.wake()
    assert nightly.wait_for_look(2, timeout_s=LONGEST_S)


def test_what_it_is_woken_for_during_a_look_is_looked_at(started: Start) -> None:
    """A schedule that is made while it looks may have been missed by that look, so another one follows."""
    has_begun, may_end = threading.Event(), threading.Event()

    def keep() -> datetime | None:
        has_begun.set()
        assert may_end.wait(LONGEST_S)
        return None

    nightly = started(keep)
    assert has_begun.wait(LONGEST_S)
    nightly.wake()
    may_end.set()
    assert nightly.wait_for_look(2, timeout_s=LONGEST_S)


def test_a_database_that_is_busy_costs_one_look(started: Start) -> None:
    """A look that the database refuses ends nothing: the next one finds it again."""
    answers = iter([DatabaseBusy("locked")])

    def keep() -> datetime | None:
        for error in answers:
            raise error
        return None

    nightly = started(keep)
    assert nightly.wait_for_look(1, timeout_s=LONGEST_S)
    nightly.wake()
    assert nightly.wait_for_look(2, timeout_s=LONGEST_S)


def test_it_stops_after_the_look_under_way(started: Start) -> None:
    """Stopping waits for a look that has begun, so that no transaction is cut; after that there are no more."""
    has_begun, may_end = threading.Event(), threading.Event()
    ended: list[bool] = []

    def keep() -> datetime | None:
        has_begun.set()
        ended.append(may_end.wait(LONGEST_S))
        return None

    nightly = started(keep)
    assert has_begun.wait(LONGEST_S)
    stopping = threading.Thread(target=nightly.stop)
    stopping.start()
    assert stopping.is_alive()
    may_end.set()
    stopping.join(LONGEST_S)
    nightly.wake()
    assert (ended, nightly.num_looks) == ([True], 1)
