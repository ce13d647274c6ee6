"""What moved between two nights of a schedule, and the likely cause. Pure: two nights in, one record out.

A figure moved when its change is larger than both intervals allow: than the root of the sum of the squared half widths
that face each other. An interval that is missing there leaves it untold. Where a point had one window a night, its
interval is of the scatter inside that window and says nothing of another launch; the report says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.drift_schemas import DriftOut, FigureDriftOut, GonePointOut, PointDriftOut, ProvenanceChangeOut
from api.provenance import Provenance, changes_between
from api.records import estimate_out
from tuner.aggregates import Aggregated, IntervalOf, aggregated
from tuner.knobs import SIMULATED
from tuner.measurement import Estimate
from tuner.pareto import Front, hypervolume, pair_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.trial import Trial, TrialState

#: Points that a sentence names at most.
MAX_NAMED = 3

ByPoint = Mapping[OperatingPoint, Aggregated]


@dataclass(frozen=True, slots=True, kw_only=True)
class NightResult:
    """What one night's job found."""

    job_id: str
    request: TuneRequest
    #: None when it has none.
    front: Front | None
    #: Those that count.
    trials: Sequence[Trial]
    fingerprints: frozenset[str] = frozenset()

    @property
    def points(self) -> list[OperatingPoint]:
        """The points of its front, fastest first."""
        return [] if self.front is None else [trial.point for trial in self.front.trials]


def drift_between(before: NightResult | None, after: NightResult) -> DriftOut:
    """Compare a night with the one before it; of a first night it says only that."""
    metric = after.request.latency_metric
    is_simulated = after.request.engine == SIMULATED
    if before is None:
        words = f"the first night with a front: {len(after.points)} points" if after.points else "no front yet"
        return DriftOut(
            compared_with=None, is_simulated=is_simulated, latency_metric=metric, has_moved=False, sentences=[words]
        )
    own = [trial for trial in after.trials if trial.reused_from is None]  # what was taken over tells nothing new
    was, now = _by_point(before, metric), _by_point(dataclasses.replace(after, trials=own), metric)
    points = [_point_drift(point, was.get(point), now.get(point), after.trials) for point in before.points]
    vanished = [point for point in before.points if point not in after.points]
    reference_ms = _reference_ms(before, after)
    areas = [_area(night, _by_point(night, metric), reference_ms) for night in (before, after)]
    drift = DriftOut(
        compared_with=before.job_id,
        is_simulated=is_simulated,
        latency_metric=metric,
        has_moved=any(point.state == "moved" for point in points),
        points=points,
        vanished=[GonePointOut(knobs=point.as_dict(), reason=_why_gone(point, after.trials)) for point in vanished],
        came=[point.as_dict() for point in after.points if point not in before.points],
        hypervolume_before=areas[0],
        hypervolume_after=areas[1],
        hypervolume_change=_share(areas[0], areas[1]),
        changes=_changes(before, after, was, now),
        sentences=[],
    )
    return drift.model_copy(update={"sentences": [*_sentences(drift), *_asked_words(before.request, after.request)]})


def has_moved(one: Estimate, other: Estimate) -> bool | None:
    """Tell whether two figures differ beyond their intervals; None where an interval that faces the other is missing.

    Of independent figures with half widths a and b the difference has the half width sqrt(a^2 + b^2).
    """
    lower, upper = sorted((one, other), key=lambda figure: figure.value)
    if lower.high is None or upper.low is None:
        return None
    return upper.value - lower.value > math.hypot(lower.high - lower.value, upper.value - upper.low)


def _by_point(night: NightResult, metric: str) -> ByPoint:
    """Return what a night shows of each point; of several origins the newest."""
    return {one.point: one for one in aggregated(night.trials, metric, request=night.request)}


def _point_drift(
    point: OperatingPoint, before: Aggregated | None, after: Aggregated | None, trials: Sequence[Trial]
) -> PointDriftOut:
    knobs = point.as_dict()
    if before is None or after is None:
        missing = "its windows before are gone" if before is None else _why_unmeasured(point, trials)
        return PointDriftOut(
            knobs=knobs, state="not_measured", reason=missing, tok_per_j=None, latency_ms=None, interval_of=None
        )
    reason = _why_untold(before, after)
    energy = _figure(before.tok_per_j, after.tok_per_j, is_told=reason is None)
    latency = _figure(before.latency_ms, after.latency_ms, is_told=reason is None)
    verdicts = (energy.has_moved, latency.has_moved)
    state = "moved" if True in verdicts else "not_told" if None in verdicts else "held"
    if state == "not_told" and reason is None:
        reason = "an interval is open towards the change: the window holds too few requests to bound it"
    is_between_launches = IntervalOf.WINDOW not in (before.interval_of, after.interval_of)
    return PointDriftOut(
        knobs=knobs,
        state=state,
        reason=reason if state == "not_told" else None,
        tok_per_j=energy,
        latency_ms=latency,
        interval_of=(IntervalOf.SESSIONS if is_between_launches else IntervalOf.WINDOW).value,
    )


