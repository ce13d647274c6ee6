"""What a job found, in figures: the point to use, what it gains, and which knobs moved energy and latency. Pure.

Everything is told from what was measured of each point, all its windows together; only the shares of the knobs come
from a model of that (`tuner.influence`). A point whose windows were all cut short is neither recommended nor in a step;
it serves as a reference and for the model. Knows nothing of words for people, nor of how trials were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from probes.settings import DEVICE_KNOBS
from tuner.aggregates import Aggregated, aggregated, origin_of
from tuner.influence import Influence, influence, values_seen
from tuner.knobs import LAYOUT_KNOBS, rules_of
from tuner.measurement import Estimate, Floats
from tuner.physics import CLOCKS
from tuner.point import OperatingPoint
from tuner.repeats import are_tied
from tuner.request import KnobValue, TuneRequest
from tuner.steps import Step, steps
from tuner.trial import OUTCOMES, Trial, TrialRole


class Against(StrEnum):
    """What the recommended point is compared with."""

    DEFAULT = "default"  # the default configuration
    STATIC_CLOCK = "best_static_clock"  # the best clock cap at default engine settings
    THROUGHPUT = "highest_throughput"  # the most tokens per second inside the limits


class Missing(StrEnum):
    """Why there is nothing to compare with."""

    NOT_MEASURED = "not_measured"  # the default point was not measured
    NO_FIGURES = "no_figures"  # its trial gave no usable figures
    NO_CLOCK_KNOB = "no_clock_knob"  # the job searched no clock cap
    NO_OTHER_CLOCK = "no_other_clock"  # at default engine settings only one clock was measured
    NONE_INSIDE = "none_inside"  # of the clocks that were measured there none meets the limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The recommended point's figure over another's."""

    ratio: float
    #: What the 95 % intervals of both leave open at most; None where one of them is not known.
    low: float | None
    high: float | None
    #: Whether they differ by more than the wider of the two half widths; never where neither interval is known.
    is_told_apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What the recommended point has over another one."""

    against: Against
    #: None when `missing` says why.
    reference: Aggregated | None
    missing: Missing | None = None
    #: Clocks that were measured at default engine settings, the default's included: of so many a static clock is the
    #: best. None for what is no clock.
    num_clocks: int | None = None
    tok_per_j: Difference | None = None
    latency: Difference | None = None
    output_tok_s: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a job found."""

    #: The most tokens per joule inside every limit; None where no point is.
    recommended: Aggregated | None
    #: Points inside the limits whose tokens per joule cannot be told apart from those, the fastest first.
    tied: tuple[Aggregated, ...]
    #: One for each of Against, in that order; empty without a recommended point.
    gains: tuple[Gain, ...]
    tok_per_j: Influence
    latency: Influence
    #: One for each knob that moved something, the one that moved tokens per joule most first.
    steps: tuple[Step, ...]


def explain(request: TuneRequest, trials: Sequence[Trial]) -> Explanation:
    """Explain a job by its trials, which may still be coming in."""
    points = comparable(request, trials)
    whole = [one for one in points if not one.is_cut]
    by_energy, by_latency = (influence([one.point for one in points], of_all) for of_all in _log_figures(points))
    best = recommended(points)
    default = default_trial(request, trials)
    return Explanation(
        recommended=best,
        tied=() if best is None else _tied(best, points),
        gains=() if best is None else gains(best, points, default),
        tok_per_j=by_energy,
        latency=by_latency,
        steps=steps(
            [one.point for one in whole],
            _log_figures(whole),
            (by_energy.effects, by_latency.effects),
            start=None if default is None else default.point,
        ),
    )


def comparable(request: TuneRequest, trials: Sequence[Trial]) -> list[Aggregated]:
    """Return the points with figures above 0, measured like the newest of them; some may have cut windows only."""
    points = [
        one
        for one in aggregated(trials, request.latency_metric, request=request)
        if one.tok_per_j.value > 0 and one.latency_ms.value > 0
    ]
    newest = max((trial for one in points for trial in one.trials), key=lambda trial: trial.started_at, default=None)
    return [one for one in points if newest is not None and one.origin == origin_of(newest)]


def recommended(points: Sequence[Aggregated]) -> Aggregated | None:
    """Return the point with the most tokens per joule of those inside the limits; of equals the fastest."""
    return max(_inside(points), key=lambda one: (one.tok_per_j.value, -one.latency_ms.value), default=None)


