"""Which point to try next, asked of Optuna: by Wattfront's own planner, or by one of Optuna's samplers to compare with.

All of them run through one study: energy is maximised, latency minimised, limits are constraints. Of points that were
tried before nothing is measured again: a sampler that asks for one is told what it showed and asked once more. The
only `import optuna`.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState

from tuner.measurement import Measurement
from tuner.objectives import violations
from tuner.pareto import figures_of
from tuner.planner import DEFAULTS, Options, next_points
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.space import Knob, SearchSpace
from tuner.trial import Trial, TrialState

#: How often a sampler may ask for points that were tried before the nearest that was not takes their place.
MAX_REPEATS = 10
#: Wattfront's own, by its name in jobs.
OWN = "wattfront"
#: By what share a limit that cut a window is held to be missed at least, whatever the window showed until then.
MISSED_SHARE = 0.001
#: Samplers to which words are ranks: their points fill a cube, and words are not in it.
_BY_RANK = ("sobol",)

optuna.logging.set_verbosity(optuna.logging.WARNING)


class PlannedSampler(optuna.samplers.BaseSampler):
    """Wattfront's planner as a sampler: it looks at the trials themselves, which say more than a study keeps."""

    def __init__(self, request: TuneRequest, space: SearchSpace, options: Options = DEFAULTS) -> None:
        self._request = request
        self._space = space
        self._options = options
        #: What is known when the next question comes, and what is being measured then.
        self.trials: Sequence[Trial] = ()
        self.pending: Sequence[OperatingPoint] = ()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return every knob: a point is chosen as a whole."""
        return {knob.name: _distribution(knob) for knob in self._space.knobs}

    def sample_relative(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the planner's point. Raises Exhausted when no point is left that could matter."""
        points = next_points(self._request, self._space, self.trials, pending=self.pending, options=self._options)
        if not points:
            raise Exhausted
        return {knob.name: _param(knob, points[0]) for knob in self._space.knobs}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Refuse: no knob is chosen by itself. Raises NotImplementedError."""
        raise NotImplementedError(f"{param_name} is chosen together with the other knobs")


class EndlessGridSampler(optuna.samplers.GridSampler):
    """Optuna's grid, which leaves it to the search when to stop.

    Optuna's own stops the study after its last point, which it only may inside of `optimize`, and trips over points
    that were enqueued.
    """

    def after_trial(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        state: OptunaState,
        values: Sequence[float] | None,
    ) -> None:
        """Go on."""


class Exhausted(Exception):
    """No point is left that could change the front; end the search."""


class OptunaStudy:
    """One job's study, which goes on where the trials it is told of end."""

    def __init__(self, request: TuneRequest, space: SearchSpace, *, options: Options = DEFAULTS) -> None:
        """Begin a study; `options` switch parts of Wattfront's own planner off."""
        self._request = request
        self._space = space
        self._distributions = {knob.name: _distribution(knob, request.sampler) for knob in space.knobs}
        with _quiet():
            self._sampler = (
                PlannedSampler(request, space, options)
                if request.sampler == OWN
                else _SAMPLERS[request.sampler](request, space)
            )
            self._study = optuna.create_study(directions=["maximize", "minimize"], sampler=self._sampler)
        if not isinstance(self._sampler, PlannedSampler):  # it begins there by itself
            self._study.enqueue_trial(self._params(space.default_point))
        self._asked: dict[OperatingPoint, optuna.trial.Trial] = {}
        self._told: dict[OperatingPoint, Trial] = {}

    def next_points(
        self, trials: Sequence[Trial], *, count: int = 1, pending: Sequence[OperatingPoint] = ()
    ) -> tuple[OperatingPoint, ...]:
        """Return up to `count` points that were not tried; `pending` are being measured. None are left when empty."""
        for trial in trials:
            self._tell(trial)
        chosen: list[OperatingPoint] = []
        while len(chosen) < count and (point := self._next(trials, [*pending, *chosen])) is not None:
            chosen.append(point)
        return tuple(chosen)

    def _tell(self, trial: Trial) -> None:
        """Tell the study of a trial it does not know.

        After a restart the sampler is asked what it was asked then, so that it stands where it stood.
        """
        if trial.point in self._told or trial.point not in self._space:
            return
        if isinstance(self._sampler, PlannedSampler):  # it keeps nothing
            self._told[trial.point] = trial
            return
        asked = self._asked.pop(trial.point, None)
        if asked is None and (again := self._ask(())) != trial.point:
            self._study.tell(self._asked.pop(again), state=OptunaState.FAIL)
        asked = asked or self._asked.pop(trial.point, None) or self._study.ask(self._enqueued(trial.point))
        self._told[trial.point] = trial
        self._answer(asked, trial)

    def _next(self, trials: Sequence[Trial], busy: Sequence[OperatingPoint]) -> OperatingPoint | None:
        if len({*self._told, *busy}) >= self._space.size:
            return None
        if isinstance(self._sampler, PlannedSampler):
            self._sampler.trials, self._sampler.pending = trials, busy
            try:
                return self._point(self._study.ask(self._distributions))
            except Exhausted:
                return None
        return self._ask(busy)

    def _ask(self, busy: Sequence[OperatingPoint]) -> OperatingPoint:
        """Ask until a point comes that was not tried, or take the nearest one to the last asked for."""
        for _ in range(MAX_REPEATS):
            with _quiet(), _one_thread(self._sampler):
                asked = self._study.ask(self._distributions)
            point = self._point(asked)
            if point not in self._told and point not in busy and point not in self._asked:
                self._asked[point] = asked
                return point
            if point in self._told:
                self._answer(asked, self._told[point])
            else:
                self._study.tell(asked, state=OptunaState.FAIL)
        nearest = self._nearest(point, busy)
        self._asked[nearest] = self._study.ask(self._enqueued(nearest))
        return nearest

    def _nearest(self, wanted: OperatingPoint, busy: Sequence[OperatingPoint]) -> OperatingPoint:
        untried = [point for point in self._space.points() if point not in self._told and point not in busy]
        random.Random(f"{self._request.seed}/{len(self._told)}").shuffle(untried)
        return min(untried, key=lambda point: (point in self._asked, _steps_between(self._space, point, wanted)))

    def _enqueued(self, point: OperatingPoint) -> dict[str, BaseDistribution]:
        self._study.enqueue_trial(self._params(point))
        return self._distributions

    def _answer(self, asked: optuna.trial.Trial, trial: Trial) -> None:
        """Tell Optuna what a point showed: missed limits as constraints, nothing where there are no figures."""
        is_measured = trial.state in (TrialState.COMPLETE, TrialState.INFEASIBLE)
        place = figures_of(trial.measurement, self._request.latency_metric) if is_measured else None
        limits = {} if trial.measurement is None else _shares_missed(self._request, trial.measurement)
        # Numerics make a point infeasible without a limit being missed: with constraints alone it would pass for good.
        is_unexplained = trial.state is TrialState.INFEASIBLE and not any(share > 0 for share in limits.values())
        if place is None or is_unexplained:
            self._study.tell(asked, state=OptunaState.FAIL)
            return
        for name, share in limits.items():
            asked.set_constraint(name, share)
        self._study.tell(asked, [place.tok_per_j, place.latency_ms])

    def _params(self, point: OperatingPoint) -> dict[str, Any]:
        return {knob.name: _param(knob, point, self._request.sampler) for knob in self._space.knobs}

    def _point(self, asked: optuna.trial.Trial) -> OperatingPoint:
        return OperatingPoint.of(
            {knob.name: _value(knob, asked.params[knob.name], self._request.sampler) for knob in self._space.knobs}
        )


