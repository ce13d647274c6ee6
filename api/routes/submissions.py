"""`POST /v1/jobs` and `/v1/jobs/{job_id}/cancel`: what callers ask of the queue. Reading is in `jobs`."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import schemas
from api.access import actor_of, needs
from api.bodies import read_json
from api.document_bodies import body_of
from api.records import job_out
from api.routes.stores_of import StoresDep
from api.stores import utc_now
from api.submit import REFUSALS, PostedJob, Submissions
from db.service import Scope

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


def _job_schema() -> dict[str, Any]:
    """Return what a posted job looks like, for the OpenAPI document: the body is read by hand, in bounds."""
    example = {
        "model": "llama-3.1-8b",
        "device": "simulated:h100-sxm",
        "sla": {"ttft_p99_ms": 500, "tpot_p99_ms": 30},
        "budget": {"trials": 60},
    }
    return body_of(PostedJob.model_json_schema(), example)


def _post_answers() -> dict[int | str, dict[str, Any]]:
    """Return what a post is answered with beside a new job."""
    problems: dict[int | str, dict[str, Any]] = {kind.status: {"description": kind.title} for kind in REFUSALS}
    return problems | {200: {"model": schemas.JobOut, "description": "the job that this key made before"}}


@router.post(
    "", status_code=201, openapi_extra=_job_schema(), responses=_post_answers(), dependencies=[needs(Scope.TUNE)]
)
async def create_job(
    request: Request,
    response: Response,
    idempotency_key: Annotated[
        str | None, Header(description="the same key and job again give the job that it first made")
    ] = None,
) -> schemas.JobOut:
    """Store a job for a worker to run: on a simulated device, or on one that the operator named."""
    fields = await read_json(request)
    submissions = cast(Submissions, request.app.state.submissions)
    job, is_new = await run_in_threadpool(submissions.submit, fields, idempotency_key, actor=actor_of(request))
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_out(job, utc_now())


@router.post("/{job_id}/cancel", dependencies=[needs(Scope.TUNE)])
def cancel_job(request: Request, job_id: str, stores: StoresDep) -> schemas.JobOut:
    """End a job, in the midst of its window if it runs. What it measured is kept."""
    job = stores.jobs.get(job_id)
    if not job.has_ended:
        job = stores.jobs.request_cancel(job.id)
        detail = {"state": job.state.value}
        stores.audit.add(actor=actor_of(request), action="job.cancel", subject=f"job/{job.id}", detail=detail)
    return job_out(job, utc_now())
