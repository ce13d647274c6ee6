"""The search: what it measures in which order, what it goes on from, and when screening ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.db.factories import make_trial
from tests.probes.fake_clock import FakeClock
from tests.tuner.factories import make_request, measured
from tests.tuner.search_jobs import (
    JOB,
    SMALL,
    SPACE,
    at,
    fails,
    measure_for,
    points_of,
    run,
    show,
    trial_of,
)
from tuner.pareto import ObjectivePair
from tuner.request import Budget, Limit, TuneRequest
from tuner.search import Measure, Proposal, Search
from tuner.trial import Trial, TrialState

#: Its points come at once, and by its seed.
QUICK = replace(JOB, sampler="random")


def quick(**budget: Any) -> TuneRequest:
    return make_request(sampler="random", budget=Budget(**budget))


def noting(measure: Measure, proposals: list[Proposal]) -> Measure:
    """Keep what is proposed."""

    def note(proposal: Proposal) -> Trial:
        proposals.append(proposal)
        return measure(proposal)

    return note


def refuse(proposal: Proposal) -> Trial:
    raise AssertionError(f"nothing is left to measure: {proposal}")


class TestFirstPoints:
    """The points that a job begins with."""

    @pytest.mark.parametrize(
        "first", [[at(16), at(1, "int8")], [at(16), at(8), at(1, "int8")], [at(8), at(16), at(1, "int8")]]
    )
    def test_they_follow_the_default_point(self, first: list[Any]) -> None:
        """Whether it is named or not, the default point stays trial 0, and the points to begin with come after it."""
        search = run(QUICK, first=first)
        assert [at(8), at(16), at(1, "int8")] == points_of(search.trials)[:3]
        assert len(search.trials) == len(set(points_of(search.trials))) == QUICK.budget.trials

    def test_those_outside_the_space_or_tried_before_are_left_out(self) -> None:
        """A point that the space has not, or that counts already, is not measured for being named."""
        history = [make_trial(point=at(8), measurement=show(at(8)))]
        search = run(QUICK, history=history, first=[at(512), at(8), at(16), at(16)])
        assert points_of(search.trials)[1] == at(16)
        assert points_of(search.trials).count(at(16)) == points_of(search.trials).count(at(8)) == 1

    @pytest.mark.parametrize("sampler", ["wattfront", "random", "tpe", "grid", "sobol"])
    def test_a_job_resumed_among_them_goes_on_as_if_undisturbed(self, sampler: str) -> None:
        """BUG-17: cut short before, amid or after the points to begin with, a job tries the very points it would."""
        first = [at(16), at(1, "int8"), at(2)]
        job = replace(QUICK, sampler=sampler, budget=Budget(trials=6))
        whole = run(job, first=first).trials
        for cut in range(6):
            assert run(job, first=first, history=whole[:cut]).trials == whole


class TestRivals:
    """What a window may be cut short for."""

    def test_they_are_the_front_so_far(self) -> None:
        """A proposal names the places that none of those measured so far dominates, the first one none."""
        shown = {8: (2.0, 30.0), 1: (1.0, 20.0), 2: (1.5, 30.0), 4: (3.0, 35.0), 16: (3.0, 30.0)}
        proposals: list[Proposal] = []
        measure = measure_for(QUICK, lambda point: measured(*shown[int(point["max_batch"])]))
        run(QUICK, measure=noting(measure, proposals), first=[at(1), at(2), at(4), at(16), at(16, "int8")])
        default, small, large = ObjectivePair(2.0, 30.0), ObjectivePair(1.0, 20.0), ObjectivePair(3.0, 35.0)
        best = ObjectivePair(3.0, 30.0)
        assert [set(), {default}, {small, default}, {small, default}, {small, default, large}, {small, best}] == [
            set(proposal.rivals) for proposal in proposals[:6]
        ]

    @pytest.mark.parametrize(
        "changes",
        [
            {"state": TrialState.INFEASIBLE, "reason": "sla:ttft_p99_ms"},
            {"state": TrialState.INVALID},
            {"state": TrialState.FAILED, "measurement": None},
            {"measurement": measured(9.0, 1.0, cut_by="dominated")},
            {"measurement": measured(None, 1.0)},
        ],
        ids=["infeasible", "invalid", "failed", "cut", "no energy"],
    )
    def test_only_what_may_stand_on_a_front_is_one(self, changes: dict[str, Any]) -> None:
        """A point outside the limits, without figures that hold, or cut short itself cuts no other."""
        history = [make_trial(point=at(8), **({"measurement": measured(9.0, 1.0)} | changes))]
        proposals: list[Proposal] = []
        run(quick(trials=2), history=history, measure=noting(measure_for(QUICK), proposals))
        assert [proposal.rivals for proposal in proposals] == [()]

    def test_a_retried_point_has_them_too(self) -> None:
        """BUG-17: a point whose worker died is held to the same rivals as it was, so that it is cut where it was."""
        undisturbed: list[Proposal] = []
        whole = run(QUICK, measure=noting(measure_for(QUICK), undisturbed)).trials
        retried: list[Proposal] = []
        retries = [Proposal(number=4, point=whole[4].point)]
        run(QUICK, history=whole[:4], retries=retries, measure=noting(measure_for(QUICK), retried))
        assert undisturbed[4:] == retried


class TestResume:
    """A search goes on where it was, from the trials alone."""

    def test_a_finished_job_has_nothing_left_to_do(self) -> None:
        """Resumed with all of its trials a job measures nothing and ends for the same reason."""
        whole = run(QUICK).trials
        assert run(QUICK, history=whole, measure=refuse).ended_because == "trials"

    @pytest.mark.parametrize("cut", range(7))
    def test_an_interrupted_trial_does_not_change_the_way(self, cut: int) -> None:
        """BUG-17: a trial whose worker died is retried first, under its number, and the rest is as it would be."""
        whole = run(QUICK).trials
        died = replace(whole[cut], state=TrialState.INTERRUPTED, measurement=None)
        retries = [Proposal(number=cut, point=died.point)]
        assert run(QUICK, history=[*whole[:cut], died], retries=retries).trials == whole

    def test_retries_come_first_under_their_own_numbers(self) -> None:
        """Points to try again go before new ones, in order, and new numbers follow the highest."""
        retries = [Proposal(number=1, point=at(2, "int8")), Proposal(number=3, point=at(4, "bf16"))]
        history = [make_trial(number=0, point=at(8)), make_trial(number=5, point=at(1, "int8"))]
        search = run(quick(trials=6), history=history, retries=retries, first=[at(16)])
        assert [(1, at(2, "int8")), (3, at(4, "bf16")), (6, at(16))] == [
            (trial.number, trial.point) for trial in search.trials[2:5]
        ]
        assert [trial.number for trial in search.trials[4:]] == [6, 7]
        assert len(set(points_of(search.trials))) == 6

    def test_a_retry_is_made_though_every_point_was_seen(self) -> None:
        """A point cut short that the space no longer has is tried again before the space counts as exhausted."""
        history = [make_trial(number=i, point=point) for i, point in enumerate(SMALL.points())]
        search = run(quick(trials=9), SMALL, history=history, retries=[Proposal(number=4, point=at(32))])
        assert (points_of(search.trials[4:]), search.ended_because) == ([at(32)], "exhausted")

    def test_a_point_with_an_outcome_is_not_retried(self) -> None:
        """BUG-18: what was cut short after its point had been measured is no reason to screen the point again."""
        history = [make_trial(number=i, point=point) for i, point in enumerate(SMALL.points())]
        search = run(quick(trials=9), SMALL, history=history, retries=[Proposal(number=4, point=at(8))])
        assert (search.trials, search.ended_because) == (history, "exhausted")

    @pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.INTERRUPTED])
    def test_trials_without_an_outcome_do_not_count(self, state: TrialState) -> None:
        """A trial that never ended is none of the budget's trials, and its point is still to be tried."""
        history = [make_trial(point=SPACE.default_point, state=state, measurement=None)]
        search = run(quick(trials=2), history=history)
        assert (2, SPACE.default_point) == (len(search.trials), search.trials[0].point)