def default_trial(request: TuneRequest, trials: Sequence[Trial]) -> Trial | None:
    """Return the first trial of the default point, which every job measures first; None while there is none.

    It is found by its knobs, which are at the engine's defaults, as far as those are known without the device: a layout
    is not, a precision is not where models are published in it, and a device knob's is the highest that was tried.
    """
    screened = [trial for trial in trials if trial.role is TrialRole.SCREENING and trial.state in OUTCOMES]
    seen = values_seen([trial.point for trial in screened])
    wanted = {name: value for name in seen if (value := _default(request, name, seen[name])) is not None}
    for trial in sorted(screened, key=lambda trial: trial.number):
        if all(trial.point.as_dict().get(name) == value for name, value in wanted.items()):
            return trial
    return None


def gains(best: Aggregated, points: Sequence[Aggregated], default: Trial | None) -> tuple[Gain, ...]:
    """Return what the recommended point gains over each of Against."""
    found = {
        Against.DEFAULT: _default_reference(points, default),
        Against.STATIC_CLOCK: _static_clock_reference(points, default),
        Against.THROUGHPUT: max(_inside(points), key=lambda one: throughput(one).value),
    }
    num_clocks = {Against.STATIC_CLOCK: len(_static_clocks(points, default)) or None}
    return tuple(
        Gain(against=against, reference=None, missing=reference, num_clocks=num_clocks.get(against))
        if isinstance(reference, Missing)
        else Gain(
            against=against,
            reference=reference,
            num_clocks=num_clocks.get(against),
            tok_per_j=difference(best.tok_per_j, reference.tok_per_j),
            latency=difference(best.latency_ms, reference.latency_ms),
            output_tok_s=difference(throughput(best), throughput(reference)),
        )
        for against, reference in found.items()
    )


def throughput(point: Aggregated) -> Estimate:
    """Return output tokens per second of a point's windows."""
    return point.mean(lambda measurement: measurement.output_tok_s)


def difference(one: Estimate, other: Estimate) -> Difference:
    """Compare two figures above 0."""
    is_known = any(bound is not None for bound in (one.low, one.high, other.low, other.high))
    return Difference(
        ratio=one.value / other.value,
        low=None if one.low is None or not other.high else one.low / other.high,
        high=None if one.high is None or not other.low or other.low <= 0 else one.high / other.low,
        is_told_apart=is_known and not are_tied(one, other),
    )


def _log_figures(points: Sequence[Aggregated]) -> tuple[Floats, Floats]:
    """Return the logarithms of tokens per joule and of latency."""
    tok_per_j = np.log(np.array([one.tok_per_j.value for one in points], dtype=np.float64))
    return tok_per_j, np.log(np.array([one.latency_ms.value for one in points], dtype=np.float64))


def _inside(points: Sequence[Aggregated]) -> list[Aggregated]:
    """Return the points inside every limit by whole windows."""
    return [one for one in points if one.is_feasible and not one.is_cut]


def _tied(best: Aggregated, points: Sequence[Aggregated]) -> tuple[Aggregated, ...]:
    others = [one for one in _inside(points) if one != best and are_tied(one.tok_per_j, best.tok_per_j)]
    return tuple(sorted(others, key=lambda one: one.latency_ms.value))


def _default(request: TuneRequest, name: str, seen: Sequence[KnobValue]) -> KnobValue | None:
    """Return a knob's default among its values, as far as it is known without the device."""
    if name in DEVICE_KNOBS:
        return max(seen, key=float)
    rule = rules_of(request.engine).get(name)
    if rule is None or name in LAYOUT_KNOBS or name == "precision":
        return None
    values = next((knob.values for knob in request.knobs if knob.name == name), rule.tried or seen)
    if isinstance(rule.default, str):
        return rule.default if rule.default in values else None
    default = rule.default
    return min(values, key=lambda value: abs(float(value) - default))


def _default_reference(points: Sequence[Aggregated], default: Trial | None) -> Aggregated | Missing:
    if default is None:
        return Missing.NOT_MEASURED
    return next((one for one in points if one.point == default.point), Missing.NO_FIGURES)


def _static_clock_reference(points: Sequence[Aggregated], default: Trial | None) -> Aggregated | Missing:
    """Return the best point that differs from the default in its clock at most."""
    if default is None:
        return Missing.NOT_MEASURED
    clocks = _static_clocks(points, default)
    if not clocks:
        return Missing.NO_CLOCK_KNOB
    if not any(one.point != default.point for one in clocks):
        return Missing.NO_OTHER_CLOCK
    return recommended(clocks) or Missing.NONE_INSIDE


def _static_clocks(points: Sequence[Aggregated], default: Trial | None) -> list[Aggregated]:
    """Return the points at default engine settings, whatever their clock; none where no clock was searched."""
    if default is None or not any(name in CLOCKS for name in default.point.as_dict()):
        return []
    return [one for one in points if _without_clocks(one.point) == _without_clocks(default.point)]


def _without_clocks(point: OperatingPoint) -> OperatingPoint:
    return OperatingPoint.of({name: value for name, value in point.knobs if name not in CLOCKS})
