"""Removes what is old and that nobody asks for any more, a little at a time, so that other writers do not wait.

Jobs, their trials, fronts and results always stay. Knows nothing of nights' calendars, nor of who wants it gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, String, cast, delete, exists, func, literal, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from db.database import Database
from db.front_documents import is_whole
from db.job import ENDED
from db.nights import last_with_front, unneeded_measurements
from db.service import DeliveryState, NightState
from db.service_tables import AuditRow, DeliveryRow, EventRow, NightRow, ScheduleRow
from db.tables import FrontRow, JobRow, MeasurementRow

#: Rows of one transaction: tens of milliseconds.
BATCH = 1000
#: Between transactions on SQLite. Whoever waits for its lock tries again every 100 ms at the latest, and no sooner:
#: without a gap of that length it might never be his turn.
PAUSE_S = 0.12
#: Nights of each schedule of which everything stays.
KEPT_NIGHTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many of what went, or would go."""

    events: int
    #: Of trials: the rows of the trials stay.
    measurements: int
    #: Notifications that were delivered.
    deliveries: int
    #: None when they were not asked for.
    audit_entries: int | None


class PruneStore:
    """What can be removed from one database."""

    def __init__(self, database: Database, *, batch: int = BATCH, pause: Callable[[float], None] = time.sleep) -> None:
        self._database = database
        self._batch = batch
        self._pause = pause

    def prune(self, before: datetime, *, with_audit: bool = False, is_dry_run: bool = False) -> Pruned:
        """Remove what is older than an instant; a dry run removes nothing and counts the same.

        Of jobs that ended before it: their events but the last one, and the measurements of points that are on no
        front and in no current results, unless the job's last front misses trials. Nothing of a schedule's last two
        nights, of the night that the next one begins with, or of a job that a waiting or running one begins with.
        Delivered notifications, but not of nights that may be told again.
        """
        with self._database.read() as session:
            kept = _kept_jobs(session)
        audit = [AuditRow.at < before]
        return Pruned(
            events=self._sweep(EventRow.id, _old_events(before, kept), is_dry_run=is_dry_run),
            measurements=self._measurements(before, kept, is_dry_run=is_dry_run),
            deliveries=self._sweep(DeliveryRow.id, _old_deliveries(before), is_dry_run=is_dry_run),
            audit_entries=self._sweep(AuditRow.id, audit, is_dry_run=is_dry_run) if with_audit else None,
        )

    def _sweep(
        self, number: InstrumentedAttribute[int], conditions: Sequence[ColumnElement[bool]], *, is_dry_run: bool
    ) -> int:
        """Remove the rows of a table that meet conditions, by growing number; return how many."""
        num_gone, after = 0, 0
        while True:
            some = select(number).where(number > after, *conditions).order_by(number).limit(self._batch)
            with self._database.read() if is_dry_run else self._database.transaction() as session:
                found = session.scalars(some).all()
                if not is_dry_run:
                    session.execute(delete(number.class_).where(number.in_(found)))
            num_gone += len(found)
            if len(found) < self._batch:
                return num_gone
            after = found[-1]
            self._let_others_in(is_dry_run=is_dry_run)

    def _measurements(self, before: datetime, kept: Collection[str], *, is_dry_run: bool) -> int:
        num_gone = 0
        for job_id in self._old_jobs(before, kept):
            with self._database.read() as session:
                trial_ids = unneeded_measurements(session, job_id)
            if is_dry_run:
                num_gone += len(trial_ids)
                continue
            for start in range(0, len(trial_ids), self._batch):
                num_gone += self._remove_measurements(job_id, trial_ids[start : start + self._batch], before)
                self._let_others_in(is_dry_run=False)
        return num_gone

    def _old_jobs(self, before: datetime, kept: Collection[str]) -> Iterator[str]:
        """Yield jobs that ended before an instant and whose last front has all their trials."""
        after = 0
        while True:
            some = select(JobRow.seq, JobRow.id).where(JobRow.seq > after, *_is_over(before), _has_whole_front())
            with self._database.read() as session:
                rows = session.execute(some.order_by(JobRow.seq).limit(self._batch)).all()
            yield from (row.id for row in rows if row.id not in kept)
            if len(rows) < self._batch:
                return
            after = rows[-1].seq

    def _remove_measurements(self, job_id: str, trial_ids: Sequence[int], before: datetime) -> int:
        """Remove measurements of a job, unless it was taken up again since they were found."""
        with self._database.transaction() as session:
            is_still_over = select(JobRow.id).where(JobRow.id == job_id, *_is_over(before)).with_for_update()
            if session.scalar(is_still_over) is None:
                return 0
            gone = delete(MeasurementRow).where(MeasurementRow.trial_id.in_(trial_ids))
            return len(session.execute(gone.returning(MeasurementRow.trial_id)).all())

    def _let_others_in(self, *, is_dry_run: bool) -> None:
        if self._database.is_sqlite and not is_dry_run:
            self._pause(PAUSE_S)


