"""How much of a job's budget its trials took, and whether that is a reason to stop. Pure.

What was taken over from another job was paid there: it counts neither as a trial nor as time or energy. A figure that
a trial has not got is never guessed: it is missing from the sum, and the sum says of how many trials. Knows nothing of
how points are chosen, nor of people who stop a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from probes.device import Method
from tuner.pareto import ObjectivePair, hypervolume, place_of
from tuner.request import PLATEAU_SHARE, Budget, TuneRequest
from tuner.trial import OUTCOMES, Trial, TrialRole, TrialState

_S_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a job's trials took."""

    #: Points that were screened and have an outcome: what `budget.trials` counts.
    num_trials: int
    #: Windows of points that had been measured before: finalists and baselines.
    num_repeats: int
    #: Trials whose measurement was taken over from another job.
    num_reused: int
    #: Seconds in which at least one attempt was under way, launches included.
    wall_s: float
    #: Time of the device over all attempts that say theirs; one that was interrupted kept it from its start to its end.
    device_s: float
    #: Its energy over that time, likewise.
    joules: float
    #: How they were obtained, each way once.
    joules_methods: tuple[Method, ...]
    #: Attempts that are in neither sum, or not in the second, because they have no such figure.
    num_without_device_s: int
    num_without_joules: int


def spent(trials: Sequence[Trial]) -> Spent:
    """Return what the trials took; a trial that still runs has taken nothing yet."""
    ended = [trial for trial in trials if trial.state is not TrialState.RUNNING]
    own = [trial for trial in ended if trial.reused_from is None]
    held_s = [_held_s(trial) for trial in own]
    return Spent(
        num_trials=sum(_counts(trial) for trial in own),
        num_repeats=sum(trial.state in OUTCOMES and trial.role is not TrialRole.SCREENING for trial in own),
        num_reused=len(ended) - len(own),
        wall_s=_wall_s(own),
        device_s=sum(device_s for device_s in held_s if device_s is not None),
        joules=sum(trial.device_j for trial in own if trial.device_j is not None),
        joules_methods=_methods(own),
        num_without_device_s=held_s.count(None),
        num_without_joules=sum(trial.device_j is None for trial in own),
    )


def reason_to_stop(
    request: TuneRequest, trials: Sequence[Trial], *, elapsed_s: float, num_in_flight: int = 0
) -> str | None:
    """Return which budget is used up, `trials`, `minutes`, `device_hours`, `joules` or `plateau`; None if none is.

    Trials in flight count as such, but have taken nothing yet.
    `elapsed_s` is the job's wall time in seconds, that of earlier runs included. Where several are used up at once, the
    first of that order is told.
    """
    if spent(trials).num_trials + num_in_flight >= request.budget.trials:
        return "trials"
    return hard_limit(request, trials, elapsed_s=elapsed_s) or ("plateau" if has_plateau(request, trials) else None)


def hard_limit(request: TuneRequest, trials: Sequence[Trial], *, elapsed_s: float) -> str | None:
    """Return which of `minutes`, `device_hours` and `joules` is used up: those end repeats of finalists too."""
    budget, taken = request.budget, spent(trials)
    if budget.minutes is not None and elapsed_s >= 60 * budget.minutes:
        return "minutes"
    if budget.device_hours is not None and taken.device_s >= _S_PER_HOUR * budget.device_hours:
        return "device_hours"
    if budget.joules is not None and taken.joules >= budget.joules:
        return "joules"
    return None


def has_plateau(request: TuneRequest, trials: Sequence[Trial]) -> bool:
    """Tell whether the last `plateau_trials` screened points together raised the hypervolume by next to nothing.

    Before a first point is inside the limits there is nothing to grow from, and no plateau. Repeats are left out: a
    lucky window of a known point is no progress.
    """
    length = request.budget.plateau_trials
    screened = [trial for trial in trials if trial.role is TrialRole.SCREENING and trial.state in OUTCOMES]
    counted = [i for i, trial in enumerate(screened) if _counts(trial)]
    if length is None or len(counted) <= length:
        return False
    corner = _corner_ms(request, screened)
    before = _area(request, screened[: counted[-length]], corner)
    return before > 0 and _area(request, screened, corner) <= (1 + PLATEAU_SHARE) * before


