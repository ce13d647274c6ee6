"""Fronts in the form that is shown, compressed: read without a trial, many in one query.

Knows which of them still hold; not what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, exists, func, select, update

from db.database import Database
from db.job import ENDED
from db.service_tables import EventRow
from db.tables import FrontRow, JobRow, TrialRow
from tuner.trial import OUTCOMES


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontDocument:
    """A front's public form, and of which version that form is."""

    #: JSON as gzip.
    body: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontState:
    """What a job's front depends on: as long as none of it changes, neither does the front."""

    job_id: str
    has_ended: bool
    #: Changes when a job that was cancelled is resumed and ends again.
    finished_at: datetime | None
    #: Of the front saved last; None without one.
    front_id: int | None
    #: Of the job's newest event; 0 without one.
    last_event_id: int


class FrontDocumentStore:
    """The documents of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def states(self, job_ids: Sequence[str]) -> dict[str, FrontState]:
        """Return what the fronts of jobs depend on, by id; jobs that are not there are left out."""
        newest = select(func.max(FrontRow.id)).where(FrontRow.job_id == JobRow.id).scalar_subquery()
        event = select(func.max(EventRow.id)).where(EventRow.job_id == JobRow.id).scalar_subquery()
        query = select(JobRow.id, JobRow.state, JobRow.finished_at, newest, event).where(JobRow.id.in_(job_ids))
        with self._database.read() as session:
            rows = session.execute(query).all()
        return {
            job_id: FrontState(
                job_id=job_id,
                has_ended=state in ENDED,
                finished_at=finished_at,
                front_id=front_id,
                last_event_id=event_id or 0,
            )
            for job_id, state, finished_at, front_id, event_id in rows
        }

    def bodies(self, front_ids: Sequence[int], version: int) -> dict[int, bytes]:
        """Return documents of a version, by front; those that miss a trial that ended later are left out.

        A front of a job that was put aside misses what came after it, and may stay the last one: the job can be
        cancelled while nobody holds it.
        """
        query = select(FrontRow.id, FrontRow.document).where(
            FrontRow.id.in_(front_ids), FrontRow.document_version == version, FrontRow.document.is_not(None), is_whole()
        )
        with self._database.read() as session:
            rows = session.execute(query).all()
        return {front_id: body for front_id, body in rows if body is not None}

    def put(self, front_id: int, document: FrontDocument) -> None:
        """Keep a document beside its front, in the place of one of another version."""
        with self._database.transaction() as session:
            session.execute(
                update(FrontRow)
                .where(FrontRow.id == front_id)
                .values(document=document.body, document_version=document.version)
            )


def is_whole() -> ColumnElement[bool]:
    """Return the condition that no trial of the job came to an outcome after its front was made."""
    return ~exists().where(
        TrialRow.job_id == FrontRow.job_id,
        TrialRow.state.in_(sorted(OUTCOMES)),
        TrialRow.finished_at > FrontRow.created_at,
    )
