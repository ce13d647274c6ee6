"""Which points come next: the same promises from every sampler, several points in flight, and Wattfront's own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import optuna
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuner.factories import make_request, make_space
from tests.tuner.search_jobs import (
    CHANGED,
    JOB,
    NIGHT,
    SMALL,
    SPACE,
    at,
    measure_for,
    points_of,
    run,
    trial_of,
)
from tuner import planner, samplers
from tuner.point import OperatingPoint
from tuner.request import SAMPLERS, Budget, KnobValue, TuneRequest
from tuner.samplers import OptunaStudy, PlannedSampler
from tuner.search import Proposal
from tuner.trial import Trial, TrialState

#: The Gaussian process takes a second for each question.
QUICK = tuple(name for name in SAMPLERS if name != "gp")


@pytest.fixture(params=SAMPLERS)
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TuneRequest:
    """JOB by each sampler in turn; the Gaussian process draws at random for as long as these tests ask it."""
    gp = {"gp": lambda request, _: optuna.samplers.GPSampler(seed=abs(request.seed) % 99, n_startup_trials=99)}
    monkeypatch.setattr("tuner.samplers._SAMPLERS", {**samplers._SAMPLERS, **gp})
    return replace(JOB, sampler=request.param, budget=Budget(trials=5))


class TestEverySampler:
    """What holds whichever sampler a job asks for."""

    def test_the_first_point_is_the_default(self, job: TuneRequest) -> None:
        """Every job begins with the untuned server, so that gains have a reference."""
        assert (at(8),) == OptunaStudy(job, SPACE).next_points(())

    def test_a_small_space_ends_early(self, job: TuneRequest) -> None:
        """BUG-18: 2 batches x 2 precisions under a budget of 12 trials are 4 measurements, then the end."""
        search = run(replace(job, budget=Budget(trials=12)), SMALL)
        assert (len(search.trials), search.ended_because) == (4, "exhausted")
        assert set(SMALL.points()) == set(points_of(search.trials))

    def test_failed_points_are_not_tried_again(self, job: TuneRequest) -> None:
        """BUG-18: a point that failed or was invalid counts as tried, so a broken space ends too."""
        states = itertools.cycle([TrialState.FAILED, TrialState.INVALID, TrialState.INFEASIBLE])

        def fail(proposal: Proposal) -> Trial:
            return trial_of(proposal, state=next(states), measurement=None)

        search = run(replace(job, budget=Budget(trials=12)), SMALL, measure=fail)
        assert (len(search.trials), len(set(points_of(search.trials)))) == (4, 4)
        assert search.ended_because == "exhausted"

    def test_a_single_point_is_a_space_too(self, job: TuneRequest) -> None:
        """BUG-18: a space of one point is measured once and then exhausted; one value is a knob like others."""
        single = run(job, make_space(max_batch=(8,)))
        assert ([make_space(max_batch=(8,)).default_point], "exhausted") == (
            points_of(single.trials),
            single.ended_because,
        )
        narrow = make_space(max_batch=(1, 2, 4, 8), precision=("fp32",))
        assert set(narrow.points()) == set(points_of(run(job, narrow).trials))

    def test_words_alone_are_a_space(self, job: TuneRequest) -> None:
        """A job whose knobs have no order between their values tries all of them, by Sobol's cube too."""
        words = make_space(precision=("fp32", "bf16", "int8"), kv=("auto", "fp8"))
        assert set(words.points()) == set(points_of(run(replace(job, budget=Budget(trials=9)), words).trials))

    def test_the_seed_decides_the_points(self, job: TuneRequest) -> None:
        """Run again a job tries the same points in the same order; other seeds lead other ways from the default."""
        assert run(job).trials == run(job).trials
        ways = {tuple(points_of(run(replace(job, seed=seed)).trials)) for seed in range(4)}
        assert len(ways) > 1
        assert {at(8)} == {way[0] for way in ways}

    @pytest.mark.parametrize("seed", [0, -1, 2**32, 10**30])
    def test_any_whole_number_is_a_seed(self, job: TuneRequest, seed: int) -> None:
        """Negative and enormous seeds work like any other."""
        assert len(run(replace(job, seed=seed, budget=Budget(trials=3))).trials) == 3

    def test_a_resumed_job_goes_on_as_if_undisturbed(self, job: TuneRequest) -> None:
        """BUG-17: cut short after any number of trials and resumed, a job tries the very points it would have."""
        whole = run(job).trials
        assert len(whole) == job.budget.trials
        for cut in range(1, len(whole)):
            assert run(job, history=whole[:cut]).trials == whole

    def test_a_resumed_job_ends_where_it_would_have(self, job: TuneRequest) -> None:
        """BUG-17, BUG-18: resumed in a space that runs out, a job tries what is left once, as it would have."""
        whole = run(job, SMALL).trials
        for cut in range(4):
            assert run(job, SMALL, history=whole[:cut]).trials == whole

    @pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED.keys())
    def test_a_changed_list_of_values_does_not_end_the_job(
        self, job: TuneRequest, changed: dict[str, tuple[KnobValue, ...]]
    ) -> None:
        """BUG-14: trials at points that the space no longer has stay, and every point that it has is tried once."""
        history = run(replace(job, budget=Budget(trials=4)), NIGHT).trials
        space = make_space(**changed)
        search = run(replace(job, budget=Budget(trials=5 + space.size)), space, history=history)
        assert search.trials[:4] == history
        assert set(space.points()) <= set(points_of(search.trials))
        assert len(search.trials) == len(set(points_of(search.trials)))
        assert search.ended_because == "exhausted"

    def test_early_stopping_is_a_rule_of_our_own(self, job: TuneRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """BUG-15a: a job that stops windows early runs through; Optuna is asked for no pruning and no best trial."""

        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("not with two objectives")

        monkeypatch.setattr(optuna.Trial, "report", refuse)
        monkeypatch.setattr(optuna.Trial, "should_prune", refuse)
        for name in ("best_trial", "best_value", "best_params"):
            monkeypatch.setattr(optuna.Study, name, property(refuse))
        assert job.window.stops_early
        assert len(run(job).trials) == 5

    @settings(max_examples=30, deadline=None)
    @given(
        sampler=st.sampled_from(QUICK),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=2),
        trials=st.integers(1, 10),
        seed=st.integers(),
    )
    def test_no_point_is_tried_twice(self, sampler: str, sizes: list[int], trials: int, seed: int) -> None:
        """BUG-18: whatever sampler, space, budget and seed, points are all different and numbered without a gap."""
        space = make_space(precision=("fp32", "bf16"), **{f"knob{i}": tuple(range(n)) for i, n in enumerate(sizes)})
        search = run(make_request(budget=Budget(trials=trials), seed=seed, sampler=sampler), space)
        tried = points_of(search.trials)
        assert len(tried) == len(set(tried)) <= min(trials, space.size)
        assert list(range(len(tried))) == [trial.number for trial in search.trials]
        if sampler != "wattfront":  # which leaves out what cannot matter
            assert min(trials, space.size) == len(tried)


