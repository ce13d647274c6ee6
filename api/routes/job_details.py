"""`/v1/jobs/{job}/trials/{number}` and `/v1/jobs/{job}/file`: one trial with its power trace, and the job as a file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from api.errors import Refusal
from api.figures_schemas import TraceOut, TrialDetailOut
from api.job_fields import fields_of, yaml_of
from api.records import trial_out
from api.routes.query_types import JobId
from api.routes.stores_of import StoresDep
from tuner.measurement import Measurement

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

YAML_MEDIA = "application/yaml"
_LARGEST = 2**31 - 1


class TrialNotFound(Refusal):
    """Ask for `/v1/jobs/{job}/trials`: it lists the trials that the job has."""

    status = 404
    title = "no such trial"


@router.get("/{job_id}/trials/{number}")
def get_trial(
    job_id: JobId,
    number: Annotated[int, Path(ge=0, le=_LARGEST)],
    stores: StoresDep,
    attempt: Annotated[int | None, Query(ge=1, le=_LARGEST, description="by default the last one")] = None,
) -> TrialDetailOut:
    """Show one attempt at a point with everything measured, and the power over its window."""
    job = stores.jobs.get(job_id)
    attempts = [one for one in stores.trials.of_number(job.id, number) if attempt in (None, one.attempt)]
    if not attempts:
        which = f"trial {number}" if attempt is None else f"attempt {attempt} of trial {number}"
        raise TrialNotFound(f"job {job.id[:8]} has no {which}; its trials are listed at /v1/jobs/{job.id[:8]}/trials")
    trial = attempts[-1]
    trace = None if trial.measurement is None else trace_out(trial.measurement)
    return TrialDetailOut(**trial_out(trial).model_dump(), job=job.id, trace=trace)


@router.get("/{job_id}/file", response_class=Response, responses={200: {"content": {YAML_MEDIA: {}}}})
def get_job_file(job_id: JobId, stores: StoresDep) -> Response:
    """Write the job as the file that `wattfront tune` takes, without what has its usual value."""
    job = stores.jobs.get(job_id)
    headers = {"Content-Disposition": f'inline; filename="wattfront-{job.id[:8]}.yaml"'}
    return Response(yaml_of(fields_of(job.request)), media_type=f"{YAML_MEDIA}; charset=utf-8", headers=headers)


def trace_out(measurement: Measurement) -> TraceOut | None:
    """Return the power over a window, from the window's start; None where none was kept."""
    reading = measurement.reading
    if not reading.trace:
        return None
    return TraceOut(
        time_s=[sample.time_s - reading.start_s for sample in reading.trace],
        power_w=[sample.power_w for sample in reading.trace],
    )
