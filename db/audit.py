"""Who did what, when: entries are added and listed, never changed.

Knows nothing of keys: an actor is a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.database import Database
from db.service_tables import AuditRow

#: Of the column; what is longer is cut, as an entry must never be the reason that something is not done.
MAX_SUBJECT = 200

Entries = list["AuditEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One thing that somebody did."""

    #: Grows; later entries have larger ones.
    id: int
    at: datetime
    #: A key's name, or `local`.
    actor: str
    #: job.create, schedule.change, key.revoke, ...
    action: str
    #: KIND/ID of what it was done to.
    subject: str
    detail: Mapping[str, Any]


class AuditStore:
    """The audit log of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def add(self, *, actor: str, action: str, subject: str, detail: Mapping[str, Any] | None = None) -> None:
        """Write down what was done, in a transaction of its own; `add_entry` does it in the caller's."""
        with self._database.transaction() as session:
            add_entry(session, now=self._now(), actor=actor, action=action, subject=subject, detail=detail)

    def list(self, *, limit: int, before: int | None = None, subject: str | None = None) -> Entries:
        """Return at most `limit` entries, newest first: older than the entry `before`, on one subject."""
        query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditRow.id < before)
        if subject is not None:
            query = query.where(AuditRow.subject == subject)
        with self._database.read() as session:
            return [_entry_of(row) for row in session.scalars(query)]


def add_entry(
    session: Session,
    *,
    now: datetime,
    actor: str,
    action: str,
    subject: str,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Write down what the caller's transaction does, so that neither is kept without the other."""
    session.add(AuditRow(at=now, actor=actor, action=action, subject=subject[:MAX_SUBJECT], detail=dict(detail or {})))


def _entry_of(row: AuditRow) -> AuditEntry:
    return AuditEntry(id=row.id, at=row.at, actor=row.actor, action=row.action, subject=row.subject, detail=row.detail)
