"""A point that a finished job found, with all that is needed to judge, explain and run it, without its windows.

Figures are those of all windows of a point together (`tuner.aggregates`). Knows nothing of SQL, nor of what is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial

from probes.device import Reading
from tuner.aggregates import Aggregated
from tuner.knobs import SIMULATED
from tuner.measurement import Estimate, Measurement, Quality
from tuner.pareto import Front
from tuner.point import OperatingPoint
from tuner.request import LATENCY_METRICS, TuneRequest, WorkloadSpec
from tuner.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A latency in milliseconds by its name, as ttft_p99_ms."""

    name: str
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultGain:
    """What the point has over the default point of its job: ratios of tokens per joule."""

    #: Of the default point.
    number: int
    ratio: float
    #: What the intervals of both leave open; None where one of them is not known.
    low: float | None
    high: float | None
    is_told_apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where a point's figures come from, and how certain they are."""

    tok_per_j: Estimate
    output_tok_s: Estimate
    latencies: tuple[Figure, ...]
    #: What the intervals speak of: scatter inside the only window, or between sessions.
    interval_of: str
    num_windows: int
    num_sessions: int
    #: Measured seconds in all.
    window_s: float
    scope: str
    method: str
    #: The counter, field or formula behind the energy figure.
    detail: str
    device_uuids: tuple[str, ...]
    driver: str | None
    engine: str
    engine_version: str
    model_hash: str
    quality: Quality | None
    #: None without figures of the default point.
    gain: DefaultGain | None
    workload: WorkloadSpec
    #: Longest prompt plus output, in tokens; None for a recorded trace.
    max_context: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A point of a job: measured, valid, inside the limits that the job had."""

    job_id: str
    #: Of the trial that stands for it.
    number: int
    point: OperatingPoint
    is_front: bool
    is_default: bool
    is_simulated: bool
    is_estimate: bool
    tok_per_j: float
    output_tok_s: float
    mean_power_w: float
    #: See `quality_share`.
    quality: float | None
    measured_at: datetime
    evidence: Evidence

    def latency_ms(self, metric: str) -> float | None:
        """Return a latency in milliseconds by name; None where it is not known."""
        return next((one.estimate.value for one in self.evidence.latencies if one.name == metric), None)


def results_of(job_id: str, request: TuneRequest, trials: Sequence[Trial], front: Front) -> list[Result]:
    """Return every distinct point of a job that is inside its limits by whole windows, in the order of their trials.

    Only points that were measured like the newest one are among them, as on a front: figures of another driver, meter
    or version are not comparable.
    """
    # Here and below: what reads stored results needs no statistics of explanations.
    from tuner.explain import comparable, default_trial

    points = comparable(request, trials)
    default = default_trial(request, trials)
    reference = next((one for one in points if default is not None and one.point == default.point), None)
    leading = {trial.point for trial in front.trials}
    return [
        _result(job_id, request, one, reference, is_front=one.point in leading)
        for one in points
        if one.is_feasible and not one.is_cut and _mean_power_w(one) is not None
    ]


def workload_key(workload: WorkloadSpec) -> str:
    """Return the SHA-256 of a workload's description, in hexadecimal; of a trace's file only the name counts."""
    canonical = json.dumps(asdict(workload), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def quality_share(quality: Quality | None) -> float | None:
    """Return the share of the widest precision's quality that a precision keeps, up to 1; None where nobody knows.

    It is the smallest of the shares that were measured: of positions at which both name the same token (top-1
    agreement), and of the reference's score on each task. MLPerf asks for 0.99 or 0.999 of such a share.
    """
    if quality is None:
        return None
    shares = [one.share for one in quality.tasks]
    if quality.top1_agreement is not None:
        shares.append(quality.top1_agreement)
    return min(1.0, *shares) if shares else None


def _result(
    job_id: str, request: TuneRequest, point: Aggregated, reference: Aggregated | None, *, is_front: bool
) -> Result:
    from tuner.explain import throughput

    measurement = _measurement(point)
    power_w = _mean_power_w(point)
    assert power_w is not None  # results_of leaves points without it out
    return Result(
        job_id=job_id,
        number=point.trial.number,
        point=point.point,
        is_front=is_front,
        is_default=reference is not None and point.point == reference.point,
        is_simulated=request.engine == SIMULATED,
        is_estimate=measurement.reading.is_estimate,
        tok_per_j=point.tok_per_j.value,
        output_tok_s=throughput(point).value,
        mean_power_w=power_w,
        quality=quality_share(measurement.quality),
        measured_at=max(trial.finished_at or trial.started_at for trial in point.trials),
        evidence=_evidence(request, point, reference, measurement.reading),
    )


def _evidence(request: TuneRequest, point: Aggregated, reference: Aggregated | None, reading: Reading) -> Evidence:
    from tuner.explain import throughput

    measurement = _measurement(point)
    workload = request.workload
    longest = workload.prompt_tokens[1] + workload.output_tokens[1]
    return Evidence(
        tok_per_j=point.tok_per_j,
        output_tok_s=throughput(point),
        latencies=_latencies(point, request.latency_metric),
        interval_of=point.interval_of.value,
        num_windows=point.num_windows,
        num_sessions=point.num_sessions,
        window_s=sum(trial.measurement.window_s for trial in point.trials if trial.measurement is not None),
        scope=reading.scope.value,
        method=reading.method.value,
        detail=reading.detail,
        device_uuids=reading.device_uuids,
        driver=measurement.driver,
        engine=measurement.engine.engine,
        engine_version=measurement.engine.version,
        model_hash=measurement.engine.model_hash,
        quality=measurement.quality,
        gain=None if reference is None else _gain(point, reference),
        workload=workload,
        max_context=None if workload.scenario == "trace" else longest,
    )


def _latencies(point: Aggregated, axis: str) -> tuple[Figure, ...]:
    """Return the latencies that all of a point's windows have; that of the front's axis without drift, as there."""
    found = []
    for metric in LATENCY_METRICS:
        shown = [one.measurement.latency(metric) for one in point.trials if one.measurement is not None]
        if any(one is None for one in shown):
            continue
        estimate = point.latency_ms if metric == axis else point.mean(partial(_known, metric))
        found.append(Figure(name=metric, estimate=estimate))
    return tuple(found)


def _known(metric: str, measurement: Measurement) -> Estimate:
    figure = measurement.latency(metric)
    assert figure is not None  # _latencies asked for it before
    return figure


def _gain(point: Aggregated, reference: Aggregated) -> DefaultGain:
    from tuner.explain import difference

    over = difference(point.tok_per_j, reference.tok_per_j)
    return DefaultGain(
        number=reference.trial.number,
        ratio=over.ratio,
        low=over.low,
        high=over.high,
        is_told_apart=over.is_told_apart,
    )


def _measurement(point: Aggregated) -> Measurement:
    measurement = point.trial.measurement
    assert measurement is not None  # a point is made of measured trials
    return measurement


def _mean_power_w(point: Aggregated) -> float | None:
    """Return the mean power over a point's windows; None where one of them has none."""
    if any(trial.measurement is None or trial.measurement.mean_power_w is None for trial in point.trials):
        return None
    return point.mean(lambda one: Estimate(one.mean_power_w or 0.0)).value