class TestInFlight:
    """Several points at a time, so that several devices can work on one job."""

    def test_points_in_flight_are_all_different(self, job: TuneRequest) -> None:
        """Asked for three while two are measured, a study gives three others that were not tried."""
        trials = run(replace(job, budget=Budget(trials=4))).trials
        study = OptunaStudy(job, SPACE)
        pending = study.next_points(trials, count=2)
        points = study.next_points(trials, count=3, pending=pending)
        assert len({*points_of(trials), *pending, *points}) == 4 + 2 + 3

    def test_no_more_than_there_are(self, job: TuneRequest) -> None:
        """Asked for more points than are left, a study gives those that are, and none while they are measured."""
        trials = run(replace(job, budget=Budget(trials=2)), SMALL).trials
        study = OptunaStudy(job, SMALL)
        points = study.next_points(trials, count=12)
        assert set(SMALL.points()) == {*points_of(trials), *points}
        assert study.next_points(trials, count=12, pending=points) == ()
        rest = OptunaStudy(job, SMALL).next_points(trials, count=12, pending=points[:1])  # asked elsewhere
        assert set(rest) == set(points[1:])

    def test_results_may_come_in_any_order(self, job: TuneRequest) -> None:
        """Four points that were out at once and came back last first leave the rest of the space to be tried."""
        study, measure = OptunaStudy(job, NIGHT), measure_for(job)
        out = study.next_points((), count=4)
        trials = [measure(Proposal(number=i, point=point)) for i, point in enumerate(out)][::-1]
        assert set(NIGHT.points()) - set(out) == set(study.next_points(trials, count=12))

    def test_ours_are_the_same_each_time(self) -> None:
        """Wattfront's own points in flight follow from trials, pending points and seed alone."""
        trials = run(JOB).trials[:4]
        answers = {OptunaStudy(JOB, SPACE).next_points(trials, count=4, pending=[at(16, "int8")]) for _ in range(3)}
        assert [len(set(answer)) for answer in answers] == [4]

    def test_a_pending_point_moves_the_choice(self) -> None:
        """What is being measured counts as if it had shown what is expected: beside it the next point is another."""
        space = make_space(max_batch=tuple(range(1, 33)))
        moved = []
        for num_trials in (2, 3, 4):
            trials = run(make_request(seed=3, budget=Budget(trials=num_trials)), space).trials
            (wanted,) = OptunaStudy(JOB, space).next_points(trials)
            for batch in (int(wanted["max_batch"]) - 1, int(wanted["max_batch"]) + 1):
                pending = OperatingPoint.of({"max_batch": batch})
                if pending in space and pending not in points_of(trials):
                    moved.append(OptunaStudy(JOB, space).next_points(trials, pending=[pending]) != (wanted,))
        assert any(moved)

    def test_the_default_point_is_first_of_them(self) -> None:
        """A job on several devices begins with the default point and others beside it; it is asked for once."""
        points = OptunaStudy(JOB, SPACE).next_points((), count=3)
        assert (at(8), 3) == (points[0], len(set(points)))
        assert at(8) not in OptunaStudy(JOB, SPACE).next_points((), count=3, pending=[at(8)])


