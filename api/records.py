"""Stored records as their public JSON: the only place that knows both. For the HTTP service and the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime

from api import schemas
from api.front_schemas import ListedFrontOut
from api.packing import pack
from api.stores import Stores
from db.device import SeenDevice
from db.front_documents import FrontDocument
from db.front_lists import ListedFront
from db.job import Job
from probes.device import Conditions, Reading
from tuner.aggregates import Aggregated, aggregated, origin_of
from tuner.knobs import SIMULATED
from tuner.measurement import Distribution, Estimate, Measurement
from tuner.objectives import violations
from tuner.pareto import Front, FrontPoint, points_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.trial import Trial, TrialState

#: Nearest points shown when none meets the limits.
MAX_MISSES = 3


def job_out(job: Job, now: datetime) -> schemas.JobOut:
    """Return a job's public form."""
    request = job.request
    return schemas.JobOut(
        id=job.id,
        name=job.name,
        state=job.state.value,
        is_interrupted=job.is_interrupted(now),
        model=request.model,
        engine=request.engine,
        device=request.device,
        device_uuid=job.device_uuid,
        previous_job=job.previous_job_id,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        ended_because=job.ended_because,
        message=job.message,
        trials={state.value: count for state, count in job.num_trials.items()},
        budget_trials=request.budget.trials,
        front_size=job.front_size,
        latency_metric=request.latency_metric,
        sla={limit.metric: limit.bound_ms for limit in request.sla},
        knobs={knob.name: list(knob.values) for knob in request.knobs},
        priority=job.priority,
        submitted_by=job.submitted_by,
        num_lost=job.num_lost,
    )


def trial_out(trial: Trial) -> schemas.TrialOut:
    """Return a trial's public form."""
    return schemas.TrialOut(
        number=trial.number,
        attempt=trial.attempt,
        knobs=trial.point.as_dict(),
        state=trial.state.value,
        reason=trial.reason,
        detail=trial.detail,
        started_at=trial.started_at,
        finished_at=trial.finished_at,
        role=trial.role.value,
        session=trial.session,
        device_s=trial.device_s,
        device_j=trial.device_j,
        reused_from=trial.reused_from,
        measurement=None if trial.measurement is None else measurement_out(trial.measurement),
    )


def front_of_job(stores: Stores, job_id: str) -> schemas.FrontOut:
    """Return the public form of a job's front as it is now; the job's first trial is its default point."""
    job = stores.jobs.get(job_id)
    trials = stores.trials.history(job.id)
    return front_out(job, stores.front(job), trials, trials[0].point if trials else None)


def front_document(job: Job, front: Front, trials: Sequence[Trial]) -> FrontDocument:
    """Return the form of a front that is stored: it is shown once the job has ended, whatever it does now."""
    shown = front_out(job, front, trials, trials[0].point if trials else None, is_final=True)
    return FrontDocument(body=pack(shown.model_dump_json().encode()), version=schemas.FRONT_VERSION)


def front_out(
    job: Job,
    front: Front,
    trials: Sequence[Trial],
    default_point: OperatingPoint | None,
    *,
    is_final: bool | None = None,
) -> schemas.FrontOut:
    """Return a front's public form; the default point gives the gains their reference.

    Of windows that were cut no gain is told, and every point says so. Without `is_final` the job's state tells.
    """
    points = points_of(front, trials, request=job.request)
    reference, is_cut = _tok_per_j_of(job.request, trials, default_point, front)
    return schemas.FrontOut(
        job=job.id,
        model=job.request.model,
        is_simulated=job.request.engine == SIMULATED,
        latency_metric=front.latency_metric,
        hypervolume=front.hypervolume,
        latency_reference_ms=front.latency_reference_ms,
        is_final=job.has_ended if is_final is None else is_final,
        points=[_point_out(point, reference, is_reference_cut=is_cut) for point in points],
        nearest_misses=[] if front.trials else nearest_misses(job.request, trials),
    )


