"""`/v1/jobs/{job}/front`, `/v1/fronts` and `/v1/fronts/compare`: fronts, the latest of many jobs, several side by side.

A front comes with an entity tag: who sends it back gets 304 as long as nothing changed.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import Field

from api.errors import Refusal
from api.front_answers import FrontAnswers
from api.front_comparison import Compared, compare
from api.front_schemas import ComparisonOut, FrontsOut
from api.records import listed_front_out
from api.routes.query_types import JobId, Word
from api.routes.stores_of import StoresDep, stores_of
from api.schemas import FrontOut
from db.front_lists import FrontFilter
from db.job import JobState
from db.job_filter import JobFilter

MAX_COMPARED = 8
MAX_LIMITS = 10
Bound = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]

router = APIRouter(tags=["fronts"])

_UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "unchanged since the tag in If-None-Match"}}


@router.get("/v1/jobs/{job_id}/front", response_model=FrontOut, responses=_UNCHANGED)
async def get_front(
    request: Request,
    job_id: str,
    if_none_match: Annotated[str | None, Header(description="entity tags of answers that are known")] = None,
    accept_encoding: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Show the job's front, or, when no point meets the limits, the nearest misses."""
    answers = cast(FrontAnswers, request.app.state.front_answers)
    answer = await answers.get(job_id)
    return answer.response(accept_encoding=accept_encoding, if_none_match=if_none_match)


@router.get("/v1/fronts")
def list_fronts(
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=500, description="fronts at most")] = 50,
    before: Annotated[JobId | None, Query(description="`next` of the page before")] = None,
    model: Annotated[Word | None, Query(description="only fronts of this model")] = None,
    device: Annotated[Word | None, Query(description="only fronts of jobs that name this device")] = None,
    engine: Annotated[Word | None, Query(description="only fronts of this engine")] = None,
    schedule: Annotated[Word | None, Query(description="only fronts of this schedule's nights")] = None,
    night: Annotated[Word | None, Query(description="only fronts of this local night, as 2026-03-29")] = None,
    state: Annotated[JobState | None, Query(description="only fronts of jobs in this state")] = None,
) -> FrontsOut:
    """List the latest front of each job that has one, newest job first."""
    jobs = JobFilter(state=state, model=model, device=device, engine=engine)
    only = FrontFilter(jobs=jobs, schedule=schedule, night=night)
    fronts = stores.front_lists.list(limit=limit + 1, before=before, only=only)
    return FrontsOut(
        items=[listed_front_out(front) for front in fronts[:limit]],
        next=fronts[limit - 1].job_id if len(fronts) > limit else None,
    )


@router.get("/v1/fronts/compare")
async def compare_fronts(
    request: Request,
    job: Annotated[list[JobId], Query(min_length=2, max_length=MAX_COMPARED, description="the jobs, the first first")],
    limit_ms: Annotated[
        list[Bound], Query(max_length=MAX_LIMITS, description="limits on the latency axis; else those of the jobs")
    ] = [],  # noqa: B006 -- read only
) -> ComparisonOut:
    """Hold the fronts of several jobs side by side, with what keeps them from being comparable."""
    answers = cast(FrontAnswers, request.app.state.front_answers)
    stores = await stores_of(request)
    found = [await answers.get(job_id) for job_id in job]

    def compared() -> ComparisonOut:
        fronts = [FrontOut.model_validate_json(answer.json) for answer in found]
        if len({front.job for front in fronts}) < len(fronts):
            raise Refusal(f"job is {', '.join(job)}: one job is given twice; give different ones")
        return compare([Compared(job=stores.jobs.get(front.job), front=front) for front in fronts], limit_ms)

    return await run_in_threadpool(compared)
