"""What a knob changes on its way from one value to another while all others stay. Pure.

Told from measured points that differ in nothing else, where there are such pairs; else from a model's means over all
combinations of the other knobs, and then marked by having no pairs. Knows nothing of units or words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.influence import Effect, values_seen
from tuner.measurement import Floats
from tuner.point import OperatingPoint
from tuner.request import KnobValue

#: Places of two points that differ in one knob, by its value at the first and at the second.
Pairs = Mapping[tuple[KnobValue, KnobValue], Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure over what it was before."""

    #: Geometric mean over the pairs, or the model's.
    mean: float
    #: Extremes of the pairs; None of the model's.
    lowest: float | None = None
    highest: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one knob changes."""

    knob: str
    from_value: KnobValue
    to_value: KnobValue
    #: Pairs of measured points that differ in nothing else; 0 where the ratios are the model's.
    num_pairs: int
    tok_per_j: Ratio
    latency: Ratio


def steps(
    points: Sequence[OperatingPoint],
    log_figures: tuple[Floats, Floats],
    effects: tuple[Mapping[str, Effect], Mapping[str, Effect]],
    *,
    start: OperatingPoint | None,
) -> tuple[Step, ...]:
    """Return one step of each knob that has several values, the one that explains most of the first figure first.

    The figures are tokens per joule and latency, each as logarithms at the points, with what a model says of them. A
    step leads from the start's value, where that is in a pair, to the one furthest from it: so far the knob reaches.
    """
    found = []
    for name in values_seen(points):
        first = None if start is None else start.as_dict().get(name)
        pairs = pairs_of(points, name)
        if pairs:
            found.append(_measured(name, pairs, log_figures, first))
        elif all(name in of_figure for of_figure in effects):
            found.append(_predicted(name, (effects[0][name], effects[1][name]), first))
    return tuple(sorted(found, key=lambda step: -_weight(step, effects[0])))


def pairs_of(points: Sequence[OperatingPoint], knob: str) -> Pairs:
    """Return all pairs of points that differ in that knob and in nothing else, each in both directions."""
    alike: dict[OperatingPoint, list[int]] = {}
    for i, point in enumerate(points):
        others = {name: value for name, value in point.knobs if name != knob}
        alike.setdefault(OperatingPoint.of(others), []).append(i)
    pairs: dict[tuple[KnobValue, KnobValue], list[tuple[int, int]]] = {}
    for members in alike.values():
        for first, second in itertools.permutations(members, 2):
            pairs.setdefault((points[first][knob], points[second][knob]), []).append((first, second))
    return pairs


def _measured(knob: str, pairs: Pairs, log_figures: tuple[Floats, Floats], first: KnobValue | None) -> Step:
    def rank(ends: tuple[KnobValue, KnobValue]) -> tuple[bool, float, int, bool]:
        return ends[0] == first, _distance(*ends), len(pairs[ends]), _is_upward(*ends)

    ends = max(pairs, key=rank)
    ratios = [_ratio(pairs[ends], of_figure) for of_figure in log_figures]
    return Step(
        knob=knob,
        from_value=ends[0],
        to_value=ends[1],
        num_pairs=len(pairs[ends]),
        tok_per_j=ratios[0],
        latency=ratios[1],
    )


def _predicted(knob: str, effects: tuple[Effect, Effect], first: KnobValue | None) -> Step:
    values = list(effects[0].levels)
    start = values[0] if first is None or first not in values else first
    end = max((value for value in values if value != start), key=lambda value: _distance(start, value))
    ratios = [Ratio(math.exp(effect.levels[end] - effect.levels[start])) for effect in effects]
    return Step(knob=knob, from_value=start, to_value=end, num_pairs=0, tok_per_j=ratios[0], latency=ratios[1])


def _ratio(pairs: Sequence[tuple[int, int]], log_figures: Floats) -> Ratio:
    changes = [float(log_figures[second] - log_figures[first]) for first, second in pairs]
    return Ratio(math.exp(sum(changes) / len(changes)), math.exp(min(changes)), math.exp(max(changes)))


def _distance(one: KnobValue, other: KnobValue) -> float:
    """How far apart two numbers are, by their ratio where both are above 0; words are all alike."""
    if isinstance(one, str) or isinstance(other, str):
        return 0.0
    return abs(math.log(other / one)) if min(one, other) > 0 else float(abs(other - one))


def _is_upward(one: KnobValue, other: KnobValue) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return str(one) < str(other)
    return one < other


def _weight(step: Step, effects: Mapping[str, Effect]) -> float:
    """What a knob's share of the variance is, or, where no model tells, how far its step changes the figure."""
    return effects[step.knob].in_all if step.knob in effects else abs(math.log(step.tok_per_j.mean))
