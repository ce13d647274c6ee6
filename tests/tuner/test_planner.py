"""The planner on a made-up server: where it begins, what it finds, what it avoids, and when it ends."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.errors import NotEnoughMemory
from tests.db.factories import make_conditions, make_reading, make_trial
from tests.tuner.factories import make_knob
from tests.tuner.planned import (
    DEFAULT,
    JOB,
    SMALL,
    SPACE,
    crashing,
    failed,
    out_of_memory,
    planned,
    point_of,
    share,
    trial_of,
)
from tuner.grid import MAX_POINTS
from tuner.measurement import Distribution, Estimate
from tuner.planner import Options, next_points, opening
from tuner.point import OperatingPoint
from tuner.request import Budget, Limit, TuneRequest, WorkloadSpec
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialState

#: 10,000 points.
LARGE = SearchSpace(
    knobs=(
        make_knob("max_batch", tuple(range(1, 101)), default=8),
        make_knob("precision", ("bf16", "fp8")),
        make_knob("sm_clock_cap_mhz", tuple(range(1020, 2020, 20)), default=2000, needs_launch=False),
    )
)


class TestBeginning:
    """The first points of a job."""

    def test_the_default_point_comes_first(self) -> None:
        """A job without trials begins with the default point, even when others are being measured."""
        assert next_points(JOB, SPACE, []) == (DEFAULT,)
        assert next_points(JOB, SPACE, [], pending=[point_of(16)]) == (DEFAULT,)

    def test_the_default_point_comes_first_after_points_taken_over_from_elsewhere(self) -> None:
        """A job that knows other points, but not the default, measures it next."""
        assert next_points(JOB, SPACE, [trial_of(JOB, point_of(16))])[0] == DEFAULT

    def test_each_word_comes_alone_after_it(self) -> None:
        """Then comes the default point with one word changed, for each word, as far as the budget has room for them."""
        assert opening(JOB, SPACE, []) == (DEFAULT, point_of(precision="fp8"))
        assert next_points(JOB, SPACE, [], count=2) == (DEFAULT, point_of(precision="fp8"))
        assert opening(replace(JOB, budget=Budget(trials=3)), SPACE, []) == (DEFAULT,)

    def test_a_default_inside_the_limits_is_followed_by_two_lower_clocks(self) -> None:
        """The clocks nearest to 0.75 and 0.6 of the highest come next, at otherwise the same knobs, then the words.

        A small budget has room for the first of them only.
        """
        trials = [trial_of(JOB, DEFAULT)]
        assert TrialState.COMPLETE is trials[0].state
        slowed = (point_of(clock=1400), point_of(clock=1200))
        assert opening(JOB, SPACE, trials) == (DEFAULT, *slowed, point_of(precision="fp8"))
        assert next_points(JOB, SPACE, trials, count=2) == slowed
        assert opening(replace(JOB, budget=Budget(trials=4)), SPACE, trials) == (DEFAULT, slowed[0])

    def test_a_default_outside_the_limits_is_not(self) -> None:
        """A lower clock is no faster: after a default that misses its limits come the words alone."""
        request = replace(JOB, sla=(Limit(metric="tpot_p99_ms", bound_ms=1.0),))
        trials = [trial_of(request, DEFAULT)]
        assert TrialState.INFEASIBLE is trials[0].state
        assert opening(request, SPACE, trials) == (DEFAULT, point_of(precision="fp8"))

    def test_without_a_clock_to_lower_there_are_words_only(self) -> None:
        """A space without a clock cap, or with one value of it, has no lower clock."""
        trials = [trial_of(JOB, DEFAULT)]
        for knobs in (SPACE.knobs[:2], (*SPACE.knobs[:2], make_knob("sm_clock_cap_mhz", (2000,), needs_launch=False))):
            space = SearchSpace(knobs=knobs)
            begun = [replace(trial, point=space.default_point) for trial in trials]
            assert [point["precision"] for point in opening(JOB, space, begun)] == ["bf16", "fp8"]

    def test_what_is_known_not_to_work_is_left_out(self) -> None:
        """A word that failed the quality gate elsewhere is not tried at the default point; without pruning it is."""
        refused = make_trial(
            point=point_of(16, precision="fp8"), state=TrialState.INFEASIBLE, reason="quality:kl", measurement=None
        )
        assert all(point["precision"] == "bf16" for point in next_points(JOB, SPACE, [refused], count=3))
        untouched = next_points(JOB, SPACE, [refused], count=2, options=Options(has_pruning=False))
        assert untouched == opening(JOB, SPACE, [refused])

    def test_a_default_that_is_known_not_to_fit_is_left_out(self) -> None:
        """When a smaller batch ran out of memory the default is not tried in the same precision."""
        trials = [failed(point_of(4), 0, NotEnoughMemory.kind)]
        assert next_points(JOB, SPACE, trials)[0] == point_of(precision="fp8")

    def test_it_comes_once(self) -> None:
        """When it was tried, or is being measured, another point is next."""
        assert DEFAULT not in next_points(JOB, SPACE, [trial_of(JOB, DEFAULT)])
        assert DEFAULT not in next_points(JOB, SPACE, [], pending=[DEFAULT])

    def test_trials_of_another_space_are_left_out(self) -> None:
        """A point that the space no longer has is no evidence, and does no harm."""
        others = [trial_of(JOB, point_of(8, 999)), make_trial(point=OperatingPoint.of({"rate": 1}))]
        assert next_points(JOB, SPACE, [trial_of(JOB, DEFAULT), *others])[0] in SPACE


class TestFinding:
    """What is found in few trials."""

    @pytest.mark.parametrize("seed", range(2))
    def test_most_of_the_front_in_twelve_trials(self, seed: int) -> None:
        """With 12 of 112 points 80 % of the hypervolume is found, and more than half of random jobs find."""
        chance = [random.Random(draw).sample(list(SPACE.points()), 12) for draw in range(21)]
        shares = sorted(share([trial_of(JOB, point) for point in points]) for points in chance)
        assert share(planned(12, seed=seed)) > max(0.8, shares[10])

    def test_a_limit_off_the_axes_is_kept(self) -> None:
        """Under a limit on another figure that few points meet, at least half of the later trials meet it."""
        request = replace(JOB, sla=(*JOB.sla, Limit(metric="ttft_p99_ms", bound_ms=12.0)))
        trials = planned(12, request=request)
        inside = [trial.state is TrialState.COMPLETE for trial in trials]
        assert sum(trial_of(request, point).state is TrialState.COMPLETE for point in SPACE.points()) < 30
        assert sum(inside[6:]) >= 4

    def test_a_limit_is_kept_when_one_trial_has_no_figure_of_it(self) -> None:
        """Where the first trial's figure is no number, the limit is learned from the others all the same."""
        request = replace(JOB, sla=(*JOB.sla, Limit(metric="ttft_p99_ms", bound_ms=12.0)))
        no_number = Distribution(count=3, p99=Estimate(math.nan))

        def first_is_broken(request: TuneRequest, point: OperatingPoint, number: int) -> Trial:
            trial = trial_of(request, point, number)
            assert trial.measurement is not None
            return trial if number else replace(trial, measurement=replace(trial.measurement, ttft=no_number))

        trials = planned(12, request=request, measure=first_is_broken)
        assert sum(trial.state is TrialState.COMPLETE for trial in trials[6:]) >= 3

    def test_no_window_goes_to_a_power_cap_that_does_not_bind(self) -> None:
        """Where no power cap ever binds, 12 points at three caps end after 8 or fewer, with every clock measured."""
        knobs = (make_knob("power_cap_w", (300, 500, 700), default=700, needs_launch=False), SMALL.knobs[1])
        space = SearchSpace(knobs=(make_knob("max_batch", (8,)), *knobs))
        free = make_reading(conditions=(make_conditions(event_shares=(), highest_clock_mhz=None),))

        def never_capped(request: TuneRequest, point: OperatingPoint, number: int) -> Trial:
            trial = trial_of(request, point, number)
            assert trial.measurement is not None
            return replace(trial, measurement=replace(trial.measurement, reading=free))

        trials = planned(12, space=space, measure=never_capped)
        assert len(trials) <= 8
        assert {trial.point["sm_clock_cap_mhz"] for trial in trials} == {800, 1200, 1600, 2000}

    def test_without_a_limit_on_the_latency_axis(self) -> None:
        """A job without limits goes on from point to point, and finds most of what one with a limit would."""
        assert share(planned(12, request=replace(JOB, sla=()))) > 0.7

    def test_with_no_point_inside_the_limits(self) -> None:
        """Where nothing meets the limits the search goes on all the same, and tries different points."""
        trials = planned(6, request=replace(JOB, sla=(Limit(metric="tpot_p99_ms", bound_ms=0.1),)))
        assert len({trial.point for trial in trials}) == 6
        assert {TrialState.INFEASIBLE} == {trial.state for trial in trials}

    def test_requests_at_their_own_times(self) -> None:
        """Under arrivals, where fewer run at once than may, points are planned as well."""
        request = replace(JOB, workload=WorkloadSpec(scenario="server", rate_per_s=3.0))
        assert len({trial.point for trial in planned(6, request=request)}) == 6