def spent_words(budget: Budget, taken: Spent) -> str:
    """Return what was used of what was allowed, with what is missing from the sums."""
    parts = [f"{taken.num_trials} of {budget.trials} trials"]
    parts += [f"{taken.num_repeats} repeats"] if taken.num_repeats else []
    parts += [f"{taken.num_reused} taken over from other jobs"] if taken.num_reused else []
    if budget.minutes is not None:
        parts.append(f"{taken.wall_s / 60:.3g} of {budget.minutes:g} minutes")
    if taken.device_s or budget.device_hours is not None:
        allowed = "" if budget.device_hours is None else f" of {budget.device_hours:g}"
        remarks = _remarks(_left_out(taken.num_without_device_s))
        parts.append(f"{taken.device_s / _S_PER_HOUR:.3g}{allowed} device-hours{remarks}")
    if taken.joules or budget.joules is not None:
        allowed = "" if budget.joules is None else f" of {budget.joules:,.0f}"
        remarks = _remarks(_kind(taken.joules_methods), _left_out(taken.num_without_joules))
        parts.append(f"{taken.joules:,.0f}{allowed} J{remarks}")
    return ", ".join(parts)


def _remarks(*words: str) -> str:
    said = "; ".join(word for word in words if word)
    return f" ({said})" if said else ""


def _left_out(num_trials: int) -> str:
    return f"{num_trials} trial{'s' if num_trials > 1 else ''} without a figure left out" if num_trials else ""


def _methods(trials: Sequence[Trial]) -> tuple[Method, ...]:
    charged = [trial.measurement for trial in trials if trial.device_j is not None and trial.measurement is not None]
    return tuple(dict.fromkeys(measurement.reading.method for measurement in charged))


def _kind(methods: Sequence[Method]) -> str:
    """Return what joules are that nobody measured."""
    guessed = [method for method in methods if method in (Method.ESTIMATE, Method.SIMULATED)]
    if not guessed:
        return ""
    if len(guessed) < len(methods):
        return "partly an estimate"
    return Method.SIMULATED.value if Method.SIMULATED in guessed else Method.ESTIMATE.value


def _held_s(trial: Trial) -> float | None:
    """Return how long an attempt kept the device; a worker that was killed could not say it, but its rows do."""
    is_told = trial.device_s is not None or trial.state is not TrialState.INTERRUPTED or trial.finished_at is None
    return trial.device_s if is_told else _wall_s([trial])


def _wall_s(trials: Sequence[Trial]) -> float:
    """Return how long trials took, those side by side counted once."""
    total_s, covered_until = 0.0, datetime.min.replace(tzinfo=UTC)
    for trial in sorted(trials, key=lambda trial: trial.started_at):
        if trial.finished_at is not None and trial.finished_at > covered_until:
            total_s += (trial.finished_at - max(trial.started_at, covered_until)).total_seconds()
            covered_until = trial.finished_at
    return total_s


def _counts(trial: Trial) -> bool:
    """Whether a trial is one of `budget.trials`."""
    return trial.role is TrialRole.SCREENING and trial.reused_from is None and trial.state in OUTCOMES


def _corner_ms(request: TuneRequest, trials: Sequence[Trial]) -> float:
    """Return the latency up to which the area counts: the limit where there is one, else the slowest trial's."""
    limits = {limit.metric: limit.bound_ms for limit in request.sla}
    places = _places(request, trials)
    return limits.get(request.latency_metric, max((place.latency_ms for place in places), default=0.0))


def _area(request: TuneRequest, trials: Sequence[Trial], corner_ms: float) -> float:
    return hypervolume(_places(request, trials), corner_ms)


def _places(request: TuneRequest, trials: Sequence[Trial]) -> list[ObjectivePair]:
    return [place for trial in trials if (place := place_of(trial, request.latency_metric)) is not None]
