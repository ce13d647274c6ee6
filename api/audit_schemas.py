"""Who did what, as JSON. Field names are public and in docs/glossary.md."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel

from db.audit import AuditEntry


class AuditEntryOut(BaseModel):
    """One thing that somebody did."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]


class AuditOut(BaseModel):
    """A page of the audit log, newest first."""

    items: list[AuditEntryOut]
    #: Give it as `before` for the next page; null on the last one.
    next: int | None


def entry_out(entry: AuditEntry) -> AuditEntryOut:
    """Return an entry's public form."""
    return AuditEntryOut(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        subject=entry.subject,
        detail=dict(entry.detail),
    )
