"""Which jobs a list shows. Knows nothing of pages or order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, func, or_

from db.job import JobState
from db.tables import JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """What a listed job has; None asks for nothing."""

    state: JobState | None = None
    #: These three as the request names them.
    model: str | None = None
    device: str | None = None
    engine: str | None = None
    #: Part of its name, in any case of ASCII letters.
    name_contains: str | None = None
    #: Part of name, model or device in any case of ASCII letters, or how the id begins.
    text: str | None = None
    submitted_by: str | None = None
    #: Created at this instant or later, and before that one.
    created_from: datetime | None = None
    created_before: datetime | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return what a query for jobs has to hold."""
        found: list[ColumnElement[bool]] = []
        for column, value in (
            (JobRow.state, self.state),
            (JobRow.model, self.model),
            (JobRow.device, self.device),
            (JobRow.engine, self.engine),
            (JobRow.submitted_by, self.submitted_by),
        ):
            if value is not None:
                found.append(column == value)
        if self.name_contains is not None:
            found.append(func.lower(JobRow.name).contains(self.name_contains.lower(), autoescape=True))
        if self.text is not None:
            found.append(_has_text(self.text.lower()))
        if self.created_from is not None:
            found.append(JobRow.created_at >= self.created_from)
        if self.created_before is not None:
            found.append(JobRow.created_at < self.created_before)
        return found


def _has_text(text: str) -> ColumnElement[bool]:
    columns = (JobRow.name, JobRow.model, JobRow.device)
    return or_(
        JobRow.id.startswith(text, autoescape=True),
        *(func.lower(column).contains(text, autoescape=True) for column in columns),
    )
