"""Dominance, front and hypervolume for tokens per joule (up) against latency (down). Pure.

By value, a place dominates another when it is at least as good on both axes and better on one. A front allows for
what is uncertain: it keeps a point unless one that stays beats it beyond doubt, see `beats`. So it holds points that
others are ahead of by value, but not by enough; those are tied, and the front says with which.

The hypervolume goes by value. It is the area between the front and a reference corner (0 tokens per joule,
`latency_reference_ms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tuner.aggregates import Aggregated, IntervalOf, aggregated, origin_of, place_of_measurement
from tuner.measurement import Measurement
from tuner.repeats import are_tied, dominates_with_margin
from tuner.request import TuneRequest
from tuner.trial import Trial


@dataclass(frozen=True, slots=True)
class ObjectivePair:
    """A trial's place on the plane."""

    tok_per_j: float
    latency_ms: float

    def dominates(self, other: ObjectivePair) -> bool:
        """Tell whether this place is at least as good on both axes and better on one."""
        at_least = self.tok_per_j >= other.tok_per_j and self.latency_ms <= other.latency_ms
        return at_least and self != other


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The points of a job that none beats beyond doubt, fastest first."""

    latency_metric: str
    #: One for each point, whose other windows are repeats of it.
    trials: tuple[Trial, ...]
    #: tokens per joule x milliseconds, up to `latency_reference_ms`.
    hypervolume: float
    #: The job's limit on the latency axis; without one the slowest point inside all limits. None without a point.
    latency_reference_ms: float | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A point of a front with all that was measured of it."""

    #: The trial that stands for it.
    trial: Trial
    aggregated: Aggregated
    #: Numbers of the front's trials whose points it cannot be ranked with, see `are_points_tied`.
    tied_with: tuple[int, ...]
    #: Whether no other point is ahead of it by value; one that is behind stays because of a tie.
    is_leading: bool


def non_dominated(pairs: Sequence[ObjectivePair]) -> list[int]:
    """Return the indices of pairs that no other dominates, by rising latency.

    Equal pairs do not dominate each other: all of them stay.
    """
    order = sorted(range(len(pairs)), key=lambda i: (pairs[i].latency_ms, -pairs[i].tok_per_j))
    kept: list[int] = []
    best = float("-inf")
    for i in order:
        is_tie = bool(kept) and pairs[kept[-1]] == pairs[i]
        if pairs[i].tok_per_j > best or is_tie:
            kept.append(i)
            best = max(best, pairs[i].tok_per_j)
    return kept


def hypervolume(pairs: Sequence[ObjectivePair], latency_reference_ms: float) -> float:
    """Area dominated by the pairs inside [0, inf) tokens per joule x (-inf, latency_reference_ms]."""
    area = 0.0
    best = 0.0
    for i in non_dominated(pairs):
        pair = pairs[i]
        if pair.latency_ms >= latency_reference_ms:
            break
        area += max(0.0, pair.tok_per_j - best) * (latency_reference_ms - pair.latency_ms)
        best = max(best, pair.tok_per_j)
    return area


def place_of(trial: Trial, latency_metric: str) -> ObjectivePair | None:
    """Return where a trial stands, or None when it may not stand on a front."""
    return figures_of(trial.measurement, latency_metric) if trial.has_front_figures else None


def figures_of(measurement: Measurement | None, latency_metric: str) -> ObjectivePair | None:
    """Return a measurement's figures on both axes; None unless it is valid and has both in finite numbers."""
    place = place_of_measurement(measurement, latency_metric)
    return None if place is None else ObjectivePair(place.tok_per_j.value, place.latency_ms.value)


def pair_of(point: Aggregated) -> ObjectivePair:
    """Return where the mean of a point's windows stands."""
    return ObjectivePair(point.tok_per_j.value, point.latency_ms.value)


def beats(one: Aggregated, other: Aggregated) -> bool:
    """Tell whether a point is better than another beyond doubt.

    Where both were measured in several sessions it must be ahead on both axes by more than the wider of the two
    intervals there. A single window has no interval that speaks of another session. It shows enough to rule a point
    out: one that is ahead by value on both axes beats it, unless neither axis tells the two apart.
    """
    if IntervalOf.WINDOW not in (one.interval_of, other.interval_of):
        return dominates_with_margin(one.place, other.place)
    return pair_of(one).dominates(pair_of(other)) and not _are_alike(one, other)


