"""Columns: instants, text, constraints with names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from db.database import Database
from db.errors import RecordNotStorable
from db.jobs import JobStore
from db.tables import Base, JobRow, TrialRow
from db.trials import TrialStore
from tests.db.factories import make_point, make_request, make_trial

BERLIN = ZoneInfo("Europe/Berlin")
#: The night the clocks went back: the same digits, an hour apart.
BEFORE = datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=2)))
AFTER = datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=1)))


def test_instants_survive_the_night_the_clocks_go_back(database: Database, jobs: JobStore, trials: TrialStore) -> None:
    """Times given in any zone come back as the same instants in UTC, and sort and filter as instants."""
    job = jobs.create(make_request())
    claim = jobs.claim(job.id, "worker", 60)
    for number, moment in enumerate((AFTER, BEFORE)):
        started = trials.start(claim, number, make_point())
        assert trials.finish(started, make_trial(number=number, started_at=moment, finished_at=moment))
    assert [trial.started_at for trial in trials.list(job.id)] == [AFTER, BEFORE]
    assert all(trial.started_at.tzinfo is UTC for trial in trials.list(job.id))
    with database.read() as session:
        in_order = session.scalars(select(TrialRow.started_at).order_by(TrialRow.started_at)).all()
        until = datetime(2026, 10, 25, 2, 45, fold=0, tzinfo=BERLIN)
        before_the_change = session.scalars(select(TrialRow.number).where(TrialRow.started_at < until)).all()
    assert in_order == [BEFORE, AFTER]
    assert before_the_change == [1]


def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    """A naive datetime is refused rather than guessed at."""
    with pytest.raises(RecordNotStorable, match="no time zone"), database.read() as session:
        session.scalars(select(JobRow).where(JobRow.created_at < datetime(2026, 1, 1))).all()


def test_any_text_can_be_stored_as_a_detail(jobs: JobStore, trials: TrialStore) -> None:
    """NUL and lone surrogates from a broken log become replacement marks; all other text is kept."""
    job = jobs.create(make_request())
    started = trials.start(jobs.claim(job.id, "worker", 60), 0, make_point())
    assert trials.finish(started, make_trial(detail="a\0b \udcff 😀 é"))
    assert [trial.detail for trial in trials.list(job.id)] == ["a\ufffdb \ufffd 😀 é"]


def test_every_constraint_and_index_has_a_name() -> None:
    """Nothing in the tables is without a name, so that a migration can drop it."""
    for table in Base.metadata.tables.values():
        assert all(constraint.name for constraint in table.constraints), table
        assert all(index.name for index in table.indexes), table


def test_a_job_in_an_unknown_state_is_refused(database: Database, jobs: JobStore) -> None:
    """The database itself refuses a state that no code knows."""
    jobs.create(make_request())
    with pytest.raises(IntegrityError, match="ck_jobs_state"), database.transaction() as session:
        session.scalars(select(JobRow)).one().state = "asleep"


def test_a_deleted_job_takes_its_rows_along(database: Database, jobs: JobStore, trials: TrialStore) -> None:
    """Foreign keys are enforced: no trial stays behind without its job."""
    job = jobs.create(make_request())
    started = trials.start(jobs.claim(job.id, "worker", 60), 0, make_point())
    trials.finish(started, make_trial())
    with database.transaction() as session:
        session.delete(session.scalars(select(JobRow)).one())
    assert trials.list(job.id) == []
