"""What is measured once screening has ended: the best points again, in rounds, with a baseline between. Pure.

A screening window says little of how far another launch would differ. So the screened front's points, or those of them
that lie furthest apart, are finalists: each round measures every finalist once, in random order, and the default point
before, after and after every six of them, so that drift can be told from difference. A round's windows belong to other
launches than those of the round before.

What comes next follows from the trials alone, so a resumed job goes on exactly as an undisturbed one would. Knows
nothing of budgets, nor of what the repeats show: finalists are fixed when screening ends.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from tuner.aggregates import place_of_measurement
from tuner.drift import interleaved
from tuner.pareto import FrontPoint, front_of, points_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialRole, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A window to measure next."""

    role: TrialRole
    point: OperatingPoint
    #: Whether the engine must be launched anew for it, even where the open one would do: a new round begins.
    needs_new_launch: bool


def next_repeat(request: TuneRequest, space: SearchSpace, trials: Sequence[Trial]) -> Repeat | None:
    """Return the next window of the finals; None when each finalist has all of its windows, or none are repeated.

    Screening must have ended: its trials decide who the finalists are. A finalist that some round gave no figures of
    is tried once more after the last.
    """
    if request.repeats.windows == 1:
        return None
    chosen = finalists(request, trials)
    baseline = _baseline(request, space, trials, chosen)
    done: Counter[tuple[TrialRole, OperatingPoint]] = Counter(
        (trial.role, trial.point) for trial in trials if trial.role is not TrialRole.SCREENING
    )
    for repeat in [*_rounds(request, space, chosen, baseline), *_retries(request, trials, chosen, baseline)]:
        if done[repeat.role, repeat.point] == 0:
            return repeat
        done[repeat.role, repeat.point] -= 1
    return None


def finalists(request: TuneRequest, trials: Sequence[Trial]) -> tuple[OperatingPoint, ...]:
    """Return the points of the screened front that are measured again, fastest first.

    When it has more than `repeats.finalists`, those that others are ahead of by value go first. Of the rest stay the
    most frugal, the fastest, and then always the one that lies furthest from those that stay.
    """
    screened = [trial for trial in trials if trial.role is TrialRole.SCREENING]
    if not screened:
        return ()
    front = front_of(screened, request.latency_metric, created_at=screened[0].started_at, request=request)
    points = points_of(front, screened, request=request)
    leading = [point for point in points if point.is_leading]
    tied = [point for point in points if not point.is_leading]
    chosen = _spread(leading, (), request.repeats.finalists)
    chosen = _spread(tied, chosen, request.repeats.finalists)
    return tuple(point.trial.point for point in points if point in chosen)


def _spread(points: Sequence[FrontPoint], chosen: Sequence[FrontPoint], most: int) -> list[FrontPoint]:
    """Add points to those chosen until there are `most`: first the ends, then the furthest from all chosen."""
    kept = list(chosen)
    left = list(points)
    while left and len(kept) < most:
        best = _furthest(left, kept)
        left.remove(best)
        kept.append(best)
    return kept


def _furthest(left: Sequence[FrontPoint], kept: Sequence[FrontPoint]) -> FrontPoint:
    """Return the most frugal point, then the fastest, then the one whose nearest chosen point is furthest away."""
    if not kept:
        return max(left, key=lambda point: point.aggregated.tok_per_j.value)
    if len(kept) == 1:
        return min(left, key=lambda point: point.aggregated.latency_ms.value)
    everyone = [_place(point) for point in [*left, *kept]]
    widths = [max(axis) - min(axis) or 1.0 for axis in zip(*everyone, strict=True)]

    def distance(one: FrontPoint, other: FrontPoint) -> float:
        steps = zip(_place(one), _place(other), widths, strict=True)
        return math.hypot(*((a - b) / width for a, b, width in steps))

    return max(left, key=lambda point: min(distance(point, other) for other in kept))


def _place(point: FrontPoint) -> tuple[float, float]:
    return (point.aggregated.tok_per_j.value, point.aggregated.latency_ms.value)


def _baseline(
    request: TuneRequest, space: SearchSpace, trials: Sequence[Trial], chosen: Sequence[OperatingPoint]
) -> OperatingPoint | None:
    """Return the default point, if it was screened to the window's end; else the fastest of several finalists.

    A point that misses a limit is cut each time anew, and part of a window tells of no drift. The fastest finalist is
    the furthest inside the limits.
    """
    screened = [trial for trial in trials if trial.role is TrialRole.SCREENING and trial.point == space.default_point]
    for trial in screened:
        if trial.measurement is not None and trial.measurement.cut_by is None and _has_figures(request, trial):
            return space.default_point
    return chosen[0] if len(chosen) > 1 else None


def _has_figures(request: TuneRequest, trial: Trial) -> bool:
    is_judged = trial.state in (TrialState.COMPLETE, TrialState.INFEASIBLE)
    return is_judged and place_of_measurement(trial.measurement, request.latency_metric) is not None


def _rounds(
    request: TuneRequest, space: SearchSpace, chosen: Sequence[OperatingPoint], baseline: OperatingPoint | None
) -> list[Repeat]:
    """Return all rounds in order; the baseline that ends one begins the next."""
    points = [point for point in chosen if point != baseline]
    rounds: list[Repeat] = []
    for number in range(1, request.repeats.windows if points else 1):
        rng = random.Random(f"{request.seed}/finals/{number}")
        order = _ordered(space, points, baseline, rng)
        if number > 1 and baseline is not None:
            order = order[1:]
        rounds += [
            Repeat(role=_role(point, baseline), point=point, needs_new_launch=place == 0)
            for place, point in enumerate(order)
        ]
    return rounds


def _ordered(
    space: SearchSpace, points: Sequence[OperatingPoint], baseline: OperatingPoint | None, rng: random.Random
) -> list[OperatingPoint]:
    """Return one round's order; points that one launch will do for stay together."""
    names = [knob.name for knob in space.knobs if knob.needs_launch]

    def launch_of(point: OperatingPoint | None) -> Hashable:
        return None if point is None else tuple(point[name] for name in names)

    among: list[OperatingPoint | None] = [*points]
    return [point for point in interleaved(among, baseline, rng=rng, group_of=launch_of) if point is not None]


def _retries(
    request: TuneRequest, trials: Sequence[Trial], chosen: Sequence[OperatingPoint], baseline: OperatingPoint | None
) -> list[Repeat]:
    """Return one more window for each finalist that gave no figures in a round, and the baseline after them."""
    tried: dict[OperatingPoint, list[Trial]] = {point: [] for point in chosen if point != baseline}
    for trial in trials:
        if trial.role is TrialRole.FINALIST and trial.point in tried:
            tried[trial.point].append(trial)
    num_rounds = request.repeats.windows - 1
    missing = [
        point
        for point, windows in tried.items()
        if not all(_has_figures(request, trial) for trial in windows[:num_rounds])
    ]
    order = [*missing, baseline] if missing and baseline is not None else missing
    return [
        Repeat(role=_role(point, baseline), point=point, needs_new_launch=place == 0)
        for place, point in enumerate(order)
    ]


def _role(point: OperatingPoint, baseline: OperatingPoint | None) -> TrialRole:
    return TrialRole.BASELINE if point == baseline else TrialRole.FINALIST
