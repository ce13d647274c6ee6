"""How much there is of everything."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import insert

from db.counts import CountStore
from db.database import Database
from db.jobs import JobStore
from db.service_tables import WorkerRow
from db.trials import TrialStore
from tests.db.factories import START, Clock, make_point, make_request, make_trial
from tests.db.test_front_lists import store_night


def test_jobs_and_trials_are_counted(database: Database, jobs: JobStore, trials: TrialStore, clock: Clock) -> None:
    """States that have rows are counted, and the oldest job in the queue tells how long it has waited."""
    counts = CountStore(database, clock.now)
    assert (counts.jobs(), counts.trials(), counts.oldest_queued_s()) == ({}, {}, 0.0)
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    trials.finish(trials.start(claim, 0, make_point()), make_trial())
    jobs.create(make_request())
    clock.advance(90)
    jobs.create(make_request())
    assert (counts.jobs(), counts.trials()) == ({"queued": 2, "running": 1}, {"complete": 1})
    assert counts.oldest_queued_s() == 90.0


def test_workers_count_while_they_are_seen(database: Database, clock: Clock) -> None:
    """A worker that gave no sign of life within the time asked for is not counted."""
    with database.transaction() as session:
        for number, ago_s in enumerate((5, 500)):
            columns = {"version": "1", "devices": [], "engines": [], "started_at": START}
            seen = START - timedelta(seconds=ago_s)
            session.execute(insert(WorkerRow).values(owner=f"host:{number}", host="host", last_seen=seen, **columns))
    assert CountStore(database, clock.now).workers(60) == 1


def test_nights_count_by_what_became_of_them(database: Database, jobs: JobStore, clock: Clock) -> None:
    """A night that started counts under its job's state, and no longer once it is further back than was asked for."""
    store_night(database, jobs.create(make_request()).id, schedule="nightly", night="2026-03-01")
    counts = CountStore(database, clock.now)
    assert counts.nights(3600) == {"queued": 1}
    clock.advance(3601)
    assert counts.nights(3600) == {}
