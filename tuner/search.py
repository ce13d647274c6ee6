"""Ask, measure, tell, stop: which point to try next, by Optuna.

Optuna keeps nothing: every question is asked of a study rebuilt from the trials so far, so a resumed job goes on
exactly as an undisturbed one would. Energy is maximised, latency minimised, limits are constraints. Each point is
measured once; when all have been, the search is over. The only `import optuna`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState

from tuner.objectives import violations
from tuner.pareto import figures_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.space import Knob, SearchSpace
from tuner.trial import OUTCOMES, Trial, TrialState

#: Points drawn at random before the surrogate is trusted, the default point included.
NUM_STARTUP = 5

#: Measures a point as the trial of that number.
Measure = Callable[[int, OperatingPoint], Trial]

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Search:
    """Iterate to run a job: yields each trial as it ends.

    `history` holds the trials that already count, `retries` the points to try again under their own numbers. After
    the iteration `ended_because` says why it ended: `trials`, `minutes`, `exhausted` or what `should_stop` returned.
    """

    def __init__(
        self,
        request: TuneRequest,
        space: SearchSpace,
        measure: Measure,
        *,
        history: Sequence[Trial] = (),
        retries: Sequence[tuple[int, OperatingPoint]] = (),
        should_stop: Callable[[], str | None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._space = space
        self._measure = measure
        self._retries = list(retries)
        self._should_stop = should_stop
        self._now = now
        self._started_s = now() - sum(_duration_s(trial) for trial in history)
        self.trials = [trial for trial in history if trial.state in OUTCOMES]
        self.ended_because: str | None = None

    def __iter__(self) -> Iterator[Trial]:
        """Ask, measure, tell, until a reason to stop."""
        while (reason := self._reason_to_stop()) is None:
            number, point = self._next_point()
            trial = self._measure(number, point)
            self.trials.append(trial)
            yield trial
        self.ended_because = reason

    def _reason_to_stop(self) -> str | None:
        budget = self._request.budget
        if (reason := self._should_stop()) is not None:
            return reason
        if len(self.trials) >= budget.trials:
            return "trials"
        if budget.minutes is not None and self._now() - self._started_s >= 60 * budget.minutes:
            return "minutes"
        tried = {trial.point for trial in self.trials if trial.point in self._space}
        if not self._retries and len(tried) >= self._space.size:
            return "exhausted"
        return None

    def _next_point(self) -> tuple[int, OperatingPoint]:
        if self._retries:
            return self._retries.pop(0)
        number = max((trial.number for trial in self.trials), default=-1) + 1
        return number, suggest(self._request, self._space, self.trials)


def suggest(request: TuneRequest, space: SearchSpace, trials: Sequence[Trial]) -> OperatingPoint:
    """Return the most promising point not yet tried; the same trials and seed give the same point.

    The first is the default point, so that every job has the reference that gains are told against. When the sampler
    names a point that was tried, the nearest untried one takes its place (counted in steps along the knobs).
    """
    tried = {trial.point for trial in trials}
    if space.default_point not in tried:
        return space.default_point
    wanted = _ask(request, space, trials)
    if wanted not in tried:
        return wanted
    draw = random.Random(f"{request.seed}/{len(trials)}")
    untried = [point for point in space.points() if point not in tried]
    draw.shuffle(untried)
    return min(untried, key=lambda point: _steps_between(space, point, wanted))


def _ask(request: TuneRequest, space: SearchSpace, trials: Sequence[Trial]) -> OperatingPoint:
    seed = random.Random(f"{request.seed}/{len(trials)}/sampler").getrandbits(32)  # a job's may be any whole number
    sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=NUM_STARTUP)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    distributions = {knob.name: _distribution(knob) for knob in space.knobs}
    for trial in trials:
        if trial.point in space:
            study.add_trial(_frozen(request, space, trial, distributions))
    asked = study.ask(distributions)
    return OperatingPoint.of({knob.name: _ordered(knob)[_index(knob, asked.params[knob.name])] for knob in space.knobs})


def _frozen(
    request: TuneRequest, space: SearchSpace, trial: Trial, distributions: dict[str, BaseDistribution]
) -> optuna.trial.FrozenTrial:
    """Tell Optuna a trial: what was measured, with its limits as constraints; nothing for the others."""
    params = {knob.name: _param(knob, trial.point) for knob in space.knobs}
    is_measured = trial.state in (TrialState.COMPLETE, TrialState.INFEASIBLE)
    place = figures_of(trial.measurement, request.latency_metric) if is_measured else None
    limits = {} if trial.measurement is None else violations(request, trial.measurement)
    # Numerics make a point infeasible without any limit being missed: with constraints alone it would pass for good.
    is_unexplained = trial.state is TrialState.INFEASIBLE and not any(share > 0 for share in limits.values())
    if place is None or is_unexplained:
        return optuna.trial.create_trial(state=OptunaState.FAIL, params=params, distributions=distributions)
    return optuna.trial.create_trial(
        params=params,
        distributions=distributions,
        values=[place.tok_per_j, place.latency_ms],
        constraints=limits,
    )


def _distribution(knob: Knob) -> BaseDistribution:
    """Numbers are searched by their rank, so that 1, 2, 4, ... 32 are equally far apart; words have no order."""
    if isinstance(knob.values[0], str):
        return CategoricalDistribution(knob.values)
    return IntDistribution(0, len(knob.values) - 1)


def _ordered(knob: Knob) -> list[int | float | str]:
    return list(knob.values) if isinstance(knob.values[0], str) else sorted(knob.values, key=float)


def _index(knob: Knob, param: int | float | str) -> int:
    return knob.values.index(param) if isinstance(knob.values[0], str) else int(param)


def _param(knob: Knob, point: OperatingPoint) -> int | float | str:
    value = point[knob.name]
    return value if isinstance(value, str) else _ordered(knob).index(value)


def _steps_between(space: SearchSpace, a: OperatingPoint, b: OperatingPoint) -> int:
    return sum(
        int(a[knob.name] != b[knob.name])
        if isinstance(knob.values[0], str)
        else abs(_ordered(knob).index(a[knob.name]) - _ordered(knob).index(b[knob.name]))
        for knob in space.knobs
    )


def _duration_s(trial: Trial) -> float:
    return 0.0 if trial.finished_at is None else (trial.finished_at - trial.started_at).total_seconds()
