"""`/v1/calendar`: what would be due by a cron line or a window of every night, before a schedule says so."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.calendar_preview import calendar
from api.calendar_schemas import CalendarOut
from api.routes.query_types import Word
from api.schedule_input import MAX_GRACE_S, MIN_GRACE_S
from api.stores import utc_now
from db.schedule import ScheduleSpec
from tuner.request import TuneRequest

router = APIRouter(prefix="/v1/calendar", tags=["schedules"])


@router.get("")
def preview_calendar(
    timezone: Annotated[Word, Query(max_length=64, description="IANA name, as Europe/Berlin")],
    cron: Annotated[Word | None, Query(max_length=100, description="five fields; instead of a window")] = None,
    start: Annotated[Word | None, Query(max_length=5, description="HH:MM, local: the window of every night")] = None,
    end: Annotated[
        Word | None, Query(max_length=5, description="HH:MM, local; before the start: on the next day")
    ] = None,
    grace_s: Annotated[float | None, Query(ge=MIN_GRACE_S, le=MAX_GRACE_S, description="as a schedule has it")] = None,
    count: Annotated[int, Query(ge=1, le=100, description="due times at most")] = 10,
) -> CalendarOut:
    """List what would be due next, with offsets, and what becomes of the runs when the clocks change next."""
    spec = ScheduleSpec(
        name="preview",
        request=TuneRequest(model="any"),
        cron=cron,
        window_start=start,
        window_end=end,
        timezone=timezone,
        grace_s=grace_s,
    )
    return calendar(spec, after=utc_now(), count=count)
