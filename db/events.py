"""What happened to jobs, in order, for those who follow them: written in the transaction that it happened in.

Within a job numbers grow in the order of commits, as every writer of an event holds the job's row. Knows nothing of
who reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.database import Database
from db.service_tables import EventRow
from db.tables import JobRow, TrialRow

Events = list["Event"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    #: Grows; later events of a job have larger ones.
    id: int
    job_id: str
    at: datetime
    #: `job` when its state changed, `trial_started`, `trial` when one ended.
    kind: str
    data: Mapping[str, Any]


class EventStore:
    """The events of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def after(self, job_id: str, event_id: int, *, limit: int = 500) -> Events:
        """Return a job's events that came after one, oldest first; 0 is before the first."""
        query = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > event_id)
        with self._database.read() as session:
            rows = session.scalars(query.order_by(EventRow.id).limit(limit))
            return [Event(id=row.id, job_id=row.job_id, at=row.at, kind=row.kind, data=row.data) for row in rows]

    def last_id(self, job_id: str) -> int:
        """Return the number of a job's newest event; 0 without one."""
        with self._database.read() as session:
            return session.scalar(select(func.max(EventRow.id)).where(EventRow.job_id == job_id)) or 0


def tell_job(session: Session, row: JobRow, now: datetime) -> None:
    """Note that a job's state changed; the caller holds its row."""
    data = {"state": row.state, "ended_because": row.ended_because, "message": row.message}
    session.add(EventRow(job_id=row.id, at=now, kind="job", data=data))


def tell_trial_started(session: Session, row: TrialRow, now: datetime) -> None:
    """Note that an attempt began; the caller holds the job's row."""
    data = {"number": row.number, "attempt": row.attempt, "knobs": row.point, "role": row.role}
    session.add(EventRow(job_id=row.job_id, at=now, kind="trial_started", data=data))


def tell_trial(session: Session, row: TrialRow, now: datetime, *, tok_per_j: float | None = None) -> None:
    """Note how an attempt ended, as its row now has it; the caller holds the job's row."""
    data = {
        "number": row.number,
        "attempt": row.attempt,
        "knobs": row.point,
        "role": row.role,
        "state": row.state,
        "reason": row.reason,
        "tok_per_j": tok_per_j,
    }
    session.add(EventRow(job_id=row.job_id, at=now, kind="trial", data=data))
