"""What Optuna learns: of a trial, of a point it asks for again, and of a knob's values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState as OptunaState

from tests.db.factories import START, make_trial
from tests.tuner.factories import make_request, make_space, measured
from tests.tuner.search_jobs import NIGHT, SPACE, at, measure_for, run, show
from tests.tuner.search_stand import Stand
from tuner.measurement import Measurement, Quality
from tuner.objectives import violations
from tuner.pareto import front_of
from tuner.request import Budget, Limit, QualityGate, TuneRequest
from tuner.samplers import MAX_REPEATS, MISSED_SHARE, OptunaStudy
from tuner.search import Proposal
from tuner.trial import Trial, TrialState

JOB = make_request(sampler="random")
LIMITED = replace(JOB, sla=(Limit(metric="ttft_p99_ms", bound_ms=100.0),))


class TestTelling:
    """What Optuna learns of a trial."""

    def told(self, stand: Stand, request: TuneRequest, trial: Trial) -> optuna.trial.FrozenTrial:
        OptunaStudy(request, SPACE).next_points([replace(trial, point=SPACE.default_point)])
        return stand.told[-1][0]

    def test_a_complete_trial_is_told_with_both_figures(self, stand: Stand) -> None:
        """A trial inside its limits is complete for Optuna, with tokens per joule, latency and kept constraints."""
        told = self.told(stand, LIMITED, make_trial(measurement=measured(2.0, 50.0)))
        assert (told.state, told.values) == (OptunaState.COMPLETE, [2.0, 50.0])
        assert (told.constraints["sla:ttft_p99_ms"], max(told.constraints.values()) < 0) == (-0.5, True)

    def test_energy_is_maximised_and_latency_minimised(self, stand: Stand) -> None:
        """Of the two figures the first is wanted high and the second low."""
        self.told(stand, JOB, make_trial())
        up, down = optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE
        assert stand.directions == [up, down]

    def test_an_infeasible_trial_is_told_as_missed_limits(self, stand: Stand) -> None:
        """A trial that misses a limit is no failure for Optuna: it learns the figures, and by how much they miss."""
        missed = make_trial(state=TrialState.INFEASIBLE, measurement=measured(2.0, 150.0))
        told = self.told(stand, LIMITED, missed)
        assert (told.state, told.values) == (OptunaState.COMPLETE, [2.0, 150.0])
        assert told.constraints["sla:ttft_p99_ms"] == 0.5

    def test_the_quality_gate_is_a_limit_like_any_other(self, stand: Stand) -> None:
        """A precision that costs too much perplexity is told as a missed constraint beside the kept ones."""
        quality = Quality(num_tokens=64, perplexity=3.0, perplexity_ratio=1.5, top1_agreement=0.9)
        missed = make_trial(state=TrialState.INFEASIBLE, measurement=measured(2.0, 50.0, quality=quality))
        told = self.told(stand, replace(LIMITED, quality=QualityGate(max_perplexity_ratio=1.2)), missed)
        assert {name: round(share, 9) for name, share in told.constraints.items()} == {
            "sla:ttft_p99_ms": -0.5,
            "quality:perplexity_ratio": 0.25,
        }

    def test_what_is_infeasible_without_a_missed_limit_is_told_as_failed(self, stand: Stand) -> None:
        """A point whose numerics overflowed inside every limit must not look like a good one."""
        overflowed = make_trial(state=TrialState.INFEASIBLE, reason="numerics", measurement=measured(99.0, 1.0))
        assert OptunaState.FAIL is self.told(stand, LIMITED, overflowed).state

    def test_a_window_cut_by_a_limit_misses_it_whatever_it_showed(self, stand: Stand) -> None:
        """A window that ended because a limit was certain to be missed is told as a miss, by as much as it showed."""
        for latency_ms, least in ((50.0, 0.0), (150.0, 0.5)):
            window = measured(2.0, latency_ms, cut_by="sla:ttft_p99_ms")
            told = self.told(stand, LIMITED, make_trial(state=TrialState.INFEASIBLE, measurement=window))
            assert (told.state, told.values) == (OptunaState.COMPLETE, [2.0, latency_ms])
            assert told.constraints["sla:ttft_p99_ms"] >= max(least, MISSED_SHARE)

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
        told = self.told(stand, LIMITED, make_trial(state=state, measurement=measurement))
        assert (told.state, told.values) == (OptunaState.FAIL, None)
        assert told.params == {"max_batch": sorted((8, 1, 2, 4, 16)).index(8), "precision": "fp32"}

    @pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INVALID])
    def test_failed_and_invalid_trials_are_told_as_failed(self, stand: Stand, state: TrialState) -> None:
        """Figures that must not be used do not lead the search, however good they look."""
        told = self.told(stand, JOB, make_trial(state=state, measurement=measured(99.0, 0.1)))
        assert (told.state, told.values) == (OptunaState.FAIL, None)

    def test_a_point_is_told_once(self, stand: Stand) -> None:
        """Told of the same trials with every question, the study keeps each of them once, repeats left out."""
        study = OptunaStudy(JOB, SPACE)
        (first,) = study.next_points(())
        trials = [make_trial(number=number, point=first, measurement=measured(2.0, 50.0)) for number in range(3)]
        for _ in range(3):
            study.next_points(trials)
        finished = [one for one in stand.told[-1] if one.values is not None]
        assert [one.values for one in finished] == [[2.0, 50.0]]

    @pytest.mark.parametrize("sampler", ["wattfront", "random"])
    def test_the_budget_counts_trials_without_figures(self, sampler: str) -> None:
        """BUG-13: trials that gave NaN or an infinity count, and the front is that of the third alone."""
        figures = iter([measured(math.nan, 20.0), measured(math.inf, 20.0), measured(1 / 0.8, 20.0)])
        request = make_request(budget=Budget(trials=3), sampler=sampler)
        search = run(request, measure=measure_for(request, lambda _: next(figures)))
        front = front_of(search.trials, request.latency_metric, created_at=START, request=request)
        assert (len(search.trials), search.ended_because) == (3, "trials")
        assert (search.trials[2],) == front.trials


class TestNothingFeasible:
    """Limits that no point meets."""

    @pytest.mark.parametrize("sampler", ["wattfront", "tpe", "nsga2"])
    def test_nothing_meets_the_limits(self, sampler: str) -> None:
        """BUG-15b: under a TTFT limit of 1 ms a job ends normally, with an empty front and the misses of all."""
        limit = Limit(metric="ttft_p99_ms", bound_ms=1.0)
        request = make_request(budget=Budget(trials=6), sla=(limit,), sampler=sampler)
        search = run(request)
        front = front_of(search.trials, request.latency_metric, created_at=START, request=request)
        assert (len(search.trials), search.ended_because) == (6, "trials")
        assert (front.trials, front.hypervolume, front.latency_reference_ms) == ((), 0.0, None)
        assert all(
            trial.measurement is not None and violations(request, trial.measurement)["sla:ttft_p99_ms"] > 0
            for trial in search.trials
        )


class TestTriedPoints:
    """What becomes of a sampler that wants what was tried."""

    @pytest.mark.parametrize(
        ("wanted_batch", "next_batch"), [(8, {4, 16}), (1, {1}), (4, {4})], ids=["tried", "untried", "near"]
    )
    def test_a_tried_point_gives_way_to_the_nearest_untried(
        self, stand: Stand, wanted_batch: int, next_batch: set[int]
    ) -> None:
        """Where a sampler keeps to what was tried, the next step along a knob takes its place, and only there."""
        space = make_space(max_batch=(8, 1, 2, 4, 16))
        stand.wanted = lambda *_: [1, 2, 4, 8, 16].index(wanted_batch)
        tried = [make_trial(point=space.default_point)]
        ((point,),) = {OptunaStudy(JOB, space).next_points(tried) for _ in range(9)}  # by seed alone
        assert point["max_batch"] in next_batch

    def test_it_is_told_again_what_the_point_showed(self, stand: Stand) -> None:
        """A sampler that asks for a tried point gets the figures that it has, so that it may move on, so many times."""
        stand.wanted = lambda name, _: {"max_batch": 1, "precision": "fp32"}[name]
        study = OptunaStudy(JOB, NIGHT)
        trials = run(replace(JOB, budget=Budget(trials=2)), NIGHT).trials
        study.next_points(trials)
        again = [one.values for one in stand.told[-1] if one.params == {"max_batch": 1, "precision": "fp32"}]
        shown = show(at(16))
        assert shown.tok_per_j is not None
        assert shown.tpot.p99 is not None
        assert [[shown.tok_per_j.value, shown.tpot.p99.value]] * MAX_REPEATS == again

    def test_a_point_in_flight_is_not_told_twice(self, stand: Stand) -> None:
        """A sampler that asks for a point in flight learns nothing of it, and the point's own result is told once."""
        stand.wanted = lambda name, _: {"max_batch": 1, "precision": "fp32"}[name]
        study, measure = OptunaStudy(JOB, NIGHT), measure_for(JOB)
        out = study.next_points((), count=3)
        study.next_points([measure(Proposal(number=i, point=point)) for i, point in enumerate(out)])
        complete = [one.params for one in stand.told[-1] if one.state is optuna.trial.TrialState.COMPLETE]
        assert len(complete) >= 3
        assert all(complete.count(one) == 1 for one in complete if one != {"max_batch": 1, "precision": "fp32"})


class TestValues:
    """How a knob's values stand before Optuna."""

    def test_numbers_are_told_by_rank_and_words_as_they_are(self, stand: Stand) -> None:
        """For Optuna a list of numbers is its ranks in rising order, in whatever order it was given."""
        asked: dict[str, optuna.distributions.BaseDistribution] = {}

        def wanted(name: str, distribution: optuna.distributions.BaseDistribution) -> Any:
            asked[name] = distribution
            return {"max_batch": 4, "precision": "int8"}[name]

        stand.wanted = wanted
        default = make_trial(point=SPACE.default_point, measurement=show(SPACE.default_point))
        study = OptunaStudy(JOB, SPACE)
        assert study.next_points([default]) == (at(16, "int8"),)
        assert {
            "max_batch": optuna.distributions.IntDistribution(0, 4),
            "precision": optuna.distributions.CategoricalDistribution(("fp32", "bf16", "int8")),
        } == asked
        assert stand.told[-1][0].params == {"max_batch": 3, "precision": "fp32"}
