"""The nights of all schedules."""

from __future__ import annotations

from datetime import timedelta

from db.database import Database
from db.job import JobState
from db.jobs import JobStore
from db.night_lists import NightListStore
from db.nights import NightStore
from db.schedule import ScheduleSpec
from db.schedules import ScheduleStore
from tests.db.factories import START, Clock, make_request


def test_nights_of_all_schedules_are_listed_newest_first(database: Database, clock: Clock, jobs: JobStore) -> None:
    """Each night comes with its schedule's name and its job's state, and a limit keeps the newest."""
    schedules, nights = ScheduleStore(database, clock.now), NightStore(database)
    for place, name in enumerate(("first", "second")):
        spec = ScheduleSpec(name=name, request=make_request(), cron="0 2 * * *", timezone="UTC")
        schedule = schedules.create(spec)
        nights.run_now(schedule.id, now=START + timedelta(hours=place))
    found = NightListStore(database).latest(limit=9)
    assert [(line.schedule_name, line.night.job_state) for line in found] == [
        ("second", JobState.QUEUED),
        ("first", JobState.QUEUED),
    ]
    assert [line.schedule_name for line in NightListStore(database).latest(limit=1)] == ["second"]
