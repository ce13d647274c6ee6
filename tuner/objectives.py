"""A measurement as objective values, limit violations and a verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.measurement import Measurement, Quality
from tuner.request import QualityGate, TuneRequest
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
        missed |= quality_violations(request.quality, measurement.quality)
    return missed


def quality_violations(gate: QualityGate, quality: Quality) -> dict[str, float]:
    """Return, per limit of the gate, by which share of the bound it is missed; 0 or less is inside.

    A figure that the engine does not give counts as missed by the whole bound, as a latency without samples does.
    """
    missed = {"quality:perplexity_ratio": quality.perplexity_ratio / gate.max_perplexity_ratio - 1.0}
    for name, figure, bound in (
        ("quality:kl", quality.kl, gate.max_kl),
        ("quality:perplexity", quality.text_perplexity, gate.max_perplexity),
    ):
        if bound is not None:
            missed[name] = 1.0 if figure is None else figure / bound - 1.0
    if gate.min_top1_agreement is not None:
        agreement = quality.top1_agreement
        missed["quality:top1_agreement"] = 1.0 if agreement is None else 1.0 - agreement / gate.min_top1_agreement
    if gate.tasks:
        worst = min((one.share for one in quality.tasks), default=0.0)
        missed["quality:task_share"] = 1.0 - worst / gate.min_task_share
    return missed


def quality_verdict(gate: QualityGate, quality: Quality) -> Verdict | None:
    """Return why a precision fails the gate, whatever a window would show; None when it passes."""
    missed = {name: share for name, share in quality_violations(gate, quality).items() if share > 0}
    if not missed:
        return None
    worst = max(missed, key=lambda name: missed[name])
    told = "; ".join(_explain_quality(gate, quality, name) for name in missed)
    when = "" if quality.measured_at is None else f" on {quality.measured_at:%Y-%m-%d}"
    known = f"known from a job{when}" if quality.is_reused else "measured in this job"
    return Verdict(TrialState.INFEASIBLE, worst, f"{told} ({known}; no window was run)")


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
        return _explain_quality(request.quality, measurement.quality, name)
    bound = next(limit.bound_ms for limit in request.sla if limit.metric == metric)
    figure = measurement.latency(metric)
    return f"{metric} is {'unknown' if figure is None else f'{figure.value:.4g}'}, the limit is {bound:g}"


def _explain_quality(gate: QualityGate, quality: Quality, name: str) -> str:
    if name == "quality:perplexity_ratio":
        figure = f"{quality.perplexity_ratio:.3f} of {quality.reference}'s"
        return f"perplexity is {figure}, the gate is {gate.max_perplexity_ratio:g}"
    if name == "quality:task_share":
        return _explain_tasks(gate, quality)
    words, value, bound = {
        "quality:kl": (f"KL divergence from {quality.reference}", quality.kl, gate.max_kl),
        "quality:top1_agreement": (
            f"top-1 agreement with {quality.reference}", quality.top1_agreement, gate.min_top1_agreement
        ),
        "quality:perplexity": ("perplexity on the text file", quality.text_perplexity, gate.max_perplexity),
    }[name]  # fmt: skip
    return f"{words} is {'unknown' if value is None else f'{value:.4g}'}, the gate is {bound:g}"


def _explain_tasks(gate: QualityGate, quality: Quality) -> str:
    """Name every task that is below the share."""
    low = [one for one in quality.tasks if one.share < gate.min_task_share]
    told = ", ".join(
        f"{one.task} {one.metric} is {one.score:.4g}, {one.share:.4f} of the {one.reference_score:.4g} of "
        f"{quality.reference}"
        for one in low
    )
    return f"{told or 'scores on tasks are unknown'}; the gate is {gate.min_task_share:g}"