def _figure(before: Estimate, after: Estimate, *, is_told: bool) -> FigureDriftOut:
    return FigureDriftOut(
        before=estimate_out(before),
        after=estimate_out(after),
        change=_share(before.value, after.value),
        has_moved=has_moved(before, after) if is_told else None,
    )


def _why_untold(before: Aggregated, after: Aggregated) -> str | None:
    """Return why two nights' figures of a point are not held against each other; None when they are."""
    if after.is_cut:
        return "its window was ended early"
    readings = [one.trial.measurement.reading for one in (before, after) if one.trial.measurement is not None]
    if len({(reading.scope, reading.is_estimate) for reading in readings}) > 1:
        return "the energy is of another scope, or an estimate on one of the nights"
    return None


def _why_unmeasured(point: OperatingPoint, trials: Sequence[Trial]) -> str:
    last = next((trial for trial in reversed(trials) if trial.point == point), None)
    if last is None:
        return "the night ended before it"
    if last.reused_from is not None:
        return f"its measurement was taken over from {last.reused_from}"
    return last.detail or last.reason or f"its trial is {last.state.value}"


def _why_gone(point: OperatingPoint, trials: Sequence[Trial]) -> str:
    of_point = [trial for trial in trials if trial.point == point]
    if any(trial.state is TrialState.COMPLETE for trial in of_point):
        return "other points beat it now"
    return _why_unmeasured(point, trials)


def _reference_ms(before: NightResult, after: NightResult) -> float | None:
    """Return the latency that both hypervolumes reach to: the larger of the two; None for unlike latencies."""
    if before.request.latency_metric != after.request.latency_metric:
        return None
    fronts = [front for front in (before.front, after.front) if front is not None]
    return max((front.latency_reference_ms for front in fronts if front.latency_reference_ms is not None), default=None)


def _area(night: NightResult, figures: ByPoint, reference_ms: float | None) -> float | None:
    if reference_ms is None:
        return None
    return hypervolume([pair_of(figures[point]) for point in night.points if point in figures], reference_ms)


def _share(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or not before else after / before - 1


def _changes(before: NightResult, after: NightResult, was: ByPoint, now: ByPoint) -> list[ProvenanceChangeOut]:
    shared = [point for point in was if point in now]
    nights = [
        Provenance(
            request=night.request,
            measurements=[trial.measurement for trial in night.trials if trial.measurement is not None],
            shared=[m for point in shared if (m := figures[point].trial.measurement) is not None],
            fingerprints=night.fingerprints,
        )
        for night, figures in ((before, was), (after, now))
    ]
    return changes_between(*nights)


def _sentences(drift: DriftOut) -> list[str]:
    moved = [point for point in drift.points if point.state == "moved"]
    told = [point for point in drift.points if point.state in ("moved", "held")]
    sentences = [
        f"{len(moved)} of {len(told)} points of the front before moved beyond their intervals"
        if told
        else "no point of the front before could be held against tonight's"
    ]
    sentences += [_moved_words(point, drift.latency_metric) for point in moved[:MAX_NAMED]]
    left = len(drift.points) - len(told)
    if left:
        sentences.append(f"{left} more were not measured tonight, or their intervals cannot tell")
    if drift.vanished or drift.came:
        sentences.append(f"{len(drift.vanished)} points left the front, {len(drift.came)} came to it")
    if drift.hypervolume_change is not None:
        sentences.append(f"the hypervolume changed by {drift.hypervolume_change:+.1%}")
    sentences += _cause_words(drift)
    if any(point.interval_of == IntervalOf.WINDOW for point in moved):
        sentences.append(
            "intervals of points with one window a night are of the scatter inside it, not between launches; "
            "repeats.windows 3 tells both"
        )
    return sentences


def _cause_words(drift: DriftOut) -> list[str]:
    words = [change.words for change in drift.changes]
    if not drift.has_moved:
        return [f"since then: {one}" for one in words]
    if not words:
        return ["no known cause: device, driver, engine, model, workload, temperature and clock events are the same"]
    return [f"likely cause: {words[0]}", *(f"also: {one}" for one in words[1:])]


def _asked_words(before: TuneRequest, after: TuneRequest) -> list[str]:
    """Return in words what was asked for otherwise, so that the front alone may differ for it."""
    words = []
    if before.latency_metric != after.latency_metric:
        words.append(
            f"the latency was {before.latency_metric} before and is {after.latency_metric} now: the two fronts are of "
            "different figures, and their areas cannot be compared"
        )
    if before.sla != after.sla:
        words.append("the job's limits are others than before, which by itself can change the front")
    return words


def _moved_words(point: PointDriftOut, metric: str) -> str:
    parts = []
    for name, figure in (("tokens per joule", point.tok_per_j), (metric, point.latency_ms)):
        if figure is not None and figure.has_moved and figure.before is not None and figure.after is not None:
            change = "" if figure.change is None else f" ({figure.change:+.1%})"
            parts.append(f"{name} from {figure.before.value:.4g} to {figure.after.value:.4g}{change}")
    return f"{OperatingPoint.of(point.knobs)}: {', '.join(parts)}"