def _kept_jobs(session: Session) -> frozenset[str]:
    """Return the jobs of which nothing is removed, however old they are."""
    kept: set[str | None] = set()
    for schedule_id in session.scalars(select(ScheduleRow.id)).all():
        ran = select(NightRow.job_id).where(NightRow.schedule_id == schedule_id, NightRow.state == NightState.STARTED)
        kept.update(session.scalars(ran.order_by(NightRow.id.desc()).limit(KEPT_NIGHTS)))
        kept.add(last_with_front(session, schedule_id))
    begun_with = select(JobRow.previous_job_id).where(JobRow.state.not_in(sorted(ENDED)))
    kept.update(session.scalars(begun_with))
    return frozenset(job_id for job_id in kept if job_id is not None)


def _is_over(before: datetime) -> tuple[ColumnElement[bool], ...]:
    return JobRow.state.in_(sorted(ENDED)), JobRow.finished_at < before


def _has_whole_front() -> ColumnElement[bool]:
    """Return the condition that a job's last front needs no trial that is not on it to be told."""
    one = aliased(FrontRow)
    newest = select(func.max(one.id)).where(one.job_id == JobRow.id).correlate(JobRow).scalar_subquery()
    return exists().where(FrontRow.id == newest, is_whole())


def _old_events(before: datetime, kept: Collection[str]) -> list[ColumnElement[bool]]:
    """Select events of jobs that are over.

    The last one of each stays: it tells whoever comes late how the job ended, and on SQLite the number of a removed
    last row would be given to another event, which whoever has read so far would never see.
    """
    later = aliased(EventRow)
    has_later = exists().where(later.job_id == EventRow.job_id, later.id > EventRow.id)
    is_over = exists().where(JobRow.id == EventRow.job_id, *_is_over(before))
    return [EventRow.at < before, is_over, has_later, EventRow.job_id.not_in(kept)]


def _old_deliveries(before: datetime) -> list[ColumnElement[Any]]:
    """Select delivered notifications.

    The newest stays: on SQLite its number would be given to another, which receivers would take for the same one.
    Those of a night whose job may still give news stay too: what is not there is told again.
    """
    newest = aliased(DeliveryRow)
    of_night = literal("night/") + cast(NightRow.id, String) + literal("/%")
    may_be_told = exists().where(
        NightRow.job_id == JobRow.id,
        JobRow.finished_at.is_(None) | (JobRow.finished_at >= before),
        DeliveryRow.event_key.like(of_night),
    )
    is_newest = DeliveryRow.id == select(func.max(newest.id)).scalar_subquery()
    was_delivered = DeliveryRow.state == DeliveryState.DELIVERED
    return [was_delivered, DeliveryRow.delivered_at < before, ~is_newest, ~may_be_told]