class TestEnd:
    """When screening is over, and why."""

    @pytest.mark.parametrize(
        ("budget", "num_trials", "reason"),
        [
            ({"trials": 3}, 3, "trials"),
            ({"trials": 24}, 15, "exhausted"),
            ({"device_hours": 0.05}, 3, "device_hours"),  # a minute each
            ({"device_hours": 0.051}, 4, "device_hours"),
            ({"joules": 2000.0}, 2, "joules"),  # a kilojoule each
            ({"joules": 2001.0}, 3, "joules"),
            ({"trials": 2, "joules": 2000.0}, 2, "trials"),
        ],
    )
    def test_whichever_budget_is_used_up_first_ends_it(
        self, budget: dict[str, Any], num_trials: int, reason: str
    ) -> None:
        """No trial begins once one of the budgets is used up, and the search says which; failures cost as much."""
        for measure in (measure_for(QUICK), fails):
            search = run(quick(**budget), measure=measure)
            assert (len(search.trials), search.ended_because) == (num_trials, reason)

    def test_a_longer_budget_goes_on(self) -> None:
        """Those of the history count: with five trials allowed instead of three, a job measures two more."""
        search = run(quick(trials=3))
        longer = run(quick(trials=5), history=search.trials)
        assert (longer.trials[:3], len(longer.trials), longer.ended_because) == (search.trials, 5, "trials")

    def test_a_front_that_no_longer_grows_ends_it(self) -> None:
        """Two trials in a row without gain are a plateau; any gain before that puts it off."""
        request = replace(quick(plateau_trials=2), sla=(Limit(metric="tpot_p99_ms", bound_ms=40.0),))
        flat = run(request, measure=measure_for(request, lambda _: measured(2.0, 30.0)))
        assert (len(flat.trials), flat.ended_because) == (3, "plateau")
        gains = iter([2.0, 2.0, 3.0, 1.0, 3.0])
        grown = run(request, measure=measure_for(request, lambda _: measured(next(gains), 30.0)))
        assert (len(grown.trials), grown.ended_because) == (5, "plateau")

    def test_the_budget_of_minutes_ends_it(self, clock: FakeClock) -> None:
        """No trial begins when the minutes are over; the one that runs is finished."""
        durations_s = iter([60.0, 59.9, 0.2])
        request = quick(minutes=2.0)

        def measure(proposal: Proposal) -> Trial:
            clock.advance(next(durations_s))
            return trial_of(proposal)

        search = run(request, measure=measure, now=clock.monotonic_s)
        assert (len(search.trials), search.ended_because) == (3, "minutes")

    def test_the_minutes_of_earlier_trials_count(self, clock: FakeClock) -> None:
        """A resumed job has used the time that its trials took, not the time it lay still."""
        history = run(quick(trials=3)).trials  # a minute each

        def measure(proposal: Proposal) -> Trial:
            clock.advance(31.0)
            return trial_of(proposal)

        search = run(quick(minutes=4.0), history=history, measure=measure, now=clock.monotonic_s)
        assert (len(search.trials), search.ended_because) == (3 + 2, "minutes")

    def test_the_minutes_of_interrupted_attempts_count(self, clock: FakeClock) -> None:
        """A job killed for three minutes in all, and then resumed, ends by its four minutes after two trials more."""
        cut = [trial_of(Proposal(number=i, point=at(8)), state=TrialState.INTERRUPTED) for i in range(3)]

        def measure(proposal: Proposal) -> Trial:
            clock.advance(31.0)
            return trial_of(proposal)

        search = run(quick(minutes=4.0), interrupted=cut, measure=measure, now=clock.monotonic_s)
        assert (len(search.trials), search.ended_because) == (2, "minutes")

    def test_the_device_hours_of_interrupted_attempts_count(self) -> None:
        """What an attempt kept the device counts whether it said so or its worker was killed before it could."""
        cut = [
            replace(trial_of(Proposal(number=i, point=at(8))), state=TrialState.INTERRUPTED, device_s=device_s)
            for i, device_s in enumerate((60.0, None))
        ]
        search = run(quick(device_hours=0.05), interrupted=cut)
        assert (len(search.trials), search.ended_because) == (1, "device_hours")

    def test_without_a_budget_of_time_interrupted_attempts_change_nothing(self) -> None:
        """Points, numbers and order are those of a job that nobody disturbed."""
        whole = run(QUICK).trials
        cut = replace(whole[2], state=TrialState.INTERRUPTED, measurement=None)
        assert run(QUICK, history=whole[:2], interrupted=[cut]).trials == whole

    def test_a_wish_to_stop_ends_it_between_trials(self) -> None:
        """The reason that should_stop gives is the reason why the search ended, and the trials so far stay."""
        seen: list[Proposal] = []
        measure = noting(measure_for(QUICK), seen)
        search = run(QUICK, measure=measure, should_stop=lambda: "cancelled" if len(seen) == 2 else None)
        assert (len(search.trials), search.ended_because) == (2, "cancelled")

    def test_a_wish_to_stop_goes_before_everything_else(self) -> None:
        """A job that is to stop stops before it retries anything, and says so though its budget is used up, too."""
        search = run(
            quick(trials=1),
            history=[make_trial(point=SPACE.default_point)],
            retries=[Proposal(number=1, point=at(2, "int8"))],
            should_stop=lambda: "stopped",
        )
        assert (len(search.trials), search.ended_because) == (1, "stopped")

    def test_while_it_runs_there_is_no_reason(self) -> None:
        """Each trial is handed over as it ends, and only the end has a reason."""
        search = Search(QUICK, SPACE, measure_for(QUICK))
        trials = iter(search)
        assert [next(trials)] == search.trials
        assert search.ended_because is None

    def test_an_error_while_measuring_ends_it(self) -> None:
        """What the bench raises, as for a damaged checkpoint, reaches the caller and counts as no trial."""

        def measure(_: Proposal) -> Trial:
            raise RuntimeError("checkpoint")

        search = Search(QUICK, SPACE, measure)
        with pytest.raises(RuntimeError, match="checkpoint"):
            next(iter(search))
        assert search.trials == []

    def test_trials_taken_over_cost_nothing(self) -> None:
        """Points that another job measured count as tried, not as trials: the budget is left for new ones."""

        def measure(proposal: Proposal) -> Trial:
            taken_over = {"reused_from": "abcd/0", "device_s": 0.0, "device_j": 0.0} if proposal.number < 3 else {}
            return trial_of(proposal, **taken_over)

        search = run(quick(trials=2), measure=measure)
        assert (len(search.trials), search.ended_because) == (3 + 2, "trials")
