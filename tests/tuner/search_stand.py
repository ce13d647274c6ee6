"""A sampler of Optuna's that wants what a test says and keeps what it was told, for tests of the search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna

from tuner.request import TuneRequest
from tuner.space import SearchSpace

Asked = Callable[[str, optuna.distributions.BaseDistribution], Any]


class Sampler(optuna.samplers.RandomSampler):
    """Stands in for the sampler of a job that asks for `random`."""

    def __init__(self, seed: int, stand: Stand) -> None:
        super().__init__(seed=seed)
        self._stand = stand

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, optuna.distributions.BaseDistribution]:
        self._stand.told.append([one for one in study.get_trials() if one.state.is_finished()])
        self._stand.directions = study.directions
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: optuna.distributions.BaseDistribution,
    ) -> Any:
        if self._stand.wanted is not None:
            return self._stand.wanted(param_name, param_distribution)
        return super().sample_independent(study, trial, param_name, param_distribution)


class Stand:
    """What the search asked of the stand-in."""

    def __init__(self) -> None:
        self.wanted: Asked | None = None
        #: The finished trials that each question was asked after.
        self.told: list[list[optuna.trial.FrozenTrial]] = []
        self.directions: list[optuna.study.StudyDirection] = []

    def __call__(self, request: TuneRequest, space: SearchSpace) -> Sampler:
        return Sampler(abs(request.seed), self)