def listed_front_out(front: ListedFront) -> ListedFrontOut:
    """Return a front's public form as a line of a list."""
    return ListedFrontOut(
        job=front.job_id,
        name=front.job_name,
        state=front.job_state.value,
        model=front.model,
        engine=front.engine,
        device=front.device,
        is_simulated=front.engine == SIMULATED,
        created_at=front.created_at,
        latency_metric=front.latency_metric,
        hypervolume=front.hypervolume,
        latency_reference_ms=front.latency_reference_ms,
        num_points=front.num_points,
        schedule=front.schedule_name,
        night=front.night,
    )


def nearest_misses(request: TuneRequest, trials: Sequence[Trial]) -> list[schemas.MissOut]:
    """Return the infeasible points that miss their worst limit by least, each by the first trial that showed it.

    A window that was cut shows only the least that its limit is missed by. So whole windows come first, among a
    point's and among points.
    """
    misses: dict[OperatingPoint, schemas.MissOut] = {}
    for trial in trials:
        miss = _miss(request, trial)
        known = misses.get(trial.point)
        if miss is not None and (known is None or known.is_cut > miss.is_cut):
            misses[trial.point] = miss
    return sorted(misses.values(), key=lambda miss: (miss.is_cut, miss.missed_by, miss.trial))[:MAX_MISSES]


def _miss(request: TuneRequest, trial: Trial) -> schemas.MissOut | None:
    """Return what an infeasible trial misses; None where it is no limit of the request."""
    if trial.state is not TrialState.INFEASIBLE or trial.measurement is None:
        return None
    shares, cut_by = violations(request, trial.measurement), trial.measurement.cut_by
    worst = max(shares.values(), default=0.0)
    if worst <= 0 and cut_by not in shares:
        return None
    return schemas.MissOut(
        trial=trial.number,
        knobs=trial.point.as_dict(),
        detail=trial.detail or "",
        missed_by=max(worst, 0.0),
        is_cut=cut_by is not None,
    )


def measurement_out(measurement: Measurement) -> schemas.MeasurementOut:
    """Return a measurement's public form."""
    return schemas.MeasurementOut(
        window_s=measurement.window_s,
        warmup_s=measurement.warmup_s,
        output_tokens=measurement.output_tokens,
        prompt_tokens=measurement.prompt_tokens,
        num_finished=measurement.num_finished,
        num_failed=measurement.num_failed,
        num_preemptions=measurement.num_preemptions,
        mean_running=measurement.mean_running,
        output_tok_s=_estimate(measurement.output_tok_s),
        tok_per_j=estimate_out(measurement.tok_per_j),
        j_per_tok=estimate_out(measurement.j_per_tok),
        mean_power_w=measurement.mean_power_w,
        ttft_ms=_distribution(measurement.ttft),
        tpot_ms=_distribution(measurement.tpot),
        itl_ms=_distribution(measurement.itl),
        e2e_ms=_distribution(measurement.e2e),
        energy=energy_out(measurement.reading),
        host_energy=None if measurement.host is None else energy_out(measurement.host),
        idle_power_w=measurement.idle_power_w,
        quality=None if measurement.quality is None else schemas.QualityOut(**dataclasses.asdict(measurement.quality)),
        engine=dataclasses.asdict(measurement.engine),
        cut_by=measurement.cut_by,
        reasons=list(measurement.reasons),
    )


def energy_out(reading: Reading) -> schemas.EnergyOut:
    """Return a reading's public form."""
    return schemas.EnergyOut(
        energy_j=reading.energy_j,
        uncertainty_j=reading.uncertainty_j,
        duration_s=reading.duration_s,
        mean_power_w=reading.mean_power_w,
        scope=reading.scope.value,
        method=reading.method.value,
        detail=reading.detail,
        is_estimate=reading.is_estimate,
        device_uuids=list(reading.device_uuids),
        reasons=[str(reason) for reason in reading.reasons],
        notes=[str(note) for note in reading.notes],
        conditions=[_conditions_out(conditions) for conditions in reading.conditions],
    )


def estimate_out(estimate: Estimate | None) -> schemas.EstimateOut | None:
    """Return a figure's public form; None stays None."""
    return None if estimate is None else _estimate(estimate)


