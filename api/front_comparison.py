"""Several fronts side by side: which points they share, how those moved, what each offers inside a limit. Pure.

Figures of different origin are never mixed unsaid: what differs between the jobs stands in the warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from api.front_schemas import (
    BestPlaceOut,
    ComparedFrontOut,
    ComparedPointOut,
    ComparisonOut,
    LimitOut,
    MoveOut,
    PlaceOut,
)
from api.schemas import EstimateOut, FrontOut, PointOut
from db.job import Job
from tuner.measurement import Estimate
from tuner.pareto import ObjectivePair, hypervolume
from tuner.repeats import are_tied

#: A point by its knobs, whatever their order.
Knobs = tuple[tuple[str, int | float | str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A job and its front."""

    job: Job
    front: FrontOut


def compare(compared: Sequence[Compared], limits_ms: Sequence[float] = ()) -> ComparisonOut:
    """Compare the fronts of two or more jobs; without limits at those of the jobs and at the common reference."""
    metrics = {one.front.latency_metric for one in compared}
    metric = metrics.pop() if len(metrics) == 1 else None
    references = [one.front.latency_reference_ms for one in compared if one.front.latency_reference_ms is not None]
    reference_ms = max(references, default=None) if metric is not None else None
    if metric is None:
        limits_ms = ()
    elif not limits_ms:
        limits_ms = _limits_of(compared, metric, reference_ms)
    return ComparisonOut(
        latency_metric=metric,
        latency_reference_ms=reference_ms,
        fronts=[_front(one, reference_ms) for one in compared],
        points=_points(compared),
        limits=[_limit(compared, limit_ms) for limit_ms in limits_ms],
        warnings=warnings(compared),
    )


def warnings(compared: Sequence[Compared]) -> list[str]:
    """Return what keeps the figures of the jobs from being comparable, a sentence each."""
    asked: tuple[tuple[str, Callable[[Compared], object]], ...] = (
        ("are of different models", lambda one: one.job.request.model),
        ("are of different devices", lambda one: one.job.request.device),
        ("are of different engines", lambda one: one.job.request.engine),
        ("were run under different workloads", lambda one: one.job.request.workload),
        ("are over different latencies", lambda one: one.front.latency_metric),
        ("have energy of different scopes", lambda one: _origin(one, "energy_scope")),
        ("have energy by different methods", lambda one: _origin(one, "energy_method")),
    )
    found = [
        f"the fronts {words}{_listed(values)}"
        for words, value_of in asked
        if len(values := _distinct([value_of(one) for one in compared])) > 1
    ]
    simulated = [one.job.id[:8] for one in compared if one.front.is_simulated]
    if 0 < len(simulated) < len(compared):
        found.append(f"{', '.join(simulated)}: simulated; the others were measured, and are not comparable with that")
    estimated = [one.job.id[:8] for one in compared if any(point.is_estimate for point in one.front.points)]
    if 0 < len(estimated) < len(compared):
        found.append(f"the energy of {', '.join(estimated)} is an estimate, that of the others is not")
    unfinished = [one.job.id[:8] for one in compared if not one.front.is_final]
    return found + ([f"{', '.join(unfinished)}: not ended, so the front may change"] if unfinished else [])


def _origin(one: Compared, name: str) -> object:
    """Return where a front's energy comes from; None, which is no difference, without points."""
    return getattr(one.front.points[0], name) if one.front.points else None


def _distinct(values: Sequence[object]) -> list[object]:
    found: list[object] = []
    for value in values:
        if value is not None and value not in found:
            found.append(value)
    return found


def _listed(values: Sequence[object]) -> str:
    """Return values as the end of a sentence; a workload has too many parts to be one."""
    words = [value for value in values if isinstance(value, str)]
    return f": {', '.join(words)}" if len(words) == len(values) else ""


def _front(one: Compared, reference_ms: float | None) -> ComparedFrontOut:
    points, request = one.front.points, one.job.request
    pairs = [ObjectivePair(point.tok_per_j.value, point.latency_ms.value) for point in points]
    first = points[0] if points else None
    return ComparedFrontOut(
        job=one.job.id,
        name=one.job.name,
        model=request.model,
        engine=request.engine,
        device=request.device,
        is_simulated=one.front.is_simulated,
        is_final=one.front.is_final,
        latency_metric=one.front.latency_metric,
        energy_scope=None if first is None else first.energy_scope,
        energy_method=None if first is None else first.energy_method,
        is_estimate=None if first is None else first.is_estimate,
        num_points=len(points),
        hypervolume=one.front.hypervolume,
        common_hypervolume=None if reference_ms is None else _finite(hypervolume(pairs, reference_ms)),
    )


def _points(compared: Sequence[Compared]) -> list[ComparedPointOut]:
    """Return every point of any front, in the order of the fronts and their points."""
    places: dict[Knobs, list[tuple[str, PointOut]]] = {}
    for one in compared:
        for point in one.front.points:
            places.setdefault(tuple(sorted(point.knobs.items())), []).append((one.job.id, point))
    return [
        ComparedPointOut(
            knobs=found[0][1].knobs,
            is_in_all=len(found) == len(compared),
            places=[
                PlaceOut(job=job, trial=point.trial, tok_per_j=point.tok_per_j, latency_ms=point.latency_ms)
                for job, point in found
            ],
            moves=[_move(found[0][1], point, job) for job, point in found[1:]],
        )
        for found in places.values()
    ]


def _move(earlier: PointOut, later: PointOut, job: str) -> MoveOut:
    return MoveOut(
        job=job,
        tok_per_j_ratio=_ratio(later.tok_per_j, earlier.tok_per_j),
        latency_ratio=_ratio(later.latency_ms, earlier.latency_ms),
        has_tok_per_j_moved=_has_moved(earlier.tok_per_j, later.tok_per_j),
        has_latency_moved=_has_moved(earlier.latency_ms, later.latency_ms),
    )


def _ratio(later: EstimateOut, earlier: EstimateOut) -> float | None:
    return _finite(later.value / earlier.value) if earlier.value else None


def _has_moved(earlier: EstimateOut, later: EstimateOut) -> bool | None:
    if all(bound is None for one in (earlier, later) for bound in (one.low, one.high)):
        return None
    return not are_tied(
        Estimate(earlier.value, earlier.low, earlier.high), Estimate(later.value, later.low, later.high)
    )


def _limits_of(compared: Sequence[Compared], metric: str, reference_ms: float | None) -> list[float]:
    asked = {limit.bound_ms for one in compared for limit in one.job.request.sla if limit.metric == metric}
    return sorted(asked | (set() if reference_ms is None else {reference_ms}))


def _limit(compared: Sequence[Compared], limit_ms: float) -> LimitOut:
    return LimitOut(limit_ms=limit_ms, best=[_best(one, limit_ms) for one in compared])


def _best(one: Compared, limit_ms: float) -> BestPlaceOut:
    inside = [point for point in one.front.points if point.latency_ms.value <= limit_ms]
    best = max(inside, key=lambda point: point.tok_per_j.value, default=None)
    return BestPlaceOut(
        job=one.job.id,
        trial=None if best is None else best.trial,
        tok_per_j=None if best is None else best.tok_per_j,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
