"""`/jobs`: every job, filtered and in an order of choice; what is asked for stands in the address."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BeforeValidator, StringConstraints

from api.pages.job_lines import follow_words, job_line
from api.pages.rendering import page
from api.routes.stores_of import StoresDep
from api.stores import utc_now
from db.job import JobState
from db.job_filter import JobFilter
from db.job_lists import JobOrder

router = APIRouter(include_in_schema=False)

PAGE_SIZE = 50


def _or_none(text: object) -> object:
    """Take a field of a form that was left empty for one that was not sent."""
    return None if isinstance(text, str) and not text.strip() else text


#: As `query_types.Word`, from a form whose fields may be empty; PostgreSQL keeps no NUL.
_Word = Annotated[
    Annotated[str, StringConstraints(strip_whitespace=True, max_length=300, pattern=r"^[^\x00]*$")] | None,
    BeforeValidator(_or_none),
]


@router.get("/jobs", response_class=HTMLResponse)
def jobs_page(
    request: Request,
    stores: StoresDep,
    text: Annotated[_Word, Query()] = None,
    model: Annotated[_Word, Query()] = None,
    device: Annotated[_Word, Query()] = None,
    state: Annotated[Annotated[JobState | None, BeforeValidator(_or_none)], Query()] = None,
    order: Annotated[JobOrder, Query()] = JobOrder.NEWEST,
    after: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """List jobs."""
    now = utc_now()
    only = JobFilter(text=text, model=model, device=device, state=state)
    found = stores.job_lists.page(limit=PAGE_SIZE + 1, only=only, order=order, after=after)
    lines = [job_line(one, now) for one in found[:PAGE_SIZE]]
    running = [line.job.id for line in lines if line.job.state == JobState.RUNNING]
    asked = {"text": text, "model": model, "device": device, "state": state.value if state else None}
    context: dict[str, Any] = {
        "lines": lines,
        "asked": asked,
        "is_filtered": any(asked.values()),
        "order": order.value,
        "states": [one.value for one in JobState],
        "models": stores.job_lists.models(),
        "device_names": stores.job_lists.devices(),
        "counts": stores.counts.jobs(),
        "address": lambda **changes: _address(asked | {"order": order.value} | changes),
        "next": lines[-1].job.id if len(found) > PAGE_SIZE else None,
        "is_first": after is None,
        "follow": follow_words(stores, running),
    }
    return page(request, stores, "jobs.html", context)


def _address(asked: dict[str, str | None]) -> str:
    """Return the address of a list; what is as without asking is left out."""
    said = {name: value for name, value in asked.items() if value and (name, value) != ("order", JobOrder.NEWEST)}
    return f"/jobs?{urlencode(said)}" if said else "/jobs"