class TestFailures:
    """What failures teach."""

    @pytest.mark.parametrize(("measure", "most"), [(crashing, 7), (out_of_memory, 4)])
    def test_a_region_that_fails_is_avoided(
        self, measure: Callable[[TuneRequest, OperatingPoint, int], Trial], most: int
    ) -> None:
        """Where batches above 16 fail few of 16 trials do, and good points are found.

        Of a search that takes no notice of crashes 12 fail.
        """
        trials = planned(16, measure=measure)
        assert sum(trial.state is TrialState.FAILED for trial in trials) <= most
        assert share(trials) > 0.9 * share([measure(JOB, point, 0) for point in SPACE.points()])

    def test_a_job_whose_points_all_fail_goes_on(self) -> None:
        """Without a single figure each next point is one that was not tried."""
        trials = planned(8, measure=lambda _, point, number: failed(point, number, "engine_died"))
        assert len({trial.point for trial in trials}) == 8

    def test_what_ran_out_of_memory_is_not_tried_with_more(self) -> None:
        """After 16 at once did not fit, they are tried at no other clock, and the job ends with the other batch."""

        def fits_eight(request: TuneRequest, point: OperatingPoint, number: int) -> Trial:
            does_fit = point["max_batch"] == 8
            return trial_of(request, point, number) if does_fit else failed(point, number, NotEnoughMemory.kind)

        trials = planned(20, space=SMALL, measure=fits_eight)
        assert sorted([8, 8, 8, 8, 16]) == sorted(float(trial.point["max_batch"]) for trial in trials)

    def test_where_nothing_is_allowed_nothing_is_proposed(self) -> None:
        """When the only precisions fail the quality gate the search is over."""
        trials = [
            make_trial(point=point, state=TrialState.INFEASIBLE, reason="quality:kl", measurement=None)
            for point in (DEFAULT, point_of(precision="fp8"))
        ]
        assert next_points(JOB, SPACE, trials) == ()


