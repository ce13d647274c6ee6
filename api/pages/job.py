"""`/jobs/{job}`: one job: its front, the point to use, its trials, what they were measured with.

The first paint has everything that is told of the front; of the trials it has none, as there may be ten thousand. The
page's modules ask for those. Knows no chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse

from api import schemas
from api.export.forms import LAUNCHING
from api.front_answers import FrontAnswers
from api.front_words import interval_notes
from api.pages.rendering import page
from api.quality_words import quality_notes
from api.records import job_out, trial_out
from api.routes.stores_of import StoresDep
from api.stores import Stores, utc_now
from db.job import Job, JobState
from tuner.knobs import OPENAI, SIMULATED
from tuner.trial import OUTCOMES, TrialState

router = APIRouter(include_in_schema=False)

#: Of a point, as commands and files: by name of the form, what a tab calls it.
COMMANDS = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "dynamo": "Dynamo", "systemd": "clocks"}
#: The same as data.
FILES = {"json": "JSON", "csv": "CSV", "mlperf": "MLPerf"}
#: States in the order that they are told in.
STATES = ("complete", "infeasible", "invalid", "failed", "interrupted", "running")
_WITH_MEASUREMENT = (TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.INVALID)


@router.get("/jobs/{job_id}", response_class=HTMLResponse)
async def job_page(request: Request, job_id: str, stores: StoresDep) -> HTMLResponse:
    """Show one job: its front, the point to use, its trials, what they were measured with."""
    answer = await cast(FrontAnswers, request.app.state.front_answers).get(job_id)
    front = schemas.FrontOut.model_validate_json(answer.json)

    def rendered() -> HTMLResponse:
        last_event = stores.events.last_id(front.job)  # before the job: of what comes between the page is told again
        context = _context(stores, stores.jobs.get(front.job), front)
        return page(request, stores, "job.html", {**context, "last_event": last_event})

    return await run_in_threadpool(rendered)


def _context(stores: Stores, job: Job, front: schemas.FrontOut) -> dict[str, Any]:
    shown = job_out(job, utc_now())
    measured = _measured(stores, job, front)
    energy = measured[0].energy if measured else None
    return {
        "job": shown,
        "front": front,
        "best": best_of(front.points),
        "axis": axis_words(front.latency_metric),
        "limit_ms": shown.sla.get(front.latency_metric),
        "has_ties": any(point.tied_with for point in front.points),
        "notes": [*interval_notes(front.points), *quality_notes(front.points)],
        "counts": [(state, shown.trials[state]) for state in STATES if shown.trials.get(state)],
        "num_done": sum(count for state, count in shown.trials.items() if state in OUTCOMES),
        "is_active": job.state in (JobState.QUEUED, JobState.RUNNING),
        "is_simulated": shown.engine == SIMULATED,
        "is_estimate": energy is not None and energy.is_estimate,
        "energy": energy,
        "host": next((one.host_energy for one in measured if one.host_energy is not None), None),
        "has_clocks": any(one.mean_clock_mhz is not None for found in measured for one in found.energy.conditions),
        "idle_power_w": next((one.idle_power_w for one in measured if one.idle_power_w is not None), None),
        "commands": _commands_of(shown.engine),
        "files": FILES,
        "form": _form_of(shown.engine),
    }


def best_of(points: Sequence[schemas.PointOut]) -> schemas.PointOut | None:
    """Return the point with the most tokens per joule, of equals the one with the most throughput.

    As `api.recommend` chooses; static/js/recommendation.mjs does the same inside a limit.
    """
    return max(points, key=lambda point: (point.tok_per_j.value, point.output_tok_s.value), default=None)


def axis_words(metric: str) -> str:
    """Return a latency metric for people: `TPOT p99`."""
    latency, statistic, _ = metric.split("_")
    return f"{latency.upper() if latency != 'e2e' else 'end to end'} {statistic}"


def _commands_of(engine: str) -> dict[str, str]:
    """Return the forms that are commands; no command starts a server that ran already."""
    return {name: words for name, words in COMMANDS.items() if engine != OPENAI or name not in LAUNCHING}


def _form_of(engine: str) -> str:
    """Return the form of export that is shown first: that of the job's engine where there is one."""
    commands = _commands_of(engine)
    return engine if engine in commands else next(iter(commands))


def _measured(stores: Stores, job: Job, front: schemas.FrontOut) -> list[schemas.MeasurementOut]:
    """Return the front's measurements, or one of a trial that is on no front: energy is told the same way for all."""
    if front.points:
        return [point.measurement for point in front.points]
    for state in _WITH_MEASUREMENT:
        found = [trial_out(trial).measurement for trial in stores.trials.page(job.id, limit=1, state=state)]
        if found and found[0] is not None:
            return [found[0]]
    return []
