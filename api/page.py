"""The web view: jobs and devices, and one job with its front. Server-rendered; every text is escaped by Jinja2.

Every page says which devices are blocked because what was found on them could not be put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, select_autoescape

from api import schemas
from api.plot import Dot, Scatter, scatter
from api.records import device_out, front_out, job_out, trial_out
from api.routes.stores_of import StoresDep
from api.stores import Stores, utc_now
from db.device import ControlState
from db.job import Job
from probes.settings import DEVICE_KNOBS
from tuner.pareto import Front
from tuner.trial import Trial, TrialState

router = APIRouter(include_in_schema=False)
templates = Jinja2Templates(
    env=Environment(loader=PackageLoader("api", "templates"), autoescape=select_autoescape(["html", "svg"]))
)

MAX_JOBS = 100


@router.get("/", response_class=HTMLResponse)
def index(request: Request, stores: StoresDep) -> HTMLResponse:
    """List the jobs, newest first, and the devices that jobs ran on."""
    now = utc_now()
    jobs = [job_out(job, now) for job in stores.jobs.list(limit=MAX_JOBS)]
    return _page(request, stores, "jobs.html", {"jobs": jobs, "max_jobs": MAX_JOBS, "knobs": DEVICE_KNOBS})


@router.get("/jobs/{job_id}", response_class=HTMLResponse)
def job_page(request: Request, job_id: str, stores: StoresDep) -> HTMLResponse:
    """Show one job: its front, its trials, what they were measured with."""
    job = stores.jobs.get(job_id)
    trials = stores.trials.list(job.id)
    front = stores.front(job)
    return _page(request, stores, "job.html", _job_context(job, trials, front))


def _page(request: Request, stores: Stores, name: str, context: dict[str, Any]) -> HTMLResponse:
    """Fill in a template, with what stands on every page."""
    devices = [device_out(device) for device in stores.devices.list()]
    blocked = [device for device in devices if device.control_state == ControlState.RESTORE_FAILED]
    return templates.TemplateResponse(request, name, {"devices": devices, "blocked": blocked, **context})


def _job_context(job: Job, trials: Sequence[Trial], front: Front) -> dict[str, Any]:
    shown = front_out(job, front, trials, trials[0].point if trials else None)
    shown_trials = [trial_out(trial) for trial in trials]
    measured = [trial.measurement for trial in shown_trials if trial.measurement is not None]
    dots = _dots(trials, front)
    return {
        "job": job_out(job, utc_now()),
        "front": shown,
        "trials": shown_trials,
        "scatter": _scatter(job, dots),
        "series": sorted({dot.series for dot in dots}),
        "energy": _energy(shown, measured),
        "host": next((one.host_energy for one in measured if one.host_energy is not None), None),
        "idle_power_w": next((one.idle_power_w for one in measured if one.idle_power_w is not None), None),
        "has_clocks": any(
            conditions.mean_clock_mhz is not None for one in measured for conditions in one.energy.conditions
        ),
    }


def _dots(trials: Sequence[Trial], front: Front) -> list[Dot]:
    on_front = {(trial.number, trial.attempt) for trial in front.trials}
    dots = []
    for trial in trials:
        measurement = trial.measurement
        latency = None if measurement is None else measurement.latency(front.latency_metric)
        if measurement is None or measurement.tok_per_j is None or latency is None:
            continue
        dots.append(
            Dot(
                latency_ms=latency.value,
                tok_per_j=measurement.tok_per_j.value,
                low=measurement.tok_per_j.low,
                high=measurement.tok_per_j.high,
                label=f"trial {trial.number}: {trial.point}, {measurement.tok_per_j.value:.3g} tok/J, "
                f"{latency.value:.3g} ms" + ("" if trial.state is TrialState.COMPLETE else f", {trial.reason}"),
                series=str(trial.point.as_dict().get("precision", "default")),
                is_on_front=(trial.number, trial.attempt) in on_front,
                state=trial.state.value,
            )
        )
    return dots


def _scatter(job: Job, dots: list[Dot]) -> Scatter | None:
    limits = {limit.metric: limit.bound_ms for limit in job.request.sla}
    return scatter(dots, limit_ms=limits.get(job.request.latency_metric)) if dots else None


def _energy(front: schemas.FrontOut, measured: Sequence[schemas.MeasurementOut]) -> schemas.EnergyOut | None:
    """Return where the job's energy figures come from: the same for all its trials, which run on one device."""
    if front.points:
        return front.points[0].measurement.energy
    return measured[0].energy if measured else None