class TestOrder:
    """The same answer to the same question, each point once, several at a time."""

    def test_the_same_trials_and_seed_give_the_same_points(self) -> None:
        """A job that is resumed from its trials goes on as it would have."""
        trials = planned(10, seed=3)
        request = replace(JOB, seed=3)
        assert [next_points(request, SPACE, trials[:count])[0] for count in (1, 4, 9)] == [
            trials[count].point for count in (1, 4, 9)
        ]

    def test_any_whole_number_is_a_seed(self) -> None:
        """A seed below 0 and one of many digits are as good as any."""
        for seed in (-5, 10**30):
            assert len(planned(3, seed=seed)) == 3

    def test_every_point_comes_once(self) -> None:
        """Asked on and on, the search proposes all eight points of a small space, each once, and then none."""
        trials = planned(20, space=SMALL, measure=lambda request, point, number: failed(point, number, "engine_died"))
        assert len(trials) == 8
        assert {trial.point for trial in trials} == set(SMALL.points())

    def test_several_points_at_a_time_are_different(self) -> None:
        """Four points asked for at once are four, none of them tried or being measured."""
        trials, pending = planned(4), [point_of(64, 1200), point_of(32, 1000)]
        points = next_points(JOB, SPACE, trials, count=4, pending=pending)
        assert len({*points, *pending, *(trial.point for trial in trials)}) == 4 + 2 + 4

    def test_fewer_come_where_fewer_are_left(self) -> None:
        """Of eight points, asked for twenty, all eight come, the default first; beside pending ones the rest."""
        assert len(next_points(JOB, SMALL, [], count=20)) == 8
        assert next_points(JOB, SMALL, [], count=20)[0] == SMALL.default_point
        pending = list(SMALL.points())[:6]
        assert set(next_points(JOB, SMALL, [], count=20, pending=pending)) == set(SMALL.points()) - set(pending)

    def test_none_come_where_all_are_being_measured(self) -> None:
        """When every point is being measured there is nothing to propose."""
        assert next_points(JOB, SMALL, [], count=2, pending=list(SMALL.points())) == ()


class TestLargeSpace:
    """Spaces of which only a draw is looked at."""

    def test_points_are_of_the_space_and_new(self) -> None:
        """In a space of 10,000 points every proposal is one of them, none comes twice, and the job gets on."""
        assert LARGE.size > MAX_POINTS
        trials = planned(5, space=LARGE)
        assert all(trial.point in LARGE for trial in trials)
        assert len({trial.point for trial in trials}) == 5
        assert max(energy(trial) for trial in trials) > 1.1 * energy(trials[0])


def energy(trial: Trial) -> float:
    assert trial.measurement is not None
    assert trial.measurement.tok_per_j is not None
    return trial.measurement.tok_per_j.value
