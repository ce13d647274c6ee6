"""Schedules: one row for one key, names that are unique, changes that nobody overwrites unseen."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import update

from db.database import Database
from db.errors import AmbiguousSchedule, ScheduleChanged, ScheduleExists, ScheduleNotFound
from db.schedule import ScheduleSpec
from db.schedules import ScheduleStore
from db.service import Overlap, ScheduleState
from db.service_tables import ScheduleRow
from tests.db.factories import START, Clock, make_request


def make_spec(**changes: Any) -> ScheduleSpec:
    spec = ScheduleSpec(
        name="nightly",
        request=make_request(),
        window_start="01:00",
        window_end="05:00",
        timezone="Europe/Berlin",
        overlap=Overlap.QUEUE,
        grace_s=600.0,
        keep_nights=14,
        notify=("ops", "lab"),
        priority=3,
    )
    return replace(spec, **changes)


@pytest.fixture
def schedules(database: Database, clock: Clock) -> ScheduleStore:
    return ScheduleStore(database, clock.now)


def test_a_schedule_comes_back_as_it_was_given(schedules: ScheduleStore) -> None:
    """Every field is stored; nothing that was due before its creation is looked at."""
    made = schedules.create(make_spec(), created_by="alice")
    assert schedules.get(made.id) == made
    assert (made.spec, made.state, made.created_by, made.version) == (make_spec(), ScheduleState.ACTIVE, "alice", 1)
    assert (made.created_at, made.changed_at, made.decided_until) == (START, START, START)


def test_the_same_key_makes_one_schedule(schedules: ScheduleStore) -> None:
    """BUG-25: a schedule that is configured at every start is one row, however often the service starts."""
    made = [schedules.create(make_spec(), idempotency_key="at start") for _ in range(3)]
    assert [one.id for one in made] == [made[0].id] * 3
    assert schedules.list(limit=9) == [made[0]]
    assert schedules.with_key("at start") == made[0]
    assert schedules.with_key("another") is None


def test_a_name_is_taken_once(schedules: ScheduleStore) -> None:
    """Another schedule of the same name is refused, when made and when renamed, and changes nothing."""
    schedules.create(make_spec())
    other = schedules.create(make_spec(name="other"))
    with pytest.raises(ScheduleExists, match="name is 'nightly'"):
        schedules.create(make_spec(priority=9))
    with pytest.raises(ScheduleExists, match="name is 'nightly'"):
        schedules.change("other", make_spec(), expected_version=1)
    assert schedules.list(limit=9) == [other, schedules.get("nightly")]


def test_of_many_who_take_a_name_at_once_one_gets_it(schedules: ScheduleStore) -> None:
    """Threads that create the same name end with one schedule and named errors."""
    errors: list[ScheduleExists] = []

    def create() -> None:
        try:
            schedules.create(make_spec())
        except ScheduleExists as error:
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(schedules.all()), len(errors)) == (1, 3)


def test_a_schedule_is_found_by_name_id_and_start_of_its_id(schedules: ScheduleStore) -> None:
    """A name, an id, or four characters of it lead to the schedule; anything else says what to give."""
    made = schedules.create(make_spec())
    assert [schedules.get(name) for name in ("nightly", made.id, made.id[:4])] == [made] * 3
    for name in ("nightl", made.id[:3], "%", "____", "", "night\0", "night\udcff"):
        with pytest.raises(ScheduleNotFound, match="`wattfront schedules list`"):
            schedules.get(name)


def test_a_name_cannot_stand_in_for_an_id(schedules: ScheduleStore) -> None:
    """A schedule that is named like another's id is found by its own id alone, and takes no change from the other."""
    first = schedules.create(make_spec())
    second = schedules.create(make_spec(name=first.id))
    assert [schedules.get(first.id), schedules.get(second.id)] == [first, second]
    assert (schedules.pause(first.id).spec.name, schedules.get(second.id)) == ("nightly", second)
    assert schedules.list(limit=9, before=first.id) == []


def test_a_start_that_fits_several_names_them(schedules: ScheduleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two ids begin alike, neither is taken for the other."""
    ids = iter([uuid.UUID("abcd" + "0" * 28), uuid.UUID("abcd" + "1" * 28)])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(ids))
    for name in ("one", "two"):
        schedules.create(make_spec(name=name))
    with pytest.raises(AmbiguousSchedule, match="'abcd' fits the schedules one, two; give more characters"):
        schedules.get("abcd")


def test_pages_follow_each_other(schedules: ScheduleStore) -> None:
    """Lists are newest first, and `before` goes on where a page ended."""
    made = [schedules.create(make_spec(name=f"n{i}")) for i in range(3)]
    assert schedules.list(limit=2) == [made[2], made[1]]
    assert schedules.list(limit=2, before=made[1].id) == [made[0]]


def test_one_that_cannot_be_read_hides_no_other(schedules: ScheduleStore, database: Database) -> None:
    """A schedule of a later version is left out where all are looked through: the others' nights go on."""
    first, other = (schedules.create(make_spec(name=name)) for name in ("a", "b"))
    with database.transaction() as session:
        session.execute(update(ScheduleRow).where(ScheduleRow.id == first.id).values(request={"schema": 10_000}))
    assert schedules.all() == [other]


def test_a_change_of_another_version_is_refused(schedules: ScheduleStore, clock: Clock) -> None:
    """Two who change what they read at once: the second is told, and nothing of the first is lost."""
    schedules.create(make_spec())
    clock.advance(60)
    changed = schedules.change("nightly", make_spec(priority=5), expected_version=1)
    assert (changed.version, changed.spec.priority, changed.changed_at) == (2, 5, clock.now())
    with pytest.raises(ScheduleChanged, match="is version 2, and the change is of version 1"):
        schedules.change("nightly", make_spec(priority=7), expected_version=1)
    assert schedules.get("nightly") == changed


def test_new_times_count_from_now(schedules: ScheduleStore, clock: Clock) -> None:
    """Under other times nothing is due that lies before the change; another field leaves that as it is."""
    made = schedules.create(make_spec())
    clock.advance(3600)
    same = schedules.change(made.id, make_spec(priority=5), expected_version=1)
    other = schedules.change(made.id, make_spec(window_start="00:00"), expected_version=2)
    assert (same.decided_until, other.decided_until) == (START, clock.now())


def test_pausing_twice_is_pausing_once(schedules: ScheduleStore) -> None:
    """The state changes and counts a version; asking for the state it has changes nothing."""
    schedules.create(make_spec())
    paused = schedules.pause("nightly")
    assert (paused.state, paused.version) == (ScheduleState.PAUSED, 2)
    assert schedules.pause("nightly") == paused
    assert (schedules.resume("nightly").state, schedules.get("nightly").version) == (ScheduleState.ACTIVE, 3)


def test_a_deleted_schedule_is_gone(schedules: ScheduleStore) -> None:
    """It is returned as it was, and its name is free."""
    made = schedules.create(make_spec())
    assert schedules.delete("nightly") == made
    with pytest.raises(ScheduleNotFound):
        schedules.delete("nightly")
    assert schedules.create(make_spec()).id != made.id


def test_times_keep_their_instant(schedules: ScheduleStore, clock: Clock) -> None:
    """BUG-29: a clock in any zone is stored as the same instant and comes back in UTC, in a repeated hour too."""
    for hours in (2, 1):
        clock.time = datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=hours)))
        schedules.create(make_spec(name=f"at{hours}"))
    found = [schedules.get(name).created_at for name in ("at2", "at1")]
    assert found == [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    assert {time.tzinfo for time in found} == {UTC}
