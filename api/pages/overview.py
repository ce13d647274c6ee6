"""`/`: the jobs, newest first, and the devices that jobs ran on."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from api.pages.rendering import page
from api.records import job_out
from api.routes.stores_of import StoresDep
from api.stores import utc_now
from probes.settings import DEVICE_KNOBS

router = APIRouter(include_in_schema=False)

MAX_JOBS = 100


@router.get("/", response_class=HTMLResponse)
def overview(request: Request, stores: StoresDep) -> HTMLResponse:
    """List the jobs, newest first, and the devices that jobs ran on."""
    now = utc_now()
    jobs = [job_out(job, now) for job in stores.jobs.list(limit=MAX_JOBS)]
    return page(request, stores, "jobs.html", {"jobs": jobs, "max_jobs": MAX_JOBS, "knobs": DEVICE_KNOBS})
