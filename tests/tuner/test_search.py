"""The search: what it asks, in which order, when it ends, and what it tells Optuna."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.db.factories import make_trial
from tests.tuner.factories import make_request, make_space
from tests.tuner.search_jobs import JOB, NIGHT, SMALL, SPACE, measure_for, points_of, run, show
from tests.tuner.search_stand import Stand
from tuner.point import OperatingPoint
from tuner.request import Budget, KnobValue
from tuner.search import Search, suggest
from tuner.trial import Trial, TrialState


@pytest.fixture(scope="module")
def undisturbed() -> list[Trial]:
    """The trials of JOB with Optuna's own sampler, the last two chosen by its Gaussian process."""
    return run(JOB).trials


class TestOrder:
    """Which points are tried."""

    def test_the_first_point_is_the_default(self, stand: Stand) -> None:
        """Every job begins with the untuned server, so that gains have a reference, and asks no sampler for it."""
        search = run(make_request(budget=Budget(trials=1)))
        assert [OperatingPoint.of({"max_batch": 8, "precision": "fp32"})] == points_of(search.trials)
        assert stand.told == []

    @settings(max_examples=25, deadline=None)
    @given(
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        trials=st.integers(1, 20),
        seed=st.integers(),
    )
    def test_no_point_is_tried_twice(self, sizes: list[int], trials: int, seed: int) -> None:
        """BUG-18: whatever space, budget and seed, points are all different and numbered from 0 without a gap."""
        space = make_space(precision=("fp32", "bf16"), **{f"knob{i}": tuple(range(n)) for i, n in enumerate(sizes)})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tuner.search.GridSampler", Stand())
            search = run(make_request(budget=Budget(trials=trials), seed=seed), space)
        tried = points_of(search.trials)
        assert min(trials, space.size) == len(tried) == len(set(tried))
        assert list(range(len(tried))) == [trial.number for trial in search.trials]
        assert ("exhausted" if trials > space.size else "trials") == search.ended_because

    def test_a_small_space_ends_early(self, stand: Stand) -> None:
        """BUG-18: 2 batches x 2 precisions under a budget of 12 trials are 4 measurements, then the end."""
        search = run(make_request(budget=Budget(trials=12)), SMALL)
        assert (len(search.trials), search.ended_because) == (4, "exhausted")
        assert set(SMALL.points()) == set(points_of(search.trials))

    def test_failed_points_are_not_tried_again(self, stand: Stand) -> None:
        """BUG-18: a point that failed or was invalid counts as tried, so a broken space ends too."""
        states = itertools.cycle([TrialState.FAILED, TrialState.INVALID, TrialState.INFEASIBLE])

        def fail(number: int, point: OperatingPoint) -> Trial:
            return make_trial(number=number, point=point, state=next(states), measurement=None)

        search = run(make_request(budget=Budget(trials=12)), SMALL, measure=fail)
        assert (len(set(points_of(search.trials))), search.ended_because) == (4, "exhausted")

    @pytest.mark.parametrize(
        ("wanted_batch", "next_batch"), [(8, {4, 16}), (1, {1}), (4, {4})], ids=["tried", "untried", "near"]
    )
    def test_a_tried_point_gives_way_to_the_nearest_untried(
        self, stand: Stand, wanted_batch: int, next_batch: set[int]
    ) -> None:
        """Where the sampler wants what was tried, the next step along a knob takes its place, and only there."""
        space = make_space(max_batch=(8, 1, 2, 4, 16))
        stand.wanted = lambda *_: [1, 2, 4, 8, 16].index(wanted_batch)
        tried = [make_trial(point=OperatingPoint.of({"max_batch": 8}))]
        assert suggest(make_request(), space, tried)["max_batch"] in next_batch

    def test_numbers_are_told_by_rank_and_words_as_they_are(self, stand: Stand) -> None:
        """For Optuna a list of numbers is its ranks in rising order, in whatever order it was given."""
        asked: dict[str, optuna.distributions.BaseDistribution] = {}

        def wanted(name: str, distribution: optuna.distributions.BaseDistribution) -> Any:
            asked[name] = distribution
            return {"max_batch": 4, "precision": "int8"}[name]

        stand.wanted = wanted
        default = make_trial(point=SPACE.default_point, measurement=show(SPACE.default_point))
        assert OperatingPoint.of({"max_batch": 16, "precision": "int8"}) == suggest(make_request(), SPACE, [default])
        assert {
            "max_batch": optuna.distributions.IntDistribution(0, 4),
            "precision": optuna.distributions.CategoricalDistribution(("fp32", "bf16", "int8")),
        } == asked
        assert stand.told[0][0].params == {"max_batch": 3, "precision": "fp32"}

    @pytest.mark.parametrize("seed", [0, -1, 2**32, 10**30])
    def test_any_whole_number_is_a_seed(self, seed: int) -> None:
        """Negative and enormous seeds work like any other, with Optuna's own sampler."""
        assert len(run(make_request(budget=Budget(trials=3), seed=seed)).trials) == 3

    def test_every_question_has_a_seed_of_its_own(self, stand: Stand) -> None:
        """No two questions of a job, nor of two jobs with neighbouring seeds, share the sampler's seed."""
        for seed in range(3):
            run(make_request(budget=Budget(trials=5), seed=seed))
        assert 3 * 4 == len(stand.seeds) == len(set(stand.seeds))


