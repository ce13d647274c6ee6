"""What stands in for parts of Optuna's sampler: the first points, and the choice among all points of a grid."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.tuner.factories import make_space, measured
from tests.tuner.search_jobs import JOB, SPACE, measure_for, run
from tuner.request import Budget
from tuner.search import NUM_STARTUP, GridSampler, Search, suggest


class TestStart:
    """The first points, before the Gaussian process is asked."""

    @pytest.mark.parametrize("seed", range(5))
    def test_the_first_points_show_every_value_once(self, seed: int) -> None:
        """In a budget with room for it, the first points name each value of the longest knob once, after the default.

        What lies beyond the worst of them is worth nothing to Optuna, so a job that begins in one corner stays there.
        """
        space = make_space(max_batch=(8, 16, 32, 64, 128, 256, 512), precision=("bf16", "fp8"))
        request = replace(JOB, seed=seed, budget=Budget(trials=40))

        search = Search(request, space, measure_for(request, lambda point: measured(1.0, 30.0)))
        first = list(itertools.islice((trial.point for trial in search), 8))

        # The default point takes the place of one of the design, and of two alike the second moves on by a step.
        assert len({point["max_batch"] for point in first}) >= 6
        assert {point["precision"] for point in first} == {"bf16", "fp8"}


class TestPromise:
    """Which point the Gaussian process finds best."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
        """The acquisition function of each question and the place that was the answer."""
        seen: list[tuple[Any, Any]] = []
        optimize = GridSampler._optimize_acqf

        def seeing(sampler: GridSampler, acqf: Any, best_params: Any) -> Any:
            seen.append((acqf, place := optimize(sampler, acqf, best_params)))
            return place

        monkeypatch.setattr(GridSampler, "_optimize_acqf", seeing)
        return seen

    def test_it_is_the_best_of_all_points(self, asked: list[tuple[Any, Any]]) -> None:
        """No point of the space, asked about by itself, is more promising than the one that was chosen."""
        run(JOB)
        assert len(asked) == JOB.budget.trials - NUM_STARTUP
        for acqf, place in asked:
            places = itertools.product(*acqf.search_space.get_choices_of_discrete_params())
            best = max(float(acqf.eval_acqf_no_grad(np.array(one))) for one in places)
            assert pytest.approx(best, rel=1e-9) == float(acqf.eval_acqf_no_grad(place))

    def test_in_a_large_space_no_step_along_a_knob_is_better(
        self, asked: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where not every point is asked about, the chosen one is still the best of those that differ in one knob."""
        monkeypatch.setattr("tuner.search.NUM_CANDIDATES", 4)
        run(JOB)
        for acqf, place in asked:
            for axis, values in enumerate(acqf.search_space.get_choices_of_discrete_params()):
                steps = np.repeat(place[None, :], len(values), axis=0)
                steps[:, axis] = values
                assert float(max(acqf.eval_acqf_no_grad(steps))) <= float(acqf.eval_acqf_no_grad(place)) + 1e-9

    def test_torch_has_the_threads_it_had(self) -> None:
        """A question keeps torch to one thread for as long as it takes, and no longer."""
        found = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            suggest(JOB, SPACE, run(JOB).trials)
            assert torch.get_num_threads() == 3
        finally:
            torch.set_num_threads(found)
