"""When something is due by a calendar, and what the clocks do meanwhile, as JSON. Names are in docs/glossary.md."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from api.schedule_schemas import DueOut


class ClockChangeOut(BaseModel):
    """A change of a zone's clocks, and the run that it falls into or that follows it within a day."""

    changes_at: datetime
    #: Of local time to UTC, as +01:00.
    offset_before: str
    offset_after: str
    #: Null where nothing is due about then.
    due: DueOut | None
    #: What becomes of that run.
    words: str


class CalendarOut(BaseModel):
    """What is due next by a cron line or in a window of every night."""

    timezone: str
    items: list[DueOut]
    #: The next two; none in zones whose clocks stay.
    clock_changes: list[ClockChangeOut]
