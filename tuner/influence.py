"""Which knobs moved a figure: the share of its variance that each explains. Pure.

The shares are a functional analysis of variance (Hooker 2004; Hutter, Hoos and Leyton-Brown 2014) of a model that was
fitted to the measured points, over every combination of the values that were tried, all equally likely. They are as
good as the model, so it is asked to predict points that it has not seen; where it cannot, nothing is told. Figures are
logarithms throughout: a knob that doubles them counts alike wherever it does. Knows nothing of units or words.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.measurement import Floats
from tuner.point import OperatingPoint
from tuner.request import KnobValue

#: Points below which nothing is told: a model of fewer follows their chance.
MIN_POINTS = 10
#: Share of the variance of unseen points that a model has to predict, or nothing is told.
MIN_R2 = 0.5
#: Points that are predicted at once: all combinations up to so many, else as many of them at random.
MAX_GRID = 4096
_NUM_SAMPLED = 1024
#: Of these, so many are varied over every value of every knob.
_NUM_VARIED = 128
_NUM_FOLDS = 5

#: The logarithm of a figure at points.
Predict = Callable[[Sequence[OperatingPoint]], Floats]
#: Fits a model to the logarithm of a figure at points.
Fit = Callable[[Sequence[OperatingPoint], Floats], Predict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a knob does to a figure, by the model."""

    #: Share of the figure's variance, 0 to 1, that the knob explains by itself, averaged over all others.
    alone: float
    #: With everything it does together with others: what would be left to explain if all others were known. These
    #: shares may add up to more than 1.
    in_all: float
    #: Mean of the figure's logarithm at each value, over all combinations of the others.
    levels: Mapping[KnobValue, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """What moved one figure."""

    #: By knob, for those with several values; empty where the model is not good enough to tell.
    effects: Mapping[str, Effect]
    num_points: int
    #: Share of the variance of points left out of the fit that it predicts; None with fewer than MIN_POINTS points.
    r2: float | None


def fit_surrogate(points: Sequence[OperatingPoint], log_figures: Floats) -> Predict:
    """Fit a Gaussian process to a figure's logarithm; numbers lie by their logarithm, words apart."""
    from tuner.surrogate import Surrogate  # brings scipy, which the service need not wait for at its start

    values = {name: of_one for name, of_one in values_seen(points).items() if len(of_one) > 1}
    is_word = np.array([isinstance(of_one[0], str) for of_one in values.values()], dtype=np.bool_)
    surrogate = Surrogate.fit(_places(points, values), log_figures, is_word)
    return lambda asked: surrogate.predict(_places(asked, values)).mean


def influence(points: Sequence[OperatingPoint], log_figures: Floats, fit: Fit = fit_surrogate) -> Influence:
    """Return what moved a figure, given its logarithm at each of different points with the same knobs."""
    if len(points) < MIN_POINTS:
        return Influence(effects={}, num_points=len(points), r2=None)
    from tuner.surrogate import one_thread

    with one_thread():
        r2 = left_out_r2(points, log_figures, fit)
        effects = effects_of(fit(points, log_figures), values_seen(points)) if r2 >= MIN_R2 else {}
    return Influence(effects=effects, num_points=len(points), r2=r2)


def left_out_r2(points: Sequence[OperatingPoint], log_figures: Floats, fit: Fit = fit_surrogate) -> float:
    """Return the share of variance that the fit predicts at points left out of it, a fifth of them at a time.

    Below 0 where it is worse than their mean; 0 where the figures do not vary.
    """
    order = list(range(len(points)))
    random.Random(0).shuffle(order)
    total = float(np.square(log_figures - log_figures.mean()).sum())
    missed = 0.0
    for fold in range(_NUM_FOLDS):
        left_out = order[fold::_NUM_FOLDS]
        kept = [i for i in order if i not in left_out]
        predict = fit([points[i] for i in kept], log_figures[kept])
        missed += float(np.square(predict([points[i] for i in left_out]) - log_figures[left_out]).sum())
    return 1 - missed / total if total > 0 else 0.0


def effects_of(predict: Predict, values: Mapping[str, Sequence[KnobValue]]) -> dict[str, Effect]:
    """Return the effect of each knob that has several values, over all combinations of the values.

    Of more than MAX_GRID combinations _NUM_SAMPLED are drawn, always the same ones. Nothing comes of a figure that is
    predicted to be the same everywhere.
    """
    is_whole = math.prod(len(of_one) for of_one in values.values()) <= MAX_GRID
    return _exact_effects(predict, values) if is_whole else _sampled_effects(predict, values)


def values_seen(points: Sequence[OperatingPoint]) -> dict[str, tuple[KnobValue, ...]]:
    """Return the values that points have of each knob, numbers in rising order."""
    seen: dict[str, set[KnobValue]] = {}
    for point in points:
        for name, value in point.knobs:
            seen.setdefault(name, set()).add(value)
    return {name: tuple(sorted(values, key=_order)) for name, values in seen.items()}


def _exact_effects(predict: Predict, values: Mapping[str, Sequence[KnobValue]]) -> dict[str, Effect]:
    combinations = itertools.product(*values.values())
    points = [OperatingPoint.of(dict(zip(values, chosen, strict=True))) for chosen in combinations]
    grid = predict(points).reshape([len(of_one) for of_one in values.values()])
    variance = float(grid.var())
    effects = {}
    for axis, (name, of_one) in enumerate(values.items()):
        if len(of_one) > 1 and variance > 0:
            levels = np.moveaxis(grid, axis, 0).reshape(len(of_one), -1).mean(axis=1)
            effects[name] = _effect(of_one, levels, float(grid.var(axis=axis).mean()), variance)
    return effects


def _sampled_effects(predict: Predict, values: Mapping[str, Sequence[KnobValue]]) -> dict[str, Effect]:
    """Draw combinations in which every value comes equally often; vary each knob over all its values around some."""
    draw = random.Random(0)
    columns = {name: draw.sample([of_one[i % len(of_one)] for i in range(_NUM_SAMPLED)], _NUM_SAMPLED)
               for name, of_one in values.items()}  # fmt: skip
    base = [dict(zip(columns, chosen, strict=True)) for chosen in zip(*columns.values(), strict=True)]
    variance = float(predict([OperatingPoint.of(knobs) for knobs in base]).var())
    effects = {}
    for name, of_one in values.items():
        if len(of_one) > 1 and variance > 0:
            changed = [OperatingPoint.of({**knobs, name: value}) for knobs in base[:_NUM_VARIED] for value in of_one]
            slices = predict(changed).reshape(-1, len(of_one))
            effects[name] = _effect(of_one, slices.mean(axis=0), float(slices.var(axis=1).mean()), variance)
    return effects


def _effect(values: Sequence[KnobValue], levels: Floats, within: float, variance: float) -> Effect:
    return Effect(
        alone=min(1.0, float(levels.var()) / variance),
        in_all=min(1.0, within / variance),
        levels=dict(zip(values, levels.tolist(), strict=True)),
    )


def _places(points: Sequence[OperatingPoint], values: Mapping[str, Sequence[KnobValue]]) -> NDArray[np.float64]:
    """Return points in the unit cube; a value beyond those given lies outside of it, a word beyond them at -1."""
    columns = [_column([point[name] for point in points], of_one) for name, of_one in values.items()]
    return np.array(columns, dtype=np.float64).reshape(len(values), len(points)).T


def _column(chosen: Sequence[KnobValue], values: Sequence[KnobValue]) -> list[float]:
    numbers = [float(value) for value in values if not isinstance(value, str)]
    if len(numbers) < len(values):
        return [float(values.index(value)) if value in values else -1.0 for value in chosen]
    scale: Callable[[float], float] = math.log if min(numbers) > 0 else float
    low, high = scale(numbers[0]), scale(numbers[-1])
    return [(scale(float(value)) - low) / (high - low) for value in chosen]


def _order(value: KnobValue) -> tuple[float, str]:
    return (0.0, value) if isinstance(value, str) else (float(value), "")