class TestResume:
    """A search goes on where it was, from the trials alone."""

    def test_the_seed_decides_the_points(self, stand: Stand) -> None:
        """Run again a job tries the same points in the same order, and with another seed others after the default."""
        job = replace(JOB, seed=4)
        assert run(JOB).trials == run(JOB).trials
        assert run(JOB).trials[0] == run(job).trials[0]
        assert points_of(run(JOB).trials) != points_of(run(job).trials)

    @pytest.mark.parametrize("cut", range(7))
    def test_a_resumed_job_goes_on_as_if_undisturbed(self, stand: Stand, cut: int) -> None:
        """Cut short after any number of trials and resumed with them, a job tries the very points it would have."""
        whole = run(JOB).trials
        assert run(JOB, history=whole[:cut]).trials == whole

    @pytest.mark.parametrize("cut", [5, 6])
    def test_the_gaussian_process_goes_on_as_if_undisturbed(self, undisturbed: list[Trial], cut: int) -> None:
        """With Optuna's own sampler, too, which keeps models from question to question, nothing but trials matters."""
        assert {trial.state for trial in undisturbed} == {TrialState.COMPLETE, TrialState.INFEASIBLE}
        assert run(JOB, history=undisturbed[:cut]).trials == undisturbed

    def test_a_finished_job_has_nothing_left_to_do(self, undisturbed: list[Trial]) -> None:
        """Resumed with all of its trials a job measures nothing and ends for the same reason."""

        def measure(*_: Any) -> Trial:
            raise AssertionError("nothing is left to measure")

        assert run(JOB, history=undisturbed, measure=measure).ended_because == "trials"

    @pytest.mark.parametrize("cut", range(1, 7))
    def test_an_interrupted_trial_does_not_change_the_way(self, stand: Stand, cut: int) -> None:
        """A trial whose worker died is retried first, under its number, and the rest is as if nothing had happened."""
        whole = run(JOB).trials
        died = replace(whole[cut], state=TrialState.INTERRUPTED, measurement=None)
        assert run(JOB, history=[*whole[:cut], died], retries=[(cut, died.point)]).trials == whole

    def test_retries_come_first_under_their_own_numbers(self, stand: Stand) -> None:
        """Points to try again go before new ones, in order, and new numbers follow the highest."""
        retries = [
            (1, OperatingPoint.of({"max_batch": 2, "precision": "int8"})),
            (3, OperatingPoint.of({"max_batch": 4, "precision": "bf16"})),
        ]
        history = [
            make_trial(number=0, point=SPACE.default_point, measurement=show(SPACE.default_point)),
            make_trial(number=5, point=OperatingPoint.of({"max_batch": 1, "precision": "int8"})),
        ]
        search = run(make_request(budget=Budget(trials=6)), history=history, retries=retries)
        assert retries == [(trial.number, trial.point) for trial in search.trials[2:4]]
        assert [trial.number for trial in search.trials[4:]] == [6, 7]
        assert len(set(points_of(search.trials))) == 6

    def test_a_retry_is_made_though_every_point_was_seen(self, stand: Stand) -> None:
        """A point cut short that the space no longer has is tried again before the space counts as exhausted."""
        history = [make_trial(number=i, point=point) for i, point in enumerate(SMALL.points())]
        gone = OperatingPoint.of({"max_batch": 32, "precision": "fp32"})
        search = run(make_request(), SMALL, history=history, retries=[(4, gone)])
        assert (points_of(search.trials[4:]), search.ended_because) == ([gone], "exhausted")

    @pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.INTERRUPTED])
    def test_trials_without_an_outcome_do_not_count(self, stand: Stand, state: TrialState) -> None:
        """A trial that never ended is none of the budget's trials, and its point is still to be tried."""
        history = [make_trial(point=SPACE.default_point, state=state, measurement=None)]
        search = run(make_request(budget=Budget(trials=2)), history=history)
        assert (2, SPACE.default_point) == (len(search.trials), search.trials[0].point)

    @pytest.mark.parametrize(
        "changed",
        [
            {"max_batch": (8, 16, 32, 64), "precision": ("fp32", "int8")},
            {"max_batch": (16, 32), "precision": ("fp32", "int8")},
            {"max_batch": (32, 16, 8), "precision": ("int8", "fp32")},
            {"max_batch": (7, 9), "precision": ("bf16",)},
            {"precision": ("fp32", "int8")},
            {"max_batch": (8, 16, 32), "precision": ("fp32",), "prefill_chunk": (32, 64)},
        ],
        ids=["added", "removed", "reordered", "replaced", "knob dropped", "knob added"],
    )
    def test_a_changed_list_of_values_does_not_end_the_job(
        self, stand: Stand, changed: dict[str, tuple[KnobValue, ...]]
    ) -> None:
        """BUG-14: trials at points that the space no longer has stay, untold to Optuna and not counted as tried."""
        history = run(make_request(budget=Budget(trials=4)), NIGHT).trials
        stand.told.clear()
        space = make_space(**changed)
        search = run(make_request(budget=Budget(trials=len(history) + space.size)), space, history=history)
        assert search.trials[:4] == history
        assert set(space.points()) <= set(points_of(search.trials))
        assert len(search.trials) == len(set(points_of(search.trials)))
        assert all(len(told) <= space.size for told in stand.told)

    @pytest.mark.parametrize("batches", [(8, 16, 32, 64), (32, 16, 8)], ids=["added", "reordered"])
    def test_the_gaussian_process_takes_trials_of_a_changed_list(self, batches: tuple[int, ...]) -> None:
        """BUG-14: Optuna's own sampler goes on from five trials of another list without a word."""
        history = [make_trial(point=point, measurement=show(point)) for point in list(NIGHT.points())[:5]]
        space = make_space(max_batch=batches, precision=("fp32", "int8"))
        assert suggest(make_request(), space, history) in set(space.points()) - set(points_of(history))


