"""What Optuna learns of a trial, and what it makes of both figures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState as OptunaState

from tests.db.factories import START, make_trial
from tests.tuner.factories import make_request, make_space, measured
from tests.tuner.search_jobs import SPACE, measure_for, points_of, run
from tests.tuner.search_stand import Stand
from tuner.measurement import Measurement
from tuner.objectives import violations
from tuner.pareto import front_of
from tuner.request import Budget, Limit, TuneRequest
from tuner.search import suggest
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialState


class TestTelling:
    """What Optuna learns of a trial."""

    def told(self, stand: Stand, request: TuneRequest, trial: Trial) -> optuna.trial.FrozenTrial:
        stand.told.clear()
        suggest(request, SPACE, [replace(trial, point=SPACE.default_point)])
        return stand.told[0][0]

    def test_a_complete_trial_is_told_with_both_figures(self, stand: Stand) -> None:
        """A trial inside its limits is complete for Optuna, with tokens per joule, latency and kept constraints."""
        request = make_request(sla=(Limit(metric="ttft_p99_ms", bound_ms=100.0),))
        complete = make_trial(measurement=measured(2.0, 50.0), point=SPACE.default_point)
        other = next(point for point in SPACE.points() if point != SPACE.default_point)
        missed = make_trial(number=1, state=TrialState.INFEASIBLE, measurement=measured(2.0, 150.0), point=other)
        suggest(request, SPACE, [complete, missed])
        told = stand.told[0][0]
        assert (told.state, told.values) == (OptunaState.COMPLETE, [2.0, 50.0])
        assert told.constraints == {"sla:ttft_p99_ms": -0.5}

    def test_a_limit_that_nothing_missed_is_no_constraint(self, stand: Stand) -> None:
        """As long as every trial keeps a limit, Optuna is not asked to learn where it might be missed."""
        request = make_request(sla=(Limit(metric="ttft_p99_ms", bound_ms=100.0),))
        assert self.told(stand, request, make_trial(measurement=measured(2.0, 50.0))).constraints == {}

    def test_energy_is_maximised_and_latency_minimised(self, stand: Stand) -> None:
        """Of the two figures the first is wanted high and the second low."""
        self.told(stand, make_request(), make_trial())
        up, down = optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE
        assert stand.directions == [up, down]

    def test_an_infeasible_trial_is_told_as_missed_limits(self, stand: Stand) -> None:
        """A trial that misses a limit is no failure for Optuna: it learns the figures, and by how much they miss."""
        request = make_request(sla=(Limit(metric="ttft_p99_ms", bound_ms=100.0),))
        missed = make_trial(state=TrialState.INFEASIBLE, measurement=measured(2.0, 150.0))
        told = self.told(stand, request, missed)
        assert (told.state, told.values) == (OptunaState.COMPLETE, [2.0, 150.0])
        assert told.constraints["sla:ttft_p99_ms"] == 0.5

    def test_what_is_infeasible_without_a_missed_limit_is_told_as_failed(self, stand: Stand) -> None:
        """A point whose numerics overflowed inside every limit must not look like a good one."""
        overflowed = make_trial(state=TrialState.INFEASIBLE, reason="numerics", measurement=measured(99.0, 1.0))
        assert OptunaState.FAIL is self.told(stand, make_request(), overflowed).state

    @pytest.mark.parametrize(
        "measurement",
        [
            None,
            measured(None, 10.0),
            measured(2.0, None),
            measured(math.nan, 10.0),
            measured(math.inf, 10.0),
            measured(2.0, math.nan),
            measured(2.0, math.inf),
            measured(2.0, 10.0, reasons=("suspended",)),
        ],
        ids=["nothing", "no energy", "no latency", "nan", "inf", "nan latency", "inf latency", "invalid"],
    )
    @pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.INFEASIBLE])
    def test_no_missing_or_endless_figure_is_told(
        self, stand: Stand, state: TrialState, measurement: Measurement | None
    ) -> None:
        """BUG-13: a NaN, infinite or missing figure reaches Optuna as a failed trial, never as a value."""
        told = self.told(stand, make_request(), make_trial(state=state, measurement=measurement))
        assert (OptunaState.FAIL, None, SPACE.default_point["max_batch"]) == (
            told.state,
            told.values,
            sorted((8, 1, 2, 4, 16))[told.params["max_batch"]],
        )

    @pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INVALID])
    def test_failed_and_invalid_trials_are_told_as_failed(self, stand: Stand, state: TrialState) -> None:
        """Figures that must not be used do not lead the search, however good they look."""
        told = self.told(stand, make_request(), make_trial(state=state, measurement=measured(99.0, 0.1)))
        assert (told.state, told.values) == (OptunaState.FAIL, None)

    def test_the_budget_counts_trials_without_figures(self, stand: Stand) -> None:
        """BUG-13: trials that gave NaN or an infinity count, and the front is that of the third alone."""
        figures = iter([measured(math.nan, 20.0), measured(math.inf, 20.0), measured(1 / 0.8, 20.0)])
        request = make_request(budget=Budget(trials=3))
        search = run(request, measure=measure_for(request, lambda _: next(figures)))
        front = front_of(search.trials, request.latency_metric, created_at=START)
        assert (len(search.trials), search.ended_because) == (3, "trials")
        assert (search.trials[2],) == front.trials


class TestTwoObjectives:
    """What Optuna cannot do with two objectives is not asked of it."""

    def test_nothing_meets_the_limits(self) -> None:
        """BUG-15: under a TTFT limit of 1 ms a job ends normally, with an empty front and the misses of every point."""
        request = make_request(budget=Budget(trials=6), sla=(Limit(metric="ttft_p99_ms", bound_ms=1.0),))
        search = run(request)
        front = front_of(search.trials, request.latency_metric, created_at=START)
        assert (len(search.trials), search.ended_because) == (6, "trials")
        assert (front.trials, front.hypervolume, front.latency_reference_ms) == ((), 0.0, None)
        assert all(
            trial.measurement is not None and violations(request, trial.measurement)["sla:ttft_p99_ms"] > 0
            for trial in search.trials
        )

    def test_early_stopping_and_best_trial_are_never_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """BUG-15: a search with both objectives calls neither report nor should_prune nor best_trial."""

        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("not with two objectives")

        monkeypatch.setattr(optuna.Trial, "report", refuse)
        monkeypatch.setattr(optuna.Trial, "should_prune", refuse)
        for name in ("best_trial", "best_value", "best_params"):
            monkeypatch.setattr(optuna.Study, name, property(refuse))
        assert len(run(make_request(budget=Budget(trials=6))).trials) == 6

    def test_single_values_and_single_points_are_spaces_too(self) -> None:
        """A knob with one value takes part in points, and a space of one point is exhausted after it."""
        single = run(make_request(), make_space(max_batch=(8,)))
        assert ([SearchSpace(knobs=make_space(max_batch=(8,)).knobs).default_point], "exhausted") == (
            points_of(single.trials),
            single.ended_because,
        )
        narrow = make_space(max_batch=(1, 2, 4, 8, 16, 32), precision=("fp32",))
        assert len(set(points_of(run(make_request(), narrow).trials))) == 6
