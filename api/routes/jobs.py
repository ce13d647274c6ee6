"""`/v1/jobs`: jobs, their trials and fronts, and new jobs on simulated devices; others are for the command line."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import schemas
from api.explanation import explanation_of_job
from api.explanation_schemas import ExplanationOut
from api.job_schemas import JobIn
from api.records import front_of_job, job_out, trial_out
from api.routes.stores_of import StoresDep
from api.stores import utc_now
from api.submit import MAX_BODY_BYTES, REFUSALS, BodyTooLarge, ForeignOrigin, NotJsonMedia, Submissions
from db.job import JobState

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JSON_MEDIA = "application/json"


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with its blocks in their places: in the document, references would lead elsewhere."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {name: _inlined(inner, definitions) for name, inner in node.items() if name != "$defs"}
    return [_inlined(inner, definitions) for inner in node] if isinstance(node, list) else node


def _job_schema() -> dict[str, Any]:
    """Return what a posted job looks like, for the OpenAPI document: the body is read by hand, in bounds."""
    schema = JobIn.model_json_schema()
    example = {
        "model": "llama-3.1-8b",
        "device": "simulated:h100-sxm",
        "sla": {"ttft_p99_ms": 500, "tpot_p99_ms": 30},
        "budget": {"trials": 60},
    }
    media = {"schema": _inlined(schema, schema["$defs"]), "example": example}
    return {"requestBody": {"required": True, "content": {JSON_MEDIA: media}}}


def _post_answers() -> dict[int | str, dict[str, Any]]:
    """Return what a post is answered with beside a new job."""
    problems: dict[int | str, dict[str, Any]] = {
        kind.status: {"description": kind.title, "content": {"application/problem+json": {}}} for kind in REFUSALS
    }
    return problems | {200: {"model": schemas.JobOut, "description": "the job that this key made before"}}


@router.get("")
def list_jobs(
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=500, description="jobs at most")] = 50,
    state: Annotated[JobState | None, Query(description="only jobs in this state")] = None,
    before: Annotated[str | None, Query(max_length=64, description="`next` of the page before")] = None,
) -> schemas.JobsOut:
    """List jobs, newest first."""
    now = utc_now()
    jobs = stores.jobs.list(limit=limit + 1, state=state, before=before)
    return schemas.JobsOut(
        items=[job_out(job, now) for job in jobs[:limit]],
        next=jobs[limit - 1].id if len(jobs) > limit else None,
    )


@router.post("", status_code=201, openapi_extra=_job_schema(), responses=_post_answers())
async def create_job(
    request: Request,
    response: Response,
    idempotency_key: Annotated[
        str | None, Header(description="the same key and job again give the job that it first made")
    ] = None,
) -> schemas.JobOut:
    """Store a job on a simulated device, checked in full, for a worker to run."""
    body = await _body_of(request)
    submissions = cast(Submissions, request.app.state.submissions)
    job, is_new = await run_in_threadpool(submissions.submit, body, idempotency_key)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job_out(job, utc_now())


@router.get("/{job_id}")
def get_job(job_id: str, stores: StoresDep) -> schemas.JobOut:
    """Show one job, by its id or at least its first 4 characters."""
    return job_out(stores.jobs.get(job_id), utc_now())


@router.get("/{job_id}/trials")
def list_trials(job_id: str, stores: StoresDep) -> schemas.TrialsOut:
    """List every attempt of a job, those that run now included."""
    job = stores.jobs.get(job_id)
    return schemas.TrialsOut(items=[trial_out(trial) for trial in stores.trials.list(job.id)])


@router.get("/{job_id}/front")
def get_front(job_id: str, stores: StoresDep) -> schemas.FrontOut:
    """Show the job's front, or, when no point meets the limits, the nearest misses."""
    return front_of_job(stores, job_id)


@router.get("/{job_id}/explanation")
def get_explanation(job_id: str, stores: StoresDep) -> ExplanationOut:
    """Show what the job found: the point to use, what it gains, and which knobs moved energy and latency."""
    return explanation_of_job(stores, job_id)


async def _body_of(request: Request) -> bytes:
    """Return the body of a post, read no further than it may be long.

    Raises ForeignOrigin and NotJsonMedia, so that no page of another site can post here, not even by a plain form;
    BodyTooLarge.
    """
    origin, host = request.headers.get("origin"), request.headers.get("host")
    if origin is not None and origin.partition("://")[2] != host:
        raise ForeignOrigin(f"Origin is {origin!r}: pages of other sites may not post jobs; use a program, as curl")
    media = request.headers.get("content-type", "")
    if media.partition(";")[0].strip().lower() != JSON_MEDIA:
        raise NotJsonMedia(f"Content-Type is {media!r}: jobs come as {JSON_MEDIA}; say so in the header")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes; is it a job?")
    return bytes(body)
