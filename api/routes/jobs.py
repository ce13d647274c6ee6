"""`/v1/jobs`: jobs, their trials and fronts, and new jobs on simulated devices; others are for the command line."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Query, Request

from api import schemas
from api.explanation import Explanations
from api.explanation_schemas import ExplanationOut
from api.records import job_out, trial_out
from api.routes.query_types import Moment, Word
from api.routes.stores_of import StoresDep
from api.stores import utc_now
from db.job import JobState
from db.job_filter import JobFilter
from tuner.trial import TrialState

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get("")
def list_jobs(
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=500, description="jobs at most")] = 50,
    before: Annotated[str | None, Query(max_length=64, description="`next` of the page before")] = None,
    state: Annotated[JobState | None, Query(description="only jobs in this state")] = None,
    model: Annotated[Word | None, Query(description="only jobs of this model")] = None,
    device: Annotated[Word | None, Query(description="only jobs that name this device")] = None,
    engine: Annotated[Word | None, Query(description="only jobs of this engine")] = None,
    name: Annotated[Word | None, Query(description="only jobs whose name contains this")] = None,
    submitted_by: Annotated[Word | None, Query(description="only jobs that this key, or `local`, asked for")] = None,
    created_from: Annotated[Moment | None, Query(description="only jobs created at this time or later")] = None,
    created_before: Annotated[Moment | None, Query(description="only jobs created before this time")] = None,
) -> schemas.JobsOut:
    """List jobs, newest first."""
    now = utc_now()
    only = JobFilter(
        state=state, model=model, device=device, engine=engine, name_contains=name, submitted_by=submitted_by,
        created_from=created_from, created_before=created_before,
    )  # fmt: skip
    jobs = stores.jobs.list(limit=limit + 1, before=before, only=only)
    return schemas.JobsOut(
        items=[job_out(job, now) for job in jobs[:limit]],
        next=jobs[limit - 1].id if len(jobs) > limit else None,
    )


@router.get("/{job_id}")
def get_job(job_id: str, stores: StoresDep) -> schemas.JobOut:
    """Show one job, by its id or at least its first 4 characters."""
    return job_out(stores.jobs.get(job_id), utc_now())


@router.get("/{job_id}/trials")
def list_trials(
    job_id: str,
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=500, description="attempts at most")] = 100,
    after: Annotated[str, Query(pattern=r"^[0-9]{1,9}[.][0-9]{1,9}$", description="`next` of the page before")] = "0.0",
    state: Annotated[TrialState | None, Query(description="only attempts in this state")] = None,
) -> schemas.TrialsOut:
    """List the attempts of a job by number and attempt, those that run now included."""
    job = stores.jobs.get(job_id)
    number, _, attempt = after.partition(".")
    trials = stores.trials.page(job.id, limit=limit + 1, after=(int(number), int(attempt)), state=state)
    last = trials[limit - 1] if len(trials) > limit else None
    return schemas.TrialsOut(
        items=[trial_out(trial) for trial in trials[:limit]],
        next=None if last is None else f"{last.number}.{last.attempt}",
    )


@router.get("/{job_id}/explanation")
def get_explanation(request: Request, job_id: str, stores: StoresDep) -> ExplanationOut:
    """Show what the job found: the point to use, what it gains, and which knobs moved energy and latency."""
    job = stores.jobs.get(job_id)
    explanations = cast(Explanations, request.app.state.explanations)
    return explanations.of(job, lambda: stores.trials.list(job.id))
