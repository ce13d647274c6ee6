"""An answer's public form and its sentences. Decides nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from api.export.command import command
from api.export.forms import FORMS
from api.export.recipe import NotExportable, Recipe, label_of, load_words, nvidia_smi, recipe_of
from api.recommend import Bound, Choice, Miss, Near
from api.recommend_schemas import (
    LimitOut,
    MissedOut,
    NearOut,
    OtherLoadOut,
    OverDefaultOut,
    ProofOut,
    RecommendationOut,
    RecommendationQuery,
    RecommendedOut,
)
from api.result_page import Origin
from api.schemas import EstimateOut, QualityOut
from db.result import Result, workload_key
from engine.servers import sglang, vllm
from tuner.measurement import Estimate
from tuner.request import TuneRequest

#: Points are inside a limit by the mean of their windows.
JUDGED_BY = "mean"
_STALE_WORDS = {
    "too_old": "it is older than was asked for",
    "driver_changed": "the device's driver has changed since",
    "engine_changed": "the engine's version has changed since",
    "model_changed": "the model's weights have changed since",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that an answer is made of."""

    query: RecommendationQuery
    bounds: tuple[Bound, ...]
    choice: Choice
    #: The public form of `choice.best`, without what depends on the question.
    best: RecommendedOut | None
    now: datetime
    stale_because: tuple[str, ...]
    #: Where results of other loads come from, by their ids; None where one was deleted meanwhile.
    loads: Mapping[int, Origin | None]


def answer_out(answer: Answer) -> RecommendationOut:
    """Return an answer's public form."""
    choice = answer.choice
    return RecommendationOut(
        model=answer.query.model,
        device=answer.query.device,
        recommended=None if answer.best is None else _asked_for(answer, answer.best),
        nearest=[_near(one) for one in choice.nearest],
        why=" ".join(why_words(answer)),
        judged_by=JUDGED_BY,
        num_points=len(choice.compared),
        other_loads=[
            OtherLoadOut(
                workload=one.workload,
                load=origin.load,
                device_uuid=one.device_uuid,
                num_points=one.num_points,
                measured_at=one.measured_at,
            )
            for one in choice.others
            if (origin := answer.loads[one.result_id]) is not None
        ],
    )


def why_words(answer: Answer) -> list[str]:
    """Return why this is the answer, in sentences with numbers."""
    choice, best = answer.choice, answer.best
    limits = ", ".join(bound_words(bound) for bound in answer.bounds)
    count = len(choice.compared)
    points = f"{count} stored point{'' if count == 1 else 's'}"
    if best is None:
        miss = choice.nearest[0]
        return [
            f"Of {points} none is inside {limits}.",
            f"The nearest, trial {miss.found.number} of job {miss.found.job_id[:8]}, {_miss_words(miss)}.",
        ]
    inside = f" inside {limits}" if limits else ""
    told = [f"Of {points} trial {best.trial} has the most tokens per joule{inside}: {best.tok_per_j.value:.4g}."]
    gain = best.over_default
    if gain is not None and gain.trial == best.trial:
        told.append("It is the default configuration itself.")
    elif gain is not None:
        doubt = "" if gain.is_told_apart else ", which the intervals do not tell apart"
        told.append(f"That is {gain.ratio:.3g} times the default configuration's{doubt}.")
    unsure = [one.name for one in answer.bounds if one.is_certain(_figure(best, one.name)) is not True]
    if unsure:
        told.append(f"The means are inside; the 95 % intervals do not show it for {', '.join(unsure)}.")
    if answer.stale_because:
        told.append(f"It may no longer hold: {'; '.join(_STALE_WORDS[one] for one in answer.stale_because)}.")
    if best.is_simulated:
        told.append("Nothing was measured: a model of the device gave the figures.")
    elif best.is_estimate:
        told.append("The energy is an estimate.")
    return told


def bound_words(bound: Bound) -> str:
    """Return a limit as a comparison."""
    return f"{bound.name} {'>=' if bound.is_least else '<='} {bound.value:g}"


def _miss_words(near: Near) -> str:
    return " and ".join(
        f"has {'no known' if one.figure is None else f'{one.figure:.4g} as its'} {one.bound.name} "
        f"({bound_words(one.bound)})"
        for one in near.missed
    )


