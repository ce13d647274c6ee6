"""`/schedules` and the pages below it: what repeats and when, what became of each night, and the form that changes it.

Changes go over the REST interface (js/schedules.mjs, js/schedule_form.mjs), which judges them. Knows nothing of how a
night is decided.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse

from api.calendar_preview import calendar
from api.calendar_schemas import CalendarOut
from api.job_fields import fields_of
from api.operator_file import Operator
from api.pages.job_choices import job_choices, permission
from api.pages.rendering import page
from api.routes.query_types import JobId
from api.routes.stores_of import StoresDep
from api.schedule_input import MAX_SCHEDULES
from api.schedule_schemas import NightOut, ScheduleOut, night_out, schedule_out
from api.stores import Stores, utc_now
from db.schedule import Schedule
from db.service import Overlap
from probes.simulated.names import is_simulated_name
from tuner.errors import InvalidRequest

router = APIRouter(include_in_schema=False)

MAX_NIGHTS = 60
_NUM_DUES = 8
_MAX_ID = 2**63 - 1
_OVERLAPS = {
    Overlap.SKIP: "skip the new night",
    Overlap.QUEUE: "let the new night wait",
    Overlap.REPLACE: "end the night before",
}
_FIRST_JOB = {
    "model": "llama-3.1-8b",
    "device": "simulated:h100-sxm",
    "sla": {"ttft_p99_ms": 500, "tpot_p99_ms": 30},
}
#: `new` is the form's address; a schedule of that name is reached by its id.
_TAKEN = "new"

ScheduleName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One schedule as lists and heads of pages show it."""

    schedule: ScheduleOut
    #: Its page.
    href: str
    when: str
    is_simulated: bool
    #: The newest; None before the first.
    night: NightOut | None


@router.get("/schedules", response_class=HTMLResponse)
def schedules_page(request: Request, stores: StoresDep) -> HTMLResponse:
    """List what repeats, with its next run and its last night."""
    now = utc_now()
    lines = [_line(stores, one, now) for one in stores.schedules.list(limit=MAX_SCHEDULES)]
    return page(request, stores, "schedules.html", {"lines": lines, **permission(request)})


@router.get("/schedules/new", response_class=HTMLResponse)
def new_schedule_page(
    request: Request, stores: StoresDep, like: Annotated[JobId | None, Query()] = None
) -> HTMLResponse:
    """Show the form of a new schedule; `?like=JOB` repeats that job. Raises JobNotFound."""
    job = _FIRST_JOB if like is None else fields_of(stores.jobs.get(like).request)
    start: dict[str, Any] = {"job": job, "nightly": {"start": "01:00", "end": "05:00"}, "overlap": Overlap.SKIP.value}
    return page(request, stores, "schedule_form.html", _form_context(request, stores, start, None))


@router.get("/schedules/{schedule}", response_class=HTMLResponse)
def schedule_page(
    request: Request,
    schedule: ScheduleName,
    stores: StoresDep,
    before: Annotated[int | None, Query(ge=1, le=_MAX_ID)] = None,
) -> HTMLResponse:
    """Show one: when it is due, what it asks for, what became of each night and what moved. Raises ScheduleNotFound."""
    found, now = stores.schedules.get(schedule), utc_now()
    nights = stores.nights.list(found.id, limit=MAX_NIGHTS + 1, before=before)
    shown = [night_out(night) for night in nights[:MAX_NIGHTS]]
    coming = _coming(found, now)
    context = {
        "line": _line(stores, found, now),
        "fields": fields_of(found.spec.request),
        "coming": coming,
        "is_zone_known": coming is not None,
        "nights": shown,
        "next": shown[-1].id if len(nights) > MAX_NIGHTS else None,
        "overlap_words": _OVERLAPS[found.spec.overlap],
        **permission(request),
    }
    return page(request, stores, "schedule.html", context)


@router.get("/schedules/{schedule}/edit", response_class=HTMLResponse)
def edit_schedule_page(request: Request, schedule: ScheduleName, stores: StoresDep) -> HTMLResponse:
    """Show the form that changes one, of the version that it has now. Raises ScheduleNotFound."""
    found = stores.schedules.get(schedule)
    return page(
        request,
        stores,
        "schedule_form.html",
        _form_context(request, stores, _fields(found), _line(stores, found, utc_now())),
    )


def _form_context(request: Request, stores: Stores, start: dict[str, Any], line: Line | None) -> dict[str, Any]:
    operator = cast(Operator, request.app.state.operator)
    return {
        "start": json.dumps(start),
        "line": line,
        "overlaps": [(overlap.value, words) for overlap, words in _OVERLAPS.items()],
        "targets": sorted(operator.targets),
        **job_choices(stores, operator),
        **permission(request),
    }


def _fields(schedule: Schedule) -> dict[str, Any]:
    """Return what a post would have to say for this schedule."""
    spec = schedule.spec
    fields: dict[str, Any] = {
        "name": spec.name,
        "job": fields_of(spec.request),
        "timezone": spec.timezone,
        "overlap": spec.overlap.value,
        "notify": list(spec.notify),
        "priority": spec.priority,
        "grace_s": spec.grace_s,
        "keep_nights": spec.keep_nights,
    }
    if spec.cron is not None:
        return fields | {"cron": spec.cron}
    return fields | {"nightly": {"start": spec.window_start, "end": spec.window_end}}


def _line(stores: Stores, schedule: Schedule, now: datetime) -> Line:
    out = schedule_out(schedule, now)
    nights = stores.nights.list(schedule.id, limit=1)
    return Line(
        schedule=out,
        href=f"/schedules/{out.id if out.name == _TAKEN else out.name}",
        when=f"{out.nightly.start} to {out.nightly.end} every night" if out.nightly else f"cron {out.cron}",
        is_simulated=is_simulated_name(out.device),
        night=night_out(nights[0]) if nights else None,
    )


def _coming(schedule: Schedule, now: datetime) -> CalendarOut | None:
    """Return when it would run next, paused or not; None where its zone is not known here."""
    after = max(now, schedule.decided_until).astimezone(UTC)
    try:
        return calendar(schedule.spec, after=after, count=_NUM_DUES)
    except InvalidRequest:
        return None