def device_out(device: SeenDevice) -> schemas.DeviceOut:
    """Return a device's public form."""
    return schemas.DeviceOut(
        uuid=device.info.uuid,
        name=device.info.name,
        kind=device.info.kind.value,
        driver=device.info.driver,
        details=dict(device.info.details),
        capabilities=[schemas.CapabilityOut(**dataclasses.asdict(one)) for one in device.capabilities],
        first_seen=device.first_seen,
        last_seen=device.last_seen,
        control_state=device.control_state.value,
        control_detail=device.control_detail,
    )


def _conditions_out(conditions: Conditions) -> schemas.ConditionsOut:
    fields = dataclasses.asdict(conditions)
    fields["event_shares"] = [{"event": event, "share": share} for event, share in conditions.event_shares]
    return schemas.ConditionsOut(**fields)


def _point_out(point: FrontPoint, reference: float | None, *, is_reference_cut: bool) -> schemas.PointOut:
    measurement, found = point.trial.measurement, point.aggregated
    assert measurement is not None  # a front holds only trials with front figures
    return schemas.PointOut(
        trial=point.trial.number,
        knobs=point.trial.point.as_dict(),
        tok_per_j=_estimate(found.tok_per_j),
        latency_ms=_estimate(found.latency_ms),
        output_tok_s=_estimate(found.mean(lambda one: one.output_tok_s)),
        mean_power_w=_mean_power_w(found),
        energy_scope=measurement.reading.scope.value,
        energy_method=measurement.reading.method.value,
        is_estimate=measurement.reading.is_estimate,
        gain_over_default=found.tok_per_j.value / reference if reference else None,
        num_windows=found.num_windows,
        num_sessions=found.num_sessions,
        interval_of=found.interval_of.value,
        tied_with=list(point.tied_with),
        is_leading=point.is_leading,
        note="; ".join(_notes(found, is_reference_cut=is_reference_cut)) or None,
        measurement=measurement_out(measurement),
    )


def _mean_power_w(point: Aggregated) -> float | None:
    measured = [trial.measurement for trial in point.trials if trial.measurement is not None]
    if any(one.mean_power_w is None for one in measured):
        return None
    return point.mean(lambda one: Estimate(one.mean_power_w or 0.0)).value


def _notes(point: Aggregated, *, is_reference_cut: bool) -> list[str]:
    notes = ["no gain over the default point is told: all windows of that were cut"] if is_reference_cut else []
    if point.left_out is not None:
        return [f"windows left out, {point.left_out}", *notes]
    return ["the baseline's drift is divided out", *notes] if point.is_corrected else notes


def _tok_per_j_of(
    request: TuneRequest, trials: Sequence[Trial], point: OperatingPoint | None, front: Front
) -> tuple[float | None, bool]:
    """Return a point's tokens per joule as the front's are: over its windows, of the same origin, without drift.

    Where its windows must not be used, the first that has a figure stands in, so that a gain can be told at all. What
    was cut has none; the second value says that this is why.
    """
    origins = {origin_of(trial) for trial in front.trials}
    for found in aggregated(trials, front.latency_metric, request=request):  # all of them: drift shows in the others
        if found.point == point and found.origin in origins:
            return (None, True) if found.is_cut else (found.tok_per_j.value, False)
    shown = [trial.measurement for trial in trials if trial.point == point and trial.measurement is not None]
    figures = [one.tok_per_j.value for one in shown if one.tok_per_j is not None and one.cut_by is None]
    return next(iter(figures), None), not figures and any(one.cut_by is not None for one in shown)


def _estimate(estimate: Estimate) -> schemas.EstimateOut:
    return schemas.EstimateOut(value=estimate.value, low=estimate.low, high=estimate.high)


def _distribution(distribution: Distribution) -> schemas.DistributionOut:
    figures = {name: estimate_out(getattr(distribution, name)) for name in ("mean", "p50", "p90", "p95", "p99")}
    return schemas.DistributionOut(count=distribution.count, **figures)
