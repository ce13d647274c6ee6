"""Nights: what became of each due time of a schedule, decided once and by one of many servers.

The decision, the row that makes it unique and the job that it starts are one transaction, which holds the schedule's
row: whoever comes second finds the due time decided. Knows nothing of calendars, nor of what a job finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, String, cast, delete, exists, select, update
from sqlalchemy.orm import Session, aliased

from db.database import Database
from db.errors import ScheduleNotFound
from db.job import ENDED, JobState
from db.jobs import add_job
from db.schedule import Due, Night, Schedule, night_request
from db.schedules import schedule_of
from db.service import NightState, Overlap, ScheduleState
from db.service_tables import NightRow, ResultRow, ScheduleRow
from db.tables import FrontPointRow, FrontRow, JobRow, MeasurementRow, TrialRow

#: Jobs of one schedule that wait or run under `queue`: one that never ends must not gather others for ever.
MAX_QUEUED = 3
#: How `night` begins for what was started by hand.
MANUAL = "manual"

Nights = list[Night]


class NightStore:
    """The nights of one database. Whoever calls says what time it is."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def decide(self, schedule: Schedule, due: Due, *, now: datetime, missed_because: str | None = None) -> Night | None:
        """Record what becomes of a due time, and start its job if it is to run.

        A reason for missing it makes it `missed`. Returns None, changing nothing, when it has been decided already, or
        when the schedule is no longer what the caller has seen.
        """
        with self._database.transaction() as session:
            row = _locked(session, schedule.id)
            if row is None or row.version != schedule.version or row.decided_until >= due.due_at:
                return None
            row.decided_until = due.due_at
            if _night_row(session, schedule.id, due.night) is not None:  # its times were changed after it ran
                return None
            if missed_because is not None:
                return _record(session, row, due, now=now, state=NightState.MISSED, reason=missed_because)
            if row.state == ScheduleState.PAUSED:
                return _record(session, row, due, now=now, state=NightState.SKIPPED, reason="the schedule was paused")
            return _start(session, row, due, now=now)

    def run_now(self, schedule_id: str, *, now: datetime, idempotency_key: str | None = None) -> Night:
        """Start a run beside the calendar, as its overlap policy allows. Raises ScheduleNotFound.

        The same key again returns the night that it first started.
        """
        with self._database.transaction() as session:
            row = _locked(session, schedule_id)
            if row is None:
                raise ScheduleNotFound(schedule_id)
            if idempotency_key is not None and (known := _started_with(session, idempotency_key)) is not None:
                return known
            name = f"{MANUAL} {now.isoformat(timespec='seconds')}"
            known_row = _night_row(session, schedule_id, name)
            if known_row is not None:
                return _night_of(session, known_row)
            due = Due(night=name, due_at=now, closes_at=now)
            return _start(session, row, due, now=now, idempotency_key=idempotency_key)

    def list(self, schedule_id: str, *, limit: int, before: int | None = None) -> Nights:
        """Return at most `limit` nights of a schedule, newest first; those recorded before the night `before`."""
        query = _nights().where(NightRow.schedule_id == schedule_id).order_by(NightRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(NightRow.id < before)
        return self._read(query)

    def since(self, schedule_id: str, since: datetime) -> Nights:
        """Return the nights that were decided, or whose jobs ended, at or after an instant, oldest first."""
        is_new = (NightRow.decided_at >= since) | (JobRow.finished_at >= since)
        return self._read(_nights().where(NightRow.schedule_id == schedule_id, is_new).order_by(NightRow.id))

    def open(self) -> Nights:
        """Return the nights whose jobs wait or run, oldest first."""
        return self._read(_open_nights().order_by(NightRow.id))

    def to_report(self) -> Nights:
        """Return the nights whose jobs have ended and of which nobody said yet what moved, oldest first."""
        is_over = (NightRow.state == NightState.STARTED) & JobRow.state.in_(sorted(ENDED)) & NightRow.drift.is_(None)
        return self._read(_nights().where(is_over).order_by(NightRow.id))

    def set_drift(self, night_id: int, drift: Mapping[str, Any]) -> bool:
        """Store what moved; False when another server did so before."""
        unsaid = update(NightRow).where(NightRow.id == night_id, NightRow.drift.is_(None)).values(drift=dict(drift))
        with self._database.transaction() as session:
            return session.execute(unsaid.returning(NightRow.id)).one_or_none() is not None

    def note(self, night_id: int, reason: str) -> None:
        """Say why a night's job did not take its course; the first reason stays."""
        with self._database.transaction() as session:
            session.execute(
                update(NightRow).where(NightRow.id == night_id, NightRow.reason.is_(None)).values(reason=reason)
            )

    def fingerprints(self, job_id: str) -> frozenset[str]:
        """Return the hashes of what a job's own measurements were made under."""
        query = (
            select(MeasurementRow.fingerprint)
            .join(TrialRow, TrialRow.id == MeasurementRow.trial_id)
            .where(TrialRow.job_id == job_id, TrialRow.reused_from.is_(None), MeasurementRow.fingerprint.is_not(None))
        )
        with self._database.read() as session:
            return frozenset(found for found in session.scalars(query.distinct()) if found is not None)

    def prune(self, schedule_id: str, keep_nights: int) -> int:
        """Delete measurements of nights older than the `keep_nights` last that ran; return how many went.

        See `unneeded_measurements` for what stays. Nights without any more to delete are left out by the database: all
        but a few, as this is done after every night. The others are looked at without a lock and deleted from one by
        one: after a year of hours all of them together take longer than other writers wait.
        """
        ran = (
            select(NightRow.job_id)
            .join(JobRow, JobRow.id == NightRow.job_id)
            .where(
                NightRow.schedule_id == schedule_id,
                NightRow.state == NightState.STARTED,
                JobRow.state.in_(sorted(ENDED)),
            )
            .order_by(NightRow.id.desc())
            .offset(keep_nights)
            .subquery()
        )
        measured = exists().where(TrialRow.job_id == ran.c.job_id, MeasurementRow.trial_id == TrialRow.id, _may_go())
        with self._database.read() as session:
            job_ids = session.scalars(select(ran.c.job_id).where(measured)).all()
        return sum(self._prune_night(job_id) for job_id in job_ids)

    def _prune_night(self, job_id: str) -> int:
        """Delete a job's measurements that nothing stands for, unless it was taken up again; return how many went."""
        with self._database.read() as session:
            found = unneeded_measurements(session, job_id)
        if not found:
            return 0
        with self._database.transaction() as session:
            is_over = select(JobRow.id).where(JobRow.id == job_id, JobRow.state.in_(sorted(ENDED))).with_for_update()
            if session.scalar(is_over) is None:
                return 0
            gone = delete(MeasurementRow).where(MeasurementRow.trial_id.in_(found))
            return len(session.execute(gone.returning(MeasurementRow.trial_id)).all())

    def _read(self, query: Select[NightRow, str]) -> Nights:
        with self._database.read() as session:
            return [night_of(row, state) for row, state in session.execute(query)]  # no job: no state


def unneeded_measurements(session: Session, job_id: str) -> list[int]:
    """Return the trials of a job whose measurements stand for no point of its fronts or of what is recommended from.

    The windows of such points stay, repeats included, and those of the first point, which gains are told against. Of
    its results only current ones are recommended from; those that a later job took the place of have their figures in
    their own rows.
    """
    kept = aliased(TrialRow)
    points = list(session.scalars(select(kept.point).where(kept.job_id == job_id, _stands_for_a_point(kept))))
    measured = select(TrialRow.id, TrialRow.point).join(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
    trials = session.execute(measured.where(TrialRow.job_id == job_id).order_by(TrialRow.id))
    return [row.id for row in trials if row.point not in points]


def _may_go() -> ColumnElement[bool]:
    """Return the condition that no trial which stands for a point has a trial's point, as far as its text tells.

    One point can have been written in two ways: whoever deletes compares what the texts say.
    """
    kept = aliased(TrialRow)
    is_same = cast(kept.point, String) == cast(TrialRow.point, String)
    return ~exists().where(kept.job_id == TrialRow.job_id, _stands_for_a_point(kept), is_same)


def _stands_for_a_point(trial: type[TrialRow]) -> ColumnElement[bool]:
    """Return the condition that a trial is the job's first, on a front, or behind a current result."""
    on_a_front = exists().where(FrontPointRow.trial_id == trial.id)
    in_results = exists().where(
        ResultRow.job_id == trial.job_id, ResultRow.number == trial.number, ResultRow.is_current.is_(True)
    )
    return (trial.number == 0) | on_a_front | in_results


def _start(session: Session, row: ScheduleRow, due: Due, *, now: datetime, idempotency_key: str | None = None) -> Night:
    """Add the job of a due time, unless one before it is in the way."""
    before = session.scalars(
        select(JobRow)
        .join(NightRow, NightRow.job_id == JobRow.id)
        .where(NightRow.schedule_id == row.id, NightRow.state == NightState.STARTED, JobRow.state.not_in(sorted(ENDED)))
        .order_by(NightRow.id)
    ).all()
    in_the_way = _in_the_way(Overlap(row.overlap), before)
    if in_the_way is not None:
        oldest, words = in_the_way
        return _record(session, row, due, now=now, state=NightState.SKIPPED, reason=words, job=oldest)
    previous_id = last_with_front(session, row.id)
    request = night_request(
        schedule_of(row).spec.request, now=now, ends_at=due.ends_at, is_retune=previous_id is not None
    )
    job = add_job(
        session,
        request,
        now=now,
        idempotency_key=idempotency_key,
        priority=row.priority,
        submitted_by=f"schedule {row.name}",
        previous_job_id=previous_id,
    )
    return _record(session, row, due, now=now, state=NightState.STARTED, reason=None, job=job)


def _in_the_way(overlap: Overlap, before: Sequence[JobRow]) -> tuple[JobRow, str] | None:
    """Return the job for whose sake a night is skipped, and why in words; None when the night may start."""
    if not before or overlap is Overlap.REPLACE:  # those before are ended by whoever keeps the nights
        return None
    oldest = before[0]
    if overlap is Overlap.SKIP:
        return oldest, f"job {oldest.id[:8]} of a night before is {oldest.state}"
    if len(before) < MAX_QUEUED:
        return None
    return oldest, f"{len(before)} jobs of nights before wait or run, job {oldest.id[:8]} is {oldest.state}"


def _record(
    session: Session,
    schedule: ScheduleRow,
    due: Due,
    *,
    now: datetime,
    state: NightState,
    reason: str | None,
    job: JobRow | None = None,
) -> Night:
    row = NightRow(
        schedule_id=schedule.id,
        night=due.night,
        due_at=due.due_at,
        decided_at=now,
        state=state,
        reason=reason,
        job_id=None if job is None else job.id,
    )
    session.add(row)
    session.flush()
    return night_of(row, None if job is None else job.state)


def last_with_front(session: Session, schedule_id: str) -> str | None:
    """Return the last finished job of a schedule that found points."""
    has_points = exists().where(FrontRow.job_id == JobRow.id, FrontRow.num_points > 0)
    return session.scalar(
        select(JobRow.id)
        .join(NightRow, NightRow.job_id == JobRow.id)
        .where(NightRow.schedule_id == schedule_id, NightRow.state == NightState.STARTED)
        .where(JobRow.state == JobState.FINISHED, has_points)
        .order_by(NightRow.id.desc())
        .limit(1)
    )


def _locked(session: Session, schedule_id: str) -> ScheduleRow | None:
    return session.scalar(select(ScheduleRow).where(ScheduleRow.id == schedule_id).with_for_update())


def _night_row(session: Session, schedule_id: str, night: str) -> NightRow | None:
    return session.scalar(select(NightRow).where(NightRow.schedule_id == schedule_id, NightRow.night == night))


def _started_with(session: Session, idempotency_key: str) -> Night | None:
    row = session.scalar(
        select(NightRow)
        .join(JobRow, JobRow.id == NightRow.job_id)
        .where(JobRow.idempotency_key == idempotency_key, NightRow.state == NightState.STARTED)
    )
    return None if row is None else _night_of(session, row)


def _night_of(session: Session, row: NightRow) -> Night:
    return night_of(row, session.scalar(select(JobRow.state).where(JobRow.id == row.job_id)))


def _nights() -> Select[NightRow, str]:
    return select(NightRow, JobRow.state).outerjoin(JobRow, JobRow.id == NightRow.job_id)


def _open_nights() -> Select[NightRow, str]:
    return _nights().where(NightRow.state == NightState.STARTED, JobRow.state.not_in(sorted(ENDED)))


def night_of(row: NightRow, job_state: str | None) -> Night:
    """Return a row as a night, with the state of its job."""
    return Night(
        id=row.id,
        schedule_id=row.schedule_id,
        night=row.night,
        due_at=row.due_at,
        decided_at=row.decided_at,
        state=NightState(row.state),
        reason=row.reason,
        job_id=row.job_id,
        job_state=None if job_state is None else JobState(job_state),
        drift=row.drift,
    )
