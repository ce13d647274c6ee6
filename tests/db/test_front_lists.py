"""The latest front of each job."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import insert

from db.database import Database
from db.front_lists import FrontFilter, FrontListStore
from db.fronts import FrontStore
from db.job_filter import JobFilter
from db.jobs import JobStore
from db.service import NightState, Overlap, ScheduleState
from db.service_tables import NightRow, ScheduleRow
from tests.db.factories import START, make_request
from tuner.pareto import front_of


def store_night(database: Database, job_id: str, *, schedule: str, night: str) -> None:
    """Store a schedule with one night that a job is of."""
    with database.transaction() as session:
        row = ScheduleRow(
            id="5" * 32,
            name=schedule,
            request={},
            window_start="01:00",
            window_end="05:00",
            timezone="Europe/Berlin",
            state=ScheduleState.ACTIVE,
            overlap=Overlap.SKIP,
            notify=[],
            created_at=START,
            changed_at=START,
            decided_until=START,
        )
        session.add(row)
        session.flush()
        columns = {"due_at": START, "decided_at": START, "state": NightState.STARTED, "job_id": job_id}
        session.execute(insert(NightRow).values(schedule_id=row.id, night=night, **columns))


def test_the_latest_front_of_each_job_is_listed(database: Database, jobs: JobStore, fronts: FrontStore) -> None:
    """A job with two fronts is listed once, with the later one; one without a front is not listed."""
    old, new, without = (jobs.create(make_request(name=name)).id for name in ("old", "new", "without"))
    for job_id, minutes in ((old, 0), (new, 1), (new, 2)):
        fronts.save(job_id, front_of([], "tpot_p99_ms", created_at=START + timedelta(minutes=minutes)))
    lists = FrontListStore(database)
    assert [(new, START + timedelta(minutes=2)), (old, START)] == [
        (front.job_id, front.created_at) for front in lists.list(limit=9)
    ]
    assert [old] == [front.job_id for front in lists.list(limit=9, before=new)]
    assert [old, new] == [front.job_id for front in lists.list(limit=9, before=without)][::-1]


def test_fronts_are_found_by_night(database: Database, jobs: JobStore, fronts: FrontStore) -> None:
    """A schedule is asked for by its name or its id, and a night by its name; what the job has filters too."""
    job_id = jobs.create(make_request()).id
    fronts.save(job_id, front_of([], "tpot_p99_ms", created_at=START))
    store_night(database, job_id, schedule="every night", night="2026-03-29")
    lists = FrontListStore(database)
    for only, num_found in (
        (FrontFilter(schedule="every night"), 1),
        (FrontFilter(schedule="5" * 32, night="2026-03-29"), 1),
        (FrontFilter(schedule="other"), 0),
        (FrontFilter(night="2026-03-30"), 0),
        (FrontFilter(jobs=JobFilter(model="smollm2-135m"), night="2026-03-29"), 1),
        (FrontFilter(jobs=JobFilter(model="other")), 0),
    ):
        assert num_found == len(lists.list(limit=9, only=only))