def are_points_tied(one: Aggregated, other: Aggregated) -> bool:
    """Tell whether two points cannot be ranked.

    Either they differ on neither axis by more than is uncertain, or one is ahead of the other by value and does not
    beat it. Two points of which each is better on one axis are a choice, not a tie.
    """
    a, b = pair_of(one), pair_of(other)
    is_one_ahead = a.dominates(b) or b.dominates(a)
    return _are_alike(one, other) or (is_one_ahead and not (beats(one, other) or beats(other, one)))


def front_of(
    trials: Sequence[Trial], latency_metric: str, *, created_at: datetime, request: TuneRequest | None = None
) -> Front:
    """Build the front of a job's trials, repeats of a point taken together.

    `request` is the job's: its limits are held against the mean of a point's windows, and its limit on the latency
    axis is how far the hypervolume reaches, so that one night compares with another. Without such a limit it reaches
    to the slowest point inside all limits.

    A job resumed after a change may hold energy of another scope, device, model or engine version. Such figures are
    not comparable, so trials stay out that were not measured like the newest one.
    """
    points = [one for one in aggregated(trials, latency_metric, request=request) if one.is_feasible and not one.is_cut]
    newest = max((trial for one in points for trial in one.trials), key=lambda trial: trial.started_at, default=None)
    points = [one for one in points if newest is not None and one.origin == origin_of(newest)]
    pairs = [pair_of(one) for one in points]
    slowest_ms = max((pair.latency_ms for pair in pairs), default=None)
    reference_ms = None if slowest_ms is None else _limit_ms(request, latency_metric) or slowest_ms
    return Front(
        latency_metric=latency_metric,
        trials=tuple(one.trial for one in _unbeaten(points)),
        hypervolume=0.0 if reference_ms is None else hypervolume(pairs, reference_ms),
        latency_reference_ms=reference_ms,
        created_at=created_at,
    )


def points_of(front: Front, trials: Sequence[Trial], *, request: TuneRequest | None = None) -> tuple[FrontPoint, ...]:
    """Return a front's points with all that the job's trials show of them, in the front's order."""
    found = aggregated([*front.trials, *_others(trials, front.trials)], front.latency_metric, request=request)
    by_point = {(one.point, one.origin): one for one in found}
    points = [by_point[trial.point, origin_of(trial)] for trial in front.trials]
    leading = set(non_dominated([pair_of(one) for one in points]))
    return tuple(
        FrontPoint(
            trial=trial,
            aggregated=points[i],
            tied_with=tuple(
                sorted(
                    other.number
                    for j, other in enumerate(front.trials)
                    if j != i and are_points_tied(points[i], points[j])
                )
            ),
            is_leading=i in leading,
        )
        for i, trial in enumerate(front.trials)
    )


def _unbeaten(points: Sequence[Aggregated]) -> list[Aggregated]:
    """Return the points that none of those returned beats, by rising latency.

    A point that is out puts no other out: uncertain figures can make a circle's worth of doubt (this beats that, that
    beats a third, and this does not), and so what is returned stays the same when a beaten point is measured or not.
    Whoever beats a point is ahead of it by value, so it comes first in this order.
    """
    kept: list[Aggregated] = []
    for point in sorted(points, key=lambda one: (one.latency_ms.value, -one.tok_per_j.value)):
        if not any(beats(one, point) for one in kept):
            kept.append(point)
    return kept


def _are_alike(one: Aggregated, other: Aggregated) -> bool:
    """Tell whether neither axis tells two points apart."""
    return are_tied(one.tok_per_j, other.tok_per_j) and are_tied(one.latency_ms, other.latency_ms)


def _limit_ms(request: TuneRequest | None, latency_metric: str) -> float | None:
    limits = () if request is None else request.sla
    return next((limit.bound_ms for limit in limits if limit.metric == latency_metric), None)


def _others(trials: Sequence[Trial], these: Sequence[Trial]) -> list[Trial]:
    known = {(trial.number, trial.attempt) for trial in these}
    return [trial for trial in trials if (trial.number, trial.attempt) not in known]
