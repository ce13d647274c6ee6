"""Ask, measure, tell, stop: which point to try next, by Optuna.

Optuna keeps nothing: every question is asked of a study rebuilt from the trials so far, so a resumed job goes on
exactly as an undisturbed one would. Energy is maximised, latency minimised, limits are constraints. Each point is
measured once; when all have been, the search is over. The only `import optuna`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState

from tuner.objectives import violations
from tuner.pareto import ObjectivePair, figures_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.space import Knob, SearchSpace
from tuner.trial import OUTCOMES, Trial, TrialRole, TrialState

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from optuna._gp.acqf import BaseAcquisitionFunc

    #: Places in Optuna's unit cube: one, or one a row.
    _Places = NDArray[np.float64]

#: Points that no surrogate chooses, the default point included: at least so many, and more in a larger budget, so that
#: every value of the longest knob is seen once. Optuna takes the worst feasible point so far as the corner of the area
#: that it wants to grow: what lies beyond is worth nothing to it, so the first points have to lie far apart.
NUM_STARTUP = 5
STARTUP_SHARE = 0.25

#: Points whose promise is computed for each question: all of a space up to this size, as many at random of a larger.
NUM_CANDIDATES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A point to measure next."""

    #: The trial's.
    number: int
    point: OperatingPoint
    role: TrialRole = TrialRole.SCREENING
    #: The front so far: a window may end once it is certain that the point is dominated by these.
    rivals: tuple[ObjectivePair, ...] = ()


#: Measures what is proposed.
Measure = Callable[[Proposal], Trial]

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
            trial = self._measure(self._proposal())
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

    def _proposal(self) -> Proposal:
        if self._retries:
            number, point = self._retries.pop(0)
        else:
            number = max((trial.number for trial in self.trials), default=-1) + 1
            point = suggest(self._request, self._space, self.trials)
        return Proposal(number=number, point=point)


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


def _num_startup(request: TuneRequest, space: SearchSpace) -> int:
    longest = max(len(knob.values) for knob in space.knobs)
    return max(NUM_STARTUP, min(longest, int(STARTUP_SHARE * request.budget.trials)))


def _ask(request: TuneRequest, space: SearchSpace, trials: Sequence[Trial]) -> OperatingPoint:
    seed = random.Random(f"{request.seed}/{len(trials)}/sampler").getrandbits(32)  # a job's may be any whole number
    sampler = GridSampler(
        seed=seed,
        n_startup_trials=_num_startup(request, space),
        independent_sampler=SpreadSampler(request.seed, len(trials)),
    )
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    distributions = {knob.name: _distribution(knob) for knob in space.knobs}
    missed = _missed_limits(request, trials)
    for trial in trials:
        if trial.point in space:
            study.add_trial(_frozen(request, space, trial, distributions, missed))
    with _one_thread():
        asked = study.ask(distributions)
    return OperatingPoint.of({knob.name: _ordered(knob)[_index(knob, asked.params[knob.name])] for knob in space.knobs})


class SpreadSampler(optuna.samplers.RandomSampler):
    """The first points: every value of a knob comes once, in random order, before any comes again."""

    def __init__(self, seed: int, number: int) -> None:
        """Choose the point of that number of the design that belongs to the seed."""
        super().__init__()
        self._seed = seed
        self._number = number

    def sample_independent(
        self,
        study: optuna.study.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> int | float | str:
        """Return the knob's value, or the rank of it."""
        if isinstance(param_distribution, CategoricalDistribution):
            order: list[int | float | str] = [str(choice) for choice in param_distribution.choices]
        else:
            assert isinstance(param_distribution, IntDistribution)
            order = list(range(param_distribution.high + 1))
        turn, place = divmod(self._number, len(order))
        random.Random(f"{self._seed}/{param_name}/{turn}").shuffle(order)
        return order[place]


class GridSampler(optuna.samplers.GPSampler):
    """Optuna's Gaussian process, asked what it makes of very many points of the grid at once.

    Optuna goes from ten of them to better ones in some hundred small questions, each of which costs 5 ms whatever it
    asks for, and ten times as many for knobs of more than 16 values. All points of a usual space in one question cost
    less than that, and none is missed.
    """

    def _optimize_acqf(self, acqf: BaseAcquisitionFunc, best_params: _Places | None) -> _Places:
        """Return the most promising of all points, or in a space of too many one that no step along a knob betters."""
        values = acqf.search_space.get_choices_of_discrete_params()
        known = np.empty((0, len(values))) if best_params is None else best_params
        best, promise = _most_promising(acqf, np.concatenate([known, self._candidates(values)]))
        while True:
            better, promise_of_better = _most_promising(acqf, _steps_from(best, values))
            if not promise_of_better > promise:
                return best
            best, promise = better, promise_of_better

    def _candidates(self, values: Sequence[_Places]) -> _Places:
        if math.prod(len(of_one) for of_one in values) <= NUM_CANDIDATES:
            return np.stack([axis.ravel() for axis in np.meshgrid(*values, indexing="ij")], axis=1)
        return np.stack([self._rng.rng.choice(of_one, NUM_CANDIDATES) for of_one in values], axis=1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: on two busy cores two of them waited for each other up to 15 s for one question."""
    import torch  # takes seconds, which whoever never asks need not wait for

    found = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(found)


def _most_promising(acqf: BaseAcquisitionFunc, places: _Places) -> tuple[_Places, float]:
    promises = acqf.eval_acqf_no_grad(places)
    best = int(np.argmax(promises))
    return places[best], float(promises[best])


def _steps_from(place: _Places, values: Sequence[_Places]) -> _Places:
    """Return all places that differ from one in a single knob, and itself."""
    steps = np.repeat(place[None, :], sum(len(of_one) for of_one in values), axis=0)
    row = 0
    for axis, of_one in enumerate(values):
        steps[row : row + len(of_one), axis] = of_one
        row += len(of_one)
    return steps


def _missed_limits(request: TuneRequest, trials: Sequence[Trial]) -> frozenset[str]:
    """Return the limits that some trial missed; of the others a surrogate could only learn that all is well."""
    measured = (trial.measurement for trial in trials if trial.measurement is not None)
    return frozenset(name for one in measured for name, share in violations(request, one).items() if share > 0)


def _frozen(
    request: TuneRequest,
    space: SearchSpace,
    trial: Trial,
    distributions: dict[str, BaseDistribution],
    missed: frozenset[str],
) -> optuna.trial.FrozenTrial:
    """Tell Optuna a trial: what was measured, with missed limits as constraints; nothing for the others."""
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
        constraints={name: share for name, share in limits.items() if name in missed},
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