class TestWattfront:
    """The planner as one of Optuna's samplers."""

    def test_its_points_are_the_planners(self) -> None:
        """What Optuna hands out is what the planner chose, value for value, from all that the trials say."""
        trials = run(JOB).trials
        for i in range(len(trials)):
            assert planner.next_points(JOB, SPACE, trials[:i]) == (trials[i].point,)

    def test_when_nothing_could_matter_it_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A planner without an answer ends the job, though points are left that were not tried."""
        monkeypatch.setattr(samplers, "next_points", lambda *_, **__: ())
        search = run(JOB)
        assert (points_of(search.trials), search.ended_because) == ([at(8)], "exhausted")

    def test_torch_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A job without the Gaussian process has no use for torch, which takes seconds to load."""

        def refuse(*_: Any) -> None:
            raise AssertionError("torch is not needed")

        monkeypatch.setattr(torch, "set_num_threads", refuse)
        monkeypatch.setattr(torch, "get_num_threads", refuse)
        assert len(run(replace(JOB, budget=Budget(trials=3))).trials) == 3

    def test_no_knob_is_chosen_by_itself(self) -> None:
        """A point is chosen as a whole: Optuna asking for a single knob is an error, not a guess."""
        sampler = PlannedSampler(JOB, SPACE)
        study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
        trial = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
        with pytest.raises(NotImplementedError, match="max_batch"):
            sampler.sample_independent(study, trial, "max_batch", optuna.distributions.IntDistribution(0, 4))


class TestGaussianProcess:
    """Optuna's own, once it no longer draws at random."""

    @pytest.fixture(autouse=True)
    def early(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let it take over after two points instead of ten."""
        early = {"gp": lambda request, _: optuna.samplers.GPSampler(seed=request.seed, n_startup_trials=2)}
        monkeypatch.setattr("tuner.samplers._SAMPLERS", early)

    def test_it_goes_on_as_if_undisturbed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """BUG-17: models that it keeps do not matter, and torch has one thread for as long as a question takes."""
        given: list[int] = []
        during: list[list[int]] = []
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
        monkeypatch.setattr(torch, "set_num_threads", given.append)
        monkeypatch.setattr(optuna.samplers.GPSampler, "before_trial", lambda *_: during.append(given[-1:]))
        job = replace(JOB, sampler="gp")
        whole = run(job, SMALL).trials
        assert (during[0], given[-1]) == ([1], 3)
        assert [[1]] * len(during) == during
        assert set(SMALL.points()) == set(points_of(whole))
        assert run(job, SMALL, history=whole[:2]).trials == whole
