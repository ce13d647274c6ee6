"""`POST /v1/jobs/estimate` and `/v1/knobs`: what a job would search and cost, and what it may ask for. Reading only."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool

from api.bodies import read_json
from api.document_bodies import body_of
from api.estimate_schemas import JobEstimateOut
from api.knob_schemas import KnobChoicesOut
from api.routes.query_types import Word
from api.routes.stores_of import StoresDep
from api.submit import PostedJob, Submissions

router = APIRouter(tags=["jobs"])

_EXAMPLE = {
    "model": "llama-3.1-8b",
    "device": "simulated:h100-sxm",
    "sla": {"ttft_p99_ms": 500, "tpot_p99_ms": 30},
    "budget": {"trials": 60},
}


@router.post("/v1/jobs/estimate", openapi_extra=body_of(PostedJob.model_json_schema(), _EXAMPLE))
async def estimate_job(request: Request, stores: StoresDep) -> JobEstimateOut:
    """Check a job as a post would, and tell what it would search and cost. Nothing is stored; a key to read will do."""
    fields = await read_json(request)
    submissions = cast(Submissions, request.app.state.submissions)
    url = str(request.base_url).rstrip("/")

    def told() -> JobEstimateOut:
        from api.estimate import estimate  # with the simulation, which a service needs when somebody asks

        posted, checked = submissions.checked(fields)
        return estimate(posted, checked, request.app.state.operator, stores, url=url)

    return await run_in_threadpool(told)


@router.get("/v1/knobs")
def list_knobs(
    request: Request,
    stores: StoresDep,
    model: Annotated[Word, Query(description="as a job names it")],
    device: Annotated[Word, Query(description="as a job names it")],
    engine: Annotated[Word | None, Query(description="as a job names it; without it, the device's usual one")] = None,
    allow_device_control: Annotated[bool, Query(description="as the job says it")] = False,
) -> KnobChoicesOut:
    """List every knob that a job of this model on this device may name, and why not for the others."""
    from api.knob_choices import knob_choices  # with the simulation, as above

    return knob_choices(
        model, device, engine, operator=request.app.state.operator, stores=stores, may_control=allow_device_control
    )
