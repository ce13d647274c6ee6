"""Uploaded traces and prompt files: add, find, list, delete. What a file is worth is told by whoever read it.

A name stands for one content for as long as it is there: another content needs another name, and what jobs that wait
or run, or schedules, refer to is not deleted. Knows nothing of rows and columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, defer

from db.database import Database
from db.errors import TooManyWorkloads, WorkloadExists, WorkloadInUse, WorkloadNotFound
from db.job import ENDED
from db.service_tables import ScheduleRow, WorkloadRow
from db.tables import JobRow

#: Before the name of an uploaded file where a request could also name a path.
UPLOADED = "uploaded:"
#: Files that are kept at once.
MAX_WORKLOADS = 200
#: Jobs and schedules that a refusal names.
_MAX_NAMED = 5

Workloads = list["Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An uploaded file, without its content."""

    name: str
    #: azure, mooncake or prompts.
    form: str
    #: Of the file as it was uploaded, in hexadecimal digits.
    sha256: str
    num_rows: int
    #: As it was uploaded.
    num_bytes: int
    #: What is worth knowing of its rows: duration, rates, lengths.
    summary: Mapping[str, Any]
    created_by: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorkload:
    """A file that was read and found good."""

    form: str
    sha256: str
    num_rows: int
    num_bytes: int
    summary: Mapping[str, Any]
    #: The file in zlib's format.
    compressed: bytes


class WorkloadStore:
    """The uploaded files of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def add(self, name: str, new: NewWorkload, *, created_by: str | None = None) -> tuple[Workload, bool]:
        """Store a file under a name; return it, and whether it is new: the same content again changes nothing.

        Raises WorkloadExists where the name stands for another content, TooManyWorkloads.
        """
        try:
            with self._database.transaction() as session:
                known = _named(session, name)
                if known is not None:
                    return _same(known, new), False
                if (session.scalar(select(func.count()).select_from(WorkloadRow)) or 0) >= MAX_WORKLOADS:
                    raise TooManyWorkloads(MAX_WORKLOADS)
                row = _row_of(name, new, created_by=created_by, now=self._now())
                session.add(row)
                session.flush()
                return _workload_of(row), True
        except IntegrityError:  # on PostgreSQL another process may insert the name after we looked
            return _same(self._row(name), new), False

    def get(self, name: str) -> Workload:
        """Return an uploaded file by its name. Raises WorkloadNotFound."""
        return _workload_of(self._row(name))

    def content(self, name: str) -> bytes:
        """Return a file as it was uploaded. Raises WorkloadNotFound."""
        with self._database.read() as session:
            compressed = session.scalar(select(WorkloadRow.content).where(WorkloadRow.name == name))
        if compressed is None:
            raise WorkloadNotFound(name)
        return zlib.decompress(compressed)

    def list(self, *, limit: int, before: str | None = None) -> Workloads:
        """Return at most `limit` files, newest first; those uploaded before the one named `before`, to go on."""
        query = select(WorkloadRow).options(_without_content()).order_by(WorkloadRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(WorkloadRow.id < self._row(before).id)
        with self._database.read() as session:
            return [_workload_of(row) for row in session.scalars(query)]

    def delete(self, name: str) -> Workload:
        """Delete a file and return what it was; what was measured under it stays.

        Raises WorkloadNotFound, WorkloadInUse.
        """
        with self._database.transaction() as session:
            row = _named(session, name)
            if row is None:
                raise WorkloadNotFound(name)
            users = list(_users(session, name))
            if users:
                raise WorkloadInUse(name, users[:_MAX_NAMED], num_users=len(users))
            session.delete(row)
            return _workload_of(row)

    def _row(self, name: str) -> WorkloadRow:
        with self._database.read() as session:
            row = _named(session, name)
        if row is None:
            raise WorkloadNotFound(name)
        return row


def _without_content() -> Any:
    return defer(WorkloadRow.content, raiseload=True)


def _named(session: Session, name: str) -> WorkloadRow | None:
    return session.scalar(select(WorkloadRow).options(_without_content()).where(WorkloadRow.name == name))


def _users(session: Session, name: str) -> Iterator[str]:
    """Yield what refers to a file and may still need it, as `job 4f2a...` and `schedule NAME`."""
    open_jobs = select(JobRow.id, JobRow.request).where(JobRow.state.not_in(ENDED)).order_by(JobRow.seq)
    for job_id, request in session.execute(open_jobs):
        if _refers(request, name):
            yield f"job {job_id[:8]}"
    for schedule, request in session.execute(select(ScheduleRow.name, ScheduleRow.request).order_by(ScheduleRow.seq)):
        if _refers(request, name):
            yield f"schedule {schedule}"


def _refers(request: Mapping[str, Any], name: str) -> bool:
    return bool(request["workload"].get("trace_file") == f"{UPLOADED}{name}")


def _same(row: WorkloadRow, new: NewWorkload) -> Workload:
    if row.sha256 != new.sha256:
        raise WorkloadExists(row.name, sha256=row.sha256)
    return _workload_of(row)


def _row_of(name: str, new: NewWorkload, *, created_by: str | None, now: datetime) -> WorkloadRow:
    return WorkloadRow(
        name=name,
        form=new.form,
        sha256=new.sha256,
        num_rows=new.num_rows,
        num_bytes=new.num_bytes,
        summary=dict(new.summary),
        content=new.compressed,
        created_by=created_by,
        created_at=now,
    )


def _workload_of(row: WorkloadRow) -> Workload:
    return Workload(
        name=row.name,
        form=row.form,
        sha256=row.sha256,
        num_rows=row.num_rows,
        num_bytes=row.num_bytes,
        summary=row.summary,
        created_by=row.created_by,
        created_at=row.created_at,
    )
