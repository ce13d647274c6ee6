"""`/jobs/new`: the form of a job, with what it would search and cost; `?like=JOB` begins with that job's fields.

The form is filled, checked and sent by js/new_job.mjs, with the REST interface as judge.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from api.job_fields import fields_of
from api.operator_file import Operator
from api.pages.job_choices import job_choices, permission
from api.pages.rendering import page
from api.routes.query_types import JobId, Word
from api.routes.stores_of import StoresDep
from api.stores import Stores
from api.submit import MAX_PRIORITY
from db.job import JobState
from db.job_filter import JobFilter

router = APIRouter(include_in_schema=False)

#: Jobs that a new one can begin with the results of, newest first.
_MAX_PREVIOUS = 50
#: What the form begins with where nothing else is asked for: a job that runs anywhere within a minute.
_FIRST_MODEL, _FIRST_DEVICE = "llama-3.1-8b", "simulated:h100-sxm"
_FIRST_SLA = {"ttft_p99_ms": 500, "tpot_p99_ms": 30}


@router.get("/jobs/new", response_class=HTMLResponse)
def new_job_page(
    request: Request,
    stores: StoresDep,
    like: Annotated[JobId | None, Query()] = None,
    model: Annotated[Word | None, Query()] = None,
    device: Annotated[Word | None, Query()] = None,
) -> HTMLResponse:
    """Show the form. Raises JobNotFound for a job to copy that there is not."""
    operator = cast(Operator, request.app.state.operator)
    finished = stores.jobs.list(limit=_MAX_PREVIOUS, state=JobState.FINISHED, only=JobFilter())
    context = {
        "start": json.dumps(_start(stores, like, model, device)),
        "like": None if like is None else stores.jobs.get(like),
        "previous": finished,
        "max_priority": MAX_PRIORITY,
        **job_choices(stores, operator),
        **permission(request),
    }
    return page(request, stores, "new_job.html", context)


def _start(stores: Stores, like: str | None, model: str | None, device: str | None) -> dict[str, Any]:
    """Return the fields that the form begins with."""
    if like is not None:
        job = stores.jobs.get(like)
        fields = fields_of(job.request) | ({"priority": job.priority} if job.priority else {})
    else:
        fields = {"model": _FIRST_MODEL, "device": _FIRST_DEVICE, "sla": dict(_FIRST_SLA)}
    return fields | {name: value for name, value in (("model", model), ("device", device)) if value is not None}
