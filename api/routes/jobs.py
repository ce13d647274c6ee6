"""`/v1/jobs`: jobs, their trials and fronts. Reading only; jobs are created by the command line in this version."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api import schemas
from api.records import front_of_job, job_out, trial_out
from api.routes.stores_of import StoresDep
from api.stores import utc_now
from db.job import JobState

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


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