class TestEnd:
    """When a search is over, and why."""

    def test_the_budget_of_trials_ends_it(self, stand: Stand) -> None:
        """So many trials and no more are measured, whatever their outcome, those of the history included."""
        search = run(make_request(budget=Budget(trials=3)))
        assert (len(search.trials), search.ended_because) == (3, "trials")
        longer = run(make_request(budget=Budget(trials=5)), history=search.trials)
        assert (len(longer.trials), longer.ended_because) == (5, "trials")

    def test_the_budget_of_minutes_ends_it(self, stand: Stand) -> None:
        """No trial begins when the minutes are over; the one that runs is finished."""
        clock = iter([0.0, 0.0, 60.0, 119.9, 120.0])
        search = run(make_request(budget=Budget(minutes=2.0)), now=lambda: next(clock))
        assert (len(search.trials), search.ended_because) == (3, "minutes")

    def test_the_minutes_of_earlier_trials_count(self, stand: Stand) -> None:
        """A resumed job has used the time that its trials took, not the time it lay still."""
        request = make_request(budget=Budget(trials=24, minutes=4.0))
        history = run(make_request(budget=Budget(trials=3))).trials  # a minute each
        clock = iter([1e6, 1e6, 1e6 + 59.9, 1e6 + 60.0])
        search = run(request, history=history, now=lambda: next(clock))
        assert (len(search.trials), search.ended_because) == (3 + 2, "minutes")

    def test_a_wish_to_stop_ends_it_between_trials(self, stand: Stand) -> None:
        """The reason that should_stop gives is the reason why the search ended, and the trials so far stay."""
        wishes: Iterator[str | None] = iter([None, None, "cancelled"])
        search = run(make_request(), should_stop=lambda: next(wishes))
        assert (len(search.trials), search.ended_because) == (2, "cancelled")

    def test_a_wish_to_stop_goes_before_everything_else(self, stand: Stand) -> None:
        """A job that is to stop stops before it retries anything, and says so though its budget is used up, too."""
        search = run(
            make_request(budget=Budget(trials=1)),
            history=[make_trial(point=SPACE.default_point)],
            retries=[(1, OperatingPoint.of({"max_batch": 2, "precision": "int8"}))],
            should_stop=lambda: "stopped",
        )
        assert (len(search.trials), search.ended_because) == (1, "stopped")

    def test_while_it_runs_there_is_no_reason(self, stand: Stand) -> None:
        """Each trial is handed over as it ends, and only the end has a reason."""
        request = make_request(budget=Budget(trials=2))
        search = Search(request, SPACE, measure_for(request))
        trials = iter(search)
        assert [next(trials)] == search.trials
        assert search.ended_because is None

    def test_an_error_while_measuring_ends_it(self, stand: Stand) -> None:
        """What the bench raises, as for a damaged checkpoint, reaches the caller and counts as no trial."""

        def measure(*_: Any) -> Trial:
            raise RuntimeError("checkpoint")

        search = Search(make_request(), SPACE, measure)
        with pytest.raises(RuntimeError, match="checkpoint"):
            next(iter(search))
        assert search.trials == []
