"""What a job found as sentences with numbers. Decides nothing.

The first few tell what a reader wants at the job's end; the others what moved the figures, and what the job took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from api import schemas
from api.front_words import miss_words
from db.job import Job
from probes.device import Method
from tuner.aggregates import Aggregated, IntervalOf
from tuner.budget import Spent, spent_words
from tuner.explain import Against, Difference, Explanation, Gain, Missing, throughput
from tuner.influence import MIN_POINTS, Influence
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.steps import Ratio, Step

#: Shares below this are not told one by one.
_SMALL_SHARE = 0.01
_AGAINST = {
    Against.DEFAULT: "the default configuration",
    Against.STATIC_CLOCK: "the best static clock at default engine settings{clocks}",
    Against.THROUGHPUT: "the highest throughput inside the limits",
}
_ITSELF = {
    Against.DEFAULT: "It is the default configuration itself.",
    Against.STATIC_CLOCK: "It is itself the best static clock at default engine settings{clocks}.",
    Against.THROUGHPUT: "No point inside the limits has a higher throughput either.",
}
_MISSING = {
    Missing.NOT_MEASURED: "the default configuration was not measured",
    Missing.NO_FIGURES: "the default configuration gave no usable figures",
    Missing.NO_CLOCK_KNOB: "the job searched no clock cap",
    Missing.NO_OTHER_CLOCK: "no clock but the default's was measured there",
    Missing.NONE_INSIDE: "none of those meets the limits",
}


def brief(request: TuneRequest, found: Explanation) -> list[str]:
    """Return what a reader wants first, in five sentences at most; nothing of a job without usable figures."""
    told = [] if found.recommended is None else [_recommended_words(request, found, found.recommended)]
    if found.recommended is not None:
        told += [_gain_words(request, found.recommended, gain) for gain in found.gains]
    return [*told, *([_influence_words(request, found)] if found.tok_per_j.num_points else [])]


def full(
    job: Job, found: Explanation, misses: Sequence[schemas.MissOut], taken: Spent, *, num_pruned: int = 0
) -> list[str]:
    """Return all there is to say; of `num_pruned` trials the figures were removed since."""
    told = [] if found.recommended is not None else [none_words(misses)]
    told += [*brief(job.request, found), *(_step_words(job.request, step) for step in found.steps)]
    points = [found.recommended, *(gain.reference for gain in found.gains)]
    if any(point is not None and point.interval_of is IntervalOf.WINDOW for point in points):
        told.append(
            "Intervals of points with one window are of the scatter within it and say nothing of another launch; "
            "--repeats 3 measures the best points again."
        )
    if found.recommended is not None:
        told.append(_energy_words(found.recommended))
    if num_pruned:
        told.append(
            f"The figures of {num_pruned} complete trial{'s' if num_pruned > 1 else ''} were removed since, as of "
            "points on no front: what knobs do is told from the rest only."
        )
    return [*told, f"{_ended_words(job)}; used: {spent_words(job.request.budget, taken)}."]


def none_words(misses: Sequence[schemas.MissOut]) -> str:
    """Say that no point meets the limits, which came nearest, and by how much each misses its worst limit."""
    if not misses:
        return "No point gave usable figures inside the limits."
    nearest = "; ".join(f"trial {miss.trial}, {_knob_words(miss.knobs)}: {miss_words(miss)}" for miss in misses)
    return f"No configuration meets the limits; nearest: {nearest}."


def _ended_words(job: Job) -> str:
    return "The job has not ended" if job.ended_because is None else f"The job ended because of: {job.ended_because}"


def _recommended_words(request: TuneRequest, found: Explanation, best: Aggregated) -> str:
    where = " inside the limits" if request.sla else ""
    words = f"Recommended: {_named(best)}: {_figures(request, best)}. No point{where} gives more tokens per joule."
    faster = [one for one in found.tied if one.latency_ms.value < best.latency_ms.value]
    if faster:
        words += f" Faster, and in tokens per joule not to be told apart: {_named(faster[0])}: "
        words += f"{_figures(request, faster[0])}."
    return words


def _gain_words(request: TuneRequest, best: Aggregated, gain: Gain) -> str:
    name = _AGAINST[gain.against].format(clocks=_clock_words(gain))
    reference, tok_per_j, latency, tok_s = gain.reference, gain.tok_per_j, gain.latency, gain.output_tok_s
    if gain.missing is not None or reference is None or tok_per_j is None or latency is None or tok_s is None:
        return f"Not compared with {name}: {_MISSING[gain.missing or Missing.NO_FIGURES]}."
    if reference.point == best.point:
        return _ITSELF[gain.against].format(clocks=_clock_words(gain))
    changes = f"{_axis(request)} {_change(latency)} and tok/s {_change(tok_s)}"
    told = f"It has {_times(tok_per_j)} the tokens per joule of {name}, with {changes}"
    return f"{told}: that is {_named(reference)}: {_figures(request, reference)}{_reserve_words(reference)}."


def _clock_words(gain: Gain) -> str:
    """Say of how many clocks the best one is: whoever reads it may know of others."""
    num_clocks = gain.num_clocks or 0
    return f" (of the {num_clocks} clocks measured there)" if num_clocks > 1 else ""


def _named(point: Aggregated) -> str:
    return f"trial {point.trial.number}, {point.point}"


def _reserve_words(point: Aggregated) -> str:
    """Say what speaks against a point that another is compared with."""
    cut = ", in a window that was cut short" if point.is_cut else ""
    if point.is_feasible:
        return cut
    detail = next((trial.detail or trial.reason for trial in point.trials if trial.detail or trial.reason), None)
    return f"{cut}, outside the limits" + (f" ({detail})" if detail else "")


def _influence_words(request: TuneRequest, found: Explanation) -> str:
    num_points = found.tok_per_j.num_points
    if num_points < MIN_POINTS:
        points = f"{num_points} point{'s' if num_points > 1 else ''}"
        return f"Which knobs moved energy and latency cannot be told from {points}: it takes {MIN_POINTS}."
    told = f"Tokens per joule depend {_shares(found.tok_per_j)}; {_axis(request)} depends {_shares(found.latency)}"
    r2 = f"{found.tok_per_j.r2 or 0.0:.2f} and {found.latency.r2 or 0.0:.2f}"
    return f"{told}. This is by a model of {num_points} points, R² {r2} on points left out of it."


def _shares(influence: Influence) -> str:
    if not influence.effects:
        return "on the knobs in a way that no model of so few points can tell"
    by_share = sorted(influence.effects.items(), key=lambda item: -item[1].in_all)
    told = [f"{name} ({100 * effect.in_all:.0f} %" for name, effect in by_share if effect.in_all >= _SMALL_SHARE]
    large = ", ".join(f"{words}{'' if i else ' of the variance'})" for i, words in enumerate(told))
    small = [name for name, effect in by_share if effect.in_all < _SMALL_SHARE]
    hardly = f", hardly on {' and '.join(small)}" if small else ""
    return f"on {large}{hardly}"


def _step_words(request: TuneRequest, step: Step) -> str:
    pairs = f"{step.num_pairs} pair{'s' if step.num_pairs > 1 else ''} of points"
    basis = pairs if step.num_pairs else "by the model, for no two points differ in this knob alone"
    return (
        f"{step.knob} from {step.from_value} to {step.to_value}, all else equal: tokens per joule "
        f"{_spread(step.tok_per_j)}, {_axis(request)} {_spread(step.latency)} ({basis})."
    )


def _spread(ratio: Ratio) -> str:
    mean = _percent(ratio.mean)
    if ratio.lowest is None or ratio.highest is None or _percent(ratio.lowest) == _percent(ratio.highest):
        return mean
    return f"{mean} ({_percent(ratio.lowest)} to {_percent(ratio.highest)})"


def _energy_words(best: Aggregated) -> str:
    measurement = best.trial.measurement
    assert measurement is not None  # it has figures
    reading = measurement.reading
    kind = "measured" if not reading.is_estimate else f"{_unmeasured(reading.method)}, nothing was measured"
    return f"Energy: {kind}; scope {reading.scope.value}, method {reading.method.value}."


def _figures(request: TuneRequest, point: Aggregated) -> str:
    measurement = point.trial.measurement
    assert measurement is not None  # it has figures
    label = f" ({_unmeasured(measurement.reading.method)})" if measurement.reading.is_estimate else ""
    return (
        f"{_number(point.tok_per_j.value)} tok/J{label}, {_axis(request)} {_number(point.latency_ms.value)} ms, "
        f"{_number(throughput(point).value)} tok/s"
    )


def _unmeasured(method: Method) -> str:
    return "simulated" if method is Method.SIMULATED else "estimate"


def _axis(request: TuneRequest) -> str:
    return request.latency_metric.removesuffix("_ms")


def _change(difference: Difference) -> str:
    return _percent(difference.ratio) + ("" if difference.is_told_apart else " (not told apart)")


def _times(difference: Difference) -> str:
    words = f"{difference.ratio:.2f}x"
    if difference.low is not None and difference.high is not None:
        words += f" ({difference.low:.2f} to {difference.high:.2f})"
    return words if difference.is_told_apart else f"{words}, not told apart from 1x,"


def _percent(ratio: float) -> str:
    change = round(100 * (ratio - 1))
    return f"{change:+d} %" if change else "±0 %"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _knob_words(knobs: Mapping[str, int | float | str]) -> str:
    return str(OperatingPoint.of(knobs))
