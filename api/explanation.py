"""The explanation of a stored job: its public JSON, and the lines that stand at the job's end."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from api.explanation_schemas import (
    ComparedOut,
    DifferenceOut,
    EffectOut,
    ExplanationOut,
    GainOut,
    KnobEffectOut,
    RatioOut,
    SpentOut,
)
from api.records import nearest_misses
from api.schemas import EstimateOut
from api.stores import Stores
from db.job import Job
from tuner.aggregates import Aggregated
from tuner.budget import spent, spent_words
from tuner.knobs import SIMULATED
from tuner.measurement import Estimate
from tuner.trial import Trial, TrialState

if TYPE_CHECKING:  # what explains is imported when it is asked: a service starts sooner
    from tuner.explain import Difference, Explanation, Gain
    from tuner.influence import Influence
    from tuner.steps import Step

#: Explanations that are remembered: a few megabytes.
MAX_REMEMBERED = 64


class Explanations:
    """The explanations that one application was asked for last: each takes most of a second at 200 points.

    What is remembered is asked for by the job's state and by how many of its attempts have ended, as read before the
    trials were: it is never older than what is stored. For several threads.
    """

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._found: OrderedDict[Hashable, ExplanationOut] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, job: Job, trials: Callable[[], Sequence[Trial]]) -> ExplanationOut:
        """Explain a job as far as it is; its trials are asked for only where that is new."""
        counts = [(state, num) for state, num in job.num_trials.items() if state is not TrialState.RUNNING]
        key = (job.id, job.state, job.ended_because, tuple(sorted(counts)))
        with self._lock:
            if (known := self._found.get(key)) is not None:
                self._found.move_to_end(key)
                return known
        found = explanation_of(job, trials())
        with self._lock:
            self._found[key] = found
            while len(self._found) > self._max_remembered:
                self._found.popitem(last=False)
        return found


def explanation_of_job(stores: Stores, job_id: str) -> ExplanationOut:
    """Explain a job as far as it is; raises UnknownJob."""
    job = stores.jobs.get(job_id)
    return explanation_of(job, stores.trials.list(job.id))


def explanation_of(job: Job, trials: Sequence[Trial]) -> ExplanationOut:
    """Return the public form of what a job's trials explain."""
    from api.explanation_words import full
    from tuner.explain import explain

    found, taken = explain(job.request, trials), spent(trials)
    misses = [] if found.recommended else nearest_misses(job.request, trials)
    reading = next((one.trial.measurement.reading for one in _shown(found) if one.trial.measurement), None)
    return ExplanationOut(
        job=job.id,
        model=job.request.model,
        is_simulated=job.request.engine == SIMULATED,
        is_final=job.has_ended,
        ended_because=job.ended_because,
        latency_metric=job.request.latency_metric,
        energy_scope=None if reading is None else reading.scope.value,
        energy_method=None if reading is None else reading.method.value,
        is_estimate=None if reading is None else reading.is_estimate,
        recommended=None if found.recommended is None else _compared(found.recommended),
        tied_with=[one.trial.number for one in found.tied],
        gains=[_gain(gain) for gain in found.gains],
        knobs=[_knob(step, found) for step in found.steps],
        num_points=found.tok_per_j.num_points,
        tok_per_j_r2=found.tok_per_j.r2,
        latency_r2=found.latency.r2,
        nearest_misses=misses,
        spent=SpentOut(**dataclasses.asdict(taken)),
        sentences=full(job, found, misses, taken, num_pruned=_num_pruned(trials)),
    )


def end_lines(stores: Stores, job: Job) -> list[str]:
    """Return what a job found, in five sentences at most, and what it used of its budget."""
    from api.explanation_words import brief
    from tuner.explain import explain

    trials = stores.trials.list(job.id)
    return [
        *brief(job.request, explain(job.request, trials)),
        f"used: {spent_words(job.request.budget, spent(trials))}",
    ]


def _num_pruned(trials: Sequence[Trial]) -> int:
    """Return how many trials were complete, so that they had figures, and have none any more."""
    return sum(trial.state is TrialState.COMPLETE and trial.measurement is None for trial in trials)


def _shown(found: Explanation) -> list[Aggregated]:
    references = [gain.reference for gain in found.gains if gain.reference is not None]
    return [*([] if found.recommended is None else [found.recommended]), *references]


def _compared(point: Aggregated) -> ComparedOut:
    from tuner.explain import throughput

    return ComparedOut(
        trial=point.trial.number,
        knobs=point.point.as_dict(),
        num_windows=point.num_windows,
        is_feasible=point.is_feasible,
        is_cut=point.is_cut,
        tok_per_j=_estimate(point.tok_per_j),
        latency_ms=_estimate(point.latency_ms),
        output_tok_s=_estimate(throughput(point)),
    )


def _gain(gain: Gain) -> GainOut:
    return GainOut(
        against=gain.against.value,
        reference=None if gain.reference is None else _compared(gain.reference),
        missing=None if gain.missing is None else gain.missing.value,
        num_clocks=gain.num_clocks,
        tok_per_j=_difference(gain.tok_per_j),
        latency=_difference(gain.latency),
        output_tok_s=_difference(gain.output_tok_s),
    )


def _knob(step: Step, found: Explanation) -> KnobEffectOut:
    return KnobEffectOut(
        knob=step.knob,
        tok_per_j=_effect(step.knob, found.tok_per_j),
        latency=_effect(step.knob, found.latency),
        from_value=step.from_value,
        to_value=step.to_value,
        num_pairs=step.num_pairs,
        tok_per_j_ratio=RatioOut(**dataclasses.asdict(step.tok_per_j)),
        latency_ratio=RatioOut(**dataclasses.asdict(step.latency)),
    )


def _effect(knob: str, influence: Influence) -> EffectOut | None:
    effect = influence.effects.get(knob)
    return None if effect is None else EffectOut(alone=effect.alone, in_all=effect.in_all)


def _difference(difference: Difference | None) -> DifferenceOut | None:
    return None if difference is None else DifferenceOut(**dataclasses.asdict(difference))


def _estimate(estimate: Estimate) -> EstimateOut:
    return EstimateOut(**dataclasses.asdict(estimate))
