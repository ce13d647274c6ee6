"""The web view: the list of jobs, and one job with its front. Server-rendered; every text is escaped by Jinja2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, select_autoescape

from api import schemas
from api.plot import Dot, Scatter, scatter
from api.records import front_out, job_out, trial_out
from api.routes.stores_of import StoresDep
from api.stores import utc_now
from db.job import Job
from tuner.pareto import Front
from tuner.trial import Trial, TrialState

router = APIRouter(include_in_schema=False)
templates = Jinja2Templates(
    env=Environment(loader=PackageLoader("api", "templates"), autoescape=select_autoescape(["html", "svg"]))
)

MAX_JOBS = 100


@router.get("/", response_class=HTMLResponse)
def index(request: Request, stores: StoresDep) -> HTMLResponse:
    """List the jobs, newest first."""
    now = utc_now()
    jobs = [job_out(job, now) for job in stores.jobs.list(limit=MAX_JOBS)]
    return templates.TemplateResponse(request, "jobs.html", {"jobs": jobs, "max_jobs": MAX_JOBS})


@router.get("/jobs/{job_id}", response_class=HTMLResponse)
def job_page(request: Request, job_id: str, stores: StoresDep) -> HTMLResponse:
    """Show one job: its front, its trials, what they were measured with."""
    job = stores.jobs.get(job_id)
    trials = stores.trials.list(job.id)
    front = stores.front(job)
    return templates.TemplateResponse(request, "job.html", _job_context(job, trials, front))


def _job_context(job: Job, trials: Sequence[Trial], front: Front) -> dict[str, Any]:
    shown = front_out(job, front, trials, trials[0].point if trials else None)
    dots = _dots(trials, front)
    return {
        "job": job_out(job, utc_now()),
        "front": shown,
        "trials": [trial_out(trial) for trial in trials],
        "scatter": _scatter(job, dots),
        "series": sorted({dot.series for dot in dots}),
        "energy": _energy(shown, trials),
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


def _energy(front: schemas.FrontOut, trials: Sequence[Trial]) -> schemas.EnergyOut | None:
    """Return where the job's energy figures come from: the same for all its trials, which run on one device."""
    if front.points:
        return front.points[0].measurement.energy
    measured = (trial_out(trial).measurement for trial in trials if trial.measurement is not None)
    return next((measurement.energy for measurement in measured if measurement is not None), None)
