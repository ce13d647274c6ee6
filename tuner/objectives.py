"""A measurement as objective values, limit violations and a verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.measurement import Measurement
from tuner.request import TuneRequest
from tuner.trial import TrialState


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a measurement makes of its trial."""

    state: TrialState
    reason: str | None = None
    detail: str | None = None


def violations(request: TuneRequest, measurement: Measurement) -> dict[str, float]:
    """Return, per limit, by which share of the bound it is missed; 0 or less is inside.

    A latency without samples counts as missed by its whole bound: nothing shows that the limit holds.
    """
    missed = {}
    for limit in request.sla:
        figure = measurement.latency(limit.metric)
        missed[f"sla:{limit.metric}"] = 1.0 if figure is None else figure.value / limit.bound_ms - 1.0
    if measurement.quality is not None:
        ratio = measurement.quality.perplexity_ratio
        missed["quality:perplexity_ratio"] = ratio / request.quality.max_perplexity_ratio - 1.0
    return missed


def verdict(request: TuneRequest, measurement: Measurement) -> Verdict:
    """Decide a trial's state from what was measured."""
    if measurement.output_tokens == 0:
        return Verdict(TrialState.FAILED, "no_tokens", "no output token came out in the window")
    if not measurement.is_valid:
        return Verdict(TrialState.INVALID, measurement.reasons[0], "; ".join(measurement.reasons))
    if measurement.tok_per_j is None:
        return Verdict(
            TrialState.INVALID, "no_energy", "no energy above 0 was read, though nothing else speaks against it"
        )
    if measurement.latency(request.latency_metric) is None:
        detail = f"no request that ended in the window gives a {request.latency_metric}; lengthen the window"
        return Verdict(TrialState.INVALID, "no_latency_samples", detail)
    missed = {name: share for name, share in violations(request, measurement).items() if share > 0}
    if not missed:
        return Verdict(TrialState.COMPLETE)
    worst = max(missed, key=lambda name: missed[name])
    detail = "; ".join(_explain(request, measurement, name) for name in missed)
    return Verdict(TrialState.INFEASIBLE, worst, detail)


def _explain(request: TuneRequest, measurement: Measurement, name: str) -> str:
    kind, metric = name.split(":")
    if kind == "quality" and measurement.quality is not None:
        bound = request.quality.max_perplexity_ratio
        return f"perplexity is {measurement.quality.perplexity_ratio:.3f} of fp32's, the gate is {bound:g}"
    bound = next(limit.bound_ms for limit in request.sla if limit.metric == metric)
    figure = measurement.latency(metric)
    return f"{metric} is {'unknown' if figure is None else f'{figure.value:.4g}'}, the limit is {bound:g}"