def recommended_out(model: str, device: str, engine: str, best: Result) -> RecommendedOut:
    """Return a point's public form, without what depends on limits and time: that is left empty."""
    evidence, gain = best.evidence, best.evidence.gain
    recipe = _recipe(TuneRequest(model=model, engine=engine, device=device, workload=evidence.workload), best)
    return RecommendedOut(
        job=best.job_id,
        trial=best.number,
        engine=engine,
        knobs=best.point.as_dict(),
        is_simulated=best.is_simulated,
        is_estimate=best.is_estimate,
        label=label_of(best),
        tok_per_j=_estimate(evidence.tok_per_j),
        output_tok_s=_estimate(evidence.output_tok_s),
        mean_power_w=best.mean_power_w,
        latencies={one.name: _estimate(one.estimate) for one in evidence.latencies},
        quality_share=best.quality,
        limits=[],
        over_default=None
        if gain is None
        else OverDefaultOut(
            trial=gain.number, ratio=gain.ratio, low=gain.low, high=gain.high, is_told_apart=gain.is_told_apart
        ),
        evidence=_proof(best),
        measured_at=best.measured_at,
        age_hours=0.0,
        is_stale=False,
        stale_because=[],
        run={} if recipe is None else run_commands(recipe),
        exports={} if recipe is None else {form: export_path(best, form) for form in FORMS},
    )


def _asked_for(answer: Answer, best: RecommendedOut) -> RecommendedOut:
    """Return the point's public form with what the question and the time add to it."""
    age_s = (answer.now - best.measured_at).total_seconds()
    return best.model_copy(
        update={
            "limits": [_limit(bound, _figure(best, bound.name)) for bound in answer.bounds],
            "age_hours": max(0.0, age_s / 3600),
            "is_stale": bool(answer.stale_because),
            "stale_because": list(answer.stale_because),
        }
    )


def run_commands(recipe: Recipe) -> dict[str, str]:
    """Return commands to copy: by engine where one starts it, and `nvidia_smi` where it sets clocks or power."""
    set_device = {"nvidia_smi": "\n".join(nvidia_smi(recipe)) + "\n"} if nvidia_smi(recipe) else {}
    if not recipe.is_launchable:
        return set_device
    serve = command(["vllm", "serve", recipe.model], vllm.flags_of(recipe.settings))
    launch = command(
        ["python3", "-m", "sglang.launch_server"],
        [("--model-path", recipe.model), *sglang.flags_of(recipe.settings)],
    )
    return {vllm.Vllm.kind: serve, sglang.Sglang.kind: launch, **set_device}


def export_path(result: Result, form: str) -> str:
    """Return where a point can be had in a form."""
    return f"/v1/jobs/{result.job_id}/export?{urlencode({'form': form, 'number': result.number})}"


def _recipe(request: TuneRequest, best: Result) -> Recipe | None:
    """Return the point as a recipe; None where its model has a name that no command can say."""
    try:
        return recipe_of(request, best)
    except NotExportable:
        return None


def _proof(best: Result) -> ProofOut:
    evidence = best.evidence
    return ProofOut(
        num_windows=evidence.num_windows,
        num_sessions=evidence.num_sessions,
        window_s=evidence.window_s,
        interval_of=evidence.interval_of,
        energy_scope=evidence.scope,
        energy_method=evidence.method,
        energy_detail=evidence.detail,
        device_uuids=list(evidence.device_uuids),
        driver=evidence.driver,
        engine_version=evidence.engine_version,
        model_hash=evidence.model_hash,
        quality=None if evidence.quality is None else QualityOut(**dataclasses.asdict(evidence.quality)),
        workload=workload_key(evidence.workload),
        load=load_words(evidence.workload),
    )


def _limit(bound: Bound, figure: Estimate) -> LimitOut:
    return LimitOut(
        name=bound.name,
        bound=bound.value,
        is_least=bound.is_least,
        figure=_estimate(figure),
        margin=-bound.missed_by(figure.value),
        is_certain=bound.is_certain(figure),
    )


def _near(near: Near) -> NearOut:
    return NearOut(
        job=near.found.job_id,
        trial=near.found.number,
        tok_per_j=near.found.tok_per_j,
        output_tok_s=near.found.output_tok_s,
        mean_power_w=near.found.mean_power_w,
        missed=[_missed(one) for one in near.missed],
    )


def _missed(miss: Miss) -> MissedOut:
    return MissedOut(
        name=miss.bound.name,
        bound=miss.bound.value,
        is_least=miss.bound.is_least,
        figure=miss.figure,
        missed_by=miss.missed_by,
    )


def _figure(best: RecommendedOut, name: str) -> Estimate:
    """Return a figure of a point that has it, with its interval as far as that is known."""
    plain = {"power_w": best.mean_power_w, "quality": best.quality_share}
    if (value := plain.get(name)) is not None:
        return Estimate(value)
    shown = best.output_tok_s if name == "output_tok_s" else best.latencies[name]
    return Estimate(shown.value, shown.low, shown.high)


def _estimate(estimate: Estimate) -> EstimateOut:
    return EstimateOut(value=estimate.value, low=estimate.low, high=estimate.high)
