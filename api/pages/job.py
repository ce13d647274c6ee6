"""`/jobs/{job}`: one job: its front, its trials, what they were measured with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from api import schemas
from api.explanation import Explanations
from api.explanation_schemas import ExplanationOut
from api.front_words import interval_notes
from api.pages.rendering import page
from api.plot.scatter import Dot, Scatter, scatter
from api.records import front_out, job_out, trial_out
from api.routes.stores_of import StoresDep
from api.stores import utc_now
from db.job import Job
from tuner.aggregates import Aggregated, aggregated
from tuner.pareto import Front, FrontPoint, points_of
from tuner.point import OperatingPoint
from tuner.trial import Trial, TrialState

router = APIRouter(include_in_schema=False)


@router.get("/jobs/{job_id}", response_class=HTMLResponse)
def job_page(request: Request, job_id: str, stores: StoresDep) -> HTMLResponse:
    """Show one job: its front, its trials, what they were measured with."""
    job = stores.jobs.get(job_id)
    trials = stores.trials.list(job.id)
    front = stores.front(job)
    explanation = cast(Explanations, request.app.state.explanations).of(job, lambda: trials)
    return page(request, stores, "job.html", _job_context(job, trials, front, explanation))


def _job_context(job: Job, trials: Sequence[Trial], front: Front, explanation: ExplanationOut) -> dict[str, Any]:
    shown = front_out(job, front, trials, trials[0].point if trials else None)
    shown_trials = [trial_out(trial) for trial in trials]
    measured = [trial.measurement for trial in shown_trials if trial.measurement is not None]
    dots = _dots(job, trials, front)
    return {
        "job": job_out(job, utc_now()),
        "front": shown,
        "trials": shown_trials,
        "has_ties": any(point.tied_with for point in shown.points),
        "notes": interval_notes(shown.points),
        "explanation": _sentences(explanation, shown),
        "scatter": _scatter(job, dots),
        "series": sorted({dot.series for dot in dots}),
        "energy": _energy(shown, measured),
        "host": next((one.host_energy for one in measured if one.host_energy is not None), None),
        "idle_power_w": next((one.idle_power_w for one in measured if one.idle_power_w is not None), None),
        "has_clocks": any(
            conditions.mean_clock_mhz is not None for one in measured for conditions in one.energy.conditions
        ),
    }


def _sentences(explanation: ExplanationOut, front: schemas.FrontOut) -> list[str]:
    """Return what the job found; the nearest misses, which come first where there are any, have a list of their own."""
    sentences = explanation.sentences
    return sentences[1:] if front.nearest_misses else sentences


def _dots(job: Job, trials: Sequence[Trial], front: Front) -> list[Dot]:
    """Return a dot for each point, at the mean of its windows, and one for each trial whose figures are not used."""
    points = points_of(front, trials, request=job.request)
    on_front = {_key(point.trial): point for point in points}
    found = aggregated(trials, front.latency_metric, request=job.request)
    dots = [_point_dot(one, on_front.get(_key(one.trial))) for one in found]
    dots += [dot for trial in trials if trial.state is TrialState.INVALID and (dot := _invalid_dot(trial, front))]
    return dots


def _key(trial: Trial) -> tuple[int, int]:
    return (trial.number, trial.attempt)


def _point_dot(found: Aggregated, on_front: FrontPoint | None) -> Dot:
    tok_per_j, latency_ms = found.tok_per_j, found.latency_ms
    words = [f"trial {found.trial.number}: {found.point}, {tok_per_j.value:.3g} tok/J, {latency_ms.value:.3g} ms"]
    if found.num_windows > 1:
        words.append(f"mean of {found.num_windows} windows in {found.num_sessions} launches")
    if not found.is_feasible:
        words.append(next((trial.reason for trial in found.trials if trial.reason), "outside the limits"))
    if on_front is not None and on_front.tied_with:
        words.append("tied with " + ", ".join(map(str, on_front.tied_with)))
    return Dot(
        latency_ms=latency_ms.value,
        tok_per_j=tok_per_j.value,
        low=tok_per_j.low,
        high=tok_per_j.high,
        latency_low_ms=latency_ms.low,
        latency_high_ms=latency_ms.high,
        label=", ".join(words),
        series=_series(found.point),
        is_on_front=on_front is not None,
        is_leading=on_front is None or on_front.is_leading,
        state=(TrialState.COMPLETE if found.is_feasible else TrialState.INFEASIBLE).value,
    )


def _invalid_dot(trial: Trial, front: Front) -> Dot | None:
    measurement = trial.measurement
    latency = None if measurement is None else measurement.latency(front.latency_metric)
    if measurement is None or measurement.tok_per_j is None or latency is None:
        return None
    return Dot(
        latency_ms=latency.value,
        tok_per_j=measurement.tok_per_j.value,
        low=measurement.tok_per_j.low,
        high=measurement.tok_per_j.high,
        label=f"trial {trial.number}: {trial.point}, {measurement.tok_per_j.value:.3g} tok/J, {latency.value:.3g} ms, "
        f"{trial.reason}",
        series=_series(trial.point),
        is_on_front=False,
        state=trial.state.value,
    )


def _series(point: OperatingPoint) -> str:
    return str(point.as_dict().get("precision", "default"))


def _scatter(job: Job, dots: list[Dot]) -> Scatter | None:
    limits = {limit.metric: limit.bound_ms for limit in job.request.sla}
    return scatter(dots, limit_ms=limits.get(job.request.latency_metric)) if dots else None


def _energy(front: schemas.FrontOut, measured: Sequence[schemas.MeasurementOut]) -> schemas.EnergyOut | None:
    """Return where the job's energy figures come from: the same for all its trials, which run on one device."""
    if front.points:
        return front.points[0].measurement.energy
    return measured[0].energy if measured else None