def _shares_missed(request: TuneRequest, measurement: Measurement) -> dict[str, float]:
    """Return, per limit, by which share it is missed; a window that a limit cut need not have shown it yet."""
    limits = violations(request, measurement)
    if measurement.cut_by in limits:
        limits[measurement.cut_by] = max(limits[measurement.cut_by], MISSED_SHARE)
    return limits


def _seed(request: TuneRequest) -> int:
    return random.Random(f"{request.seed}/sampler").getrandbits(32)  # a job's may be any whole number


def _grid(request: TuneRequest, space: SearchSpace) -> optuna.samplers.BaseSampler:
    values = {
        knob.name: list(knob.values) if isinstance(knob.values[0], str) else list(range(len(knob.values)))
        for knob in space.knobs
    }
    return EndlessGridSampler(values, seed=_seed(request))


_SAMPLERS: Mapping[str, Callable[[TuneRequest, SearchSpace], optuna.samplers.BaseSampler]] = {
    "gp": lambda request, _: optuna.samplers.GPSampler(seed=_seed(request)),
    "tpe": lambda request, _: optuna.samplers.TPESampler(seed=_seed(request), multivariate=True),
    "nsga2": lambda request, _: optuna.samplers.NSGAIISampler(seed=_seed(request)),
    "sobol": lambda request, _: optuna.samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=_seed(request)),
    "random": lambda request, _: optuna.samplers.RandomSampler(seed=_seed(request)),
    "grid": _grid,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's remarks on what is experimental to itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


@contextmanager
def _one_thread(sampler: optuna.samplers.BaseSampler) -> Iterator[None]:
    """Keep torch to one thread where a sampler uses it, which is Optuna's Gaussian process.

    On two busy cores two threads waited for each other up to 15 s for one question of it.
    """
    if not isinstance(sampler, optuna.samplers.GPSampler):
        yield
        return
    import torch  # takes seconds, which whoever never asks need not wait for

    found = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(found)


def _is_ranked(knob: Knob, sampler: str) -> bool:
    return not isinstance(knob.values[0], str) or sampler in _BY_RANK


def _distribution(knob: Knob, sampler: str = OWN) -> BaseDistribution:
    """Numbers are searched by their rank, so that 1, 2, 4, ... 32 are equally far apart; words have no order."""
    if _is_ranked(knob, sampler):
        return IntDistribution(0, len(knob.values) - 1)
    return CategoricalDistribution(knob.values)


def _ordered(knob: Knob) -> list[int | float | str]:
    return list(knob.values) if isinstance(knob.values[0], str) else sorted(knob.values, key=float)


def _param(knob: Knob, point: OperatingPoint, sampler: str = OWN) -> int | float | str:
    value = point[knob.name]
    return _ordered(knob).index(value) if _is_ranked(knob, sampler) else value


def _value(knob: Knob, param: Any, sampler: str) -> int | float | str:
    value: int | float | str = _ordered(knob)[int(param)] if _is_ranked(knob, sampler) else param
    return value


def _steps_between(space: SearchSpace, a: OperatingPoint, b: OperatingPoint) -> int:
    return sum(
        int(a[knob.name] != b[knob.name])
        if isinstance(knob.values[0], str)
        else abs(_ordered(knob).index(a[knob.name]) - _ordered(knob).index(b[knob.name]))
        for knob in space.knobs
    )
