"""The finals of a search: the best points again, after screening, until each has its windows or a limit is reached."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.db.factories import START
from tests.probes.fake_clock import FakeClock
from tests.tuner.factories import measured
from tests.tuner.search_jobs import JOB, SMALL, SPACE, at, measure_for, points_of, run, show, trial_of
from tuner.aggregates import IntervalOf, aggregated
from tuner.finalists import finalists
from tuner.pareto import front_of
from tuner.pareto import points_of as points_of_front
from tuner.request import Budget, Limit, RepeatRule, TuneRequest
from tuner.search import Proposal
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialRole, TrialState

REPEATED = replace(JOB, sampler="random", repeats=RepeatRule(windows=3, finalists=3), budget=Budget(trials=6))
LIMIT = (Limit(metric="tpot_p99_ms", bound_ms=40.0),)
#: Jobs whose screening ends for one reason each.
ENDINGS: dict[str, tuple[TuneRequest, SearchSpace]] = {
    "trials": (REPEATED, SPACE),
    "exhausted": (replace(REPEATED, budget=Budget(trials=12)), SMALL),
    "plateau": (replace(REPEATED, sla=LIMIT, budget=Budget(plateau_trials=2)), SPACE),
}


def repeats_of(trials: list[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.role is not TrialRole.SCREENING]


class TestOrder:
    """What follows screening."""

    @pytest.fixture
    def proposals(self) -> list[Proposal]:
        """All that REPEATED measures."""
        seen: list[Proposal] = []
        measure = measure_for(REPEATED)

        def note(proposal: Proposal) -> Trial:
            seen.append(proposal)
            return measure(proposal)

        run(REPEATED, measure=note)
        return seen

    def test_first_all_is_screened_then_the_best_are_repeated(self, proposals: list[Proposal]) -> None:
        """After the budget's six points each finalist gets two more windows; numbers go on without a gap."""
        screened = [trial_of(one, measurement=show(one.point)) for one in proposals[:6]]
        windows = Counter(one.point for one in proposals[6:] if one.role is TrialRole.FINALIST)
        chosen = set(finalists(REPEATED, screened)) - {SPACE.default_point}
        assert [one.role for one in proposals[:6]] == [TrialRole.SCREENING] * 6
        assert TrialRole.SCREENING not in {one.role for one in proposals[6:]}
        assert dict.fromkeys(chosen, 2) == windows
        assert list(range(len(proposals))) == [one.number for one in proposals]

    def test_each_round_has_launches_of_its_own(self, proposals: list[Proposal]) -> None:
        """No screened point needs a launch of its own; in the finals the first window of each of two rounds does."""
        assert [one.needs_new_launch for one in proposals[:6]] == [False] * 6
        rounds = [i for i, one in enumerate(proposals) if one.needs_new_launch]
        assert (len(rounds), rounds[0]) == (2, 6)
        first, second = (
            {one.point for one in part if one.role is TrialRole.FINALIST}
            for part in (proposals[6 : rounds[1]], proposals[rounds[1] :])
        )
        assert first == second

    def test_drift_is_told_by_the_default_point(self, proposals: list[Proposal]) -> None:
        """Finals begin and end with a window of the default point, in the role of the baseline."""
        assert [(TrialRole.BASELINE, SPACE.default_point)] * 2 == [
            (one.role, one.point) for one in (proposals[6], proposals[-1])
        ]

    def test_repeats_have_no_rivals(self, proposals: list[Proposal]) -> None:
        """A repeat is never cut for being dominated: its whole window is what it is for."""
        assert {()} == {one.rivals for one in proposals[6:]}
        assert any(one.rivals for one in proposals[:6])

    def test_one_window_repeats_nothing(self) -> None:
        """A job that asks for single windows ends with screening."""
        assert repeats_of(run(replace(REPEATED, repeats=RepeatRule(windows=1))).trials) == []

    def test_without_a_point_inside_the_limits_there_are_none(self) -> None:
        """BUG-15b: when nothing meets the limits there is nothing to be sure of, and the job ends normally."""
        search = run(replace(REPEATED, sla=(Limit(metric="ttft_p99_ms", bound_ms=1.0),)))
        assert (len(search.trials), search.ended_because) == (6, "trials")


class TestEnd:
    """What ends finals, and what they end with."""

    @pytest.mark.parametrize("reason", ENDINGS)
    def test_the_reason_is_that_of_screening(self, reason: str) -> None:
        """Finals that ran to their end leave the reason why screening ended."""
        search = run(ENDINGS[reason][0], ENDINGS[reason][1])
        assert (search.ended_because, len(repeats_of(search.trials)) > 0) == (reason, True)

    @pytest.mark.parametrize(
        ("budget", "reason"),
        [({"joules": 8000.0}, "joules"), ({"device_hours": 8 / 60}, "device_hours")],
    )
    def test_energy_and_device_time_are_hard_limits(self, budget: dict[str, Any], reason: str) -> None:
        """Repeats take from the same energy and device time as screening: two of them were left, then it ends."""
        search = run(replace(REPEATED, budget=Budget(trials=6, **budget)))
        assert (len(search.trials), search.ended_because) == (8, reason)

    def test_so_is_wall_time(self, clock: FakeClock) -> None:
        """No repeat begins when the minutes are over."""

        def measure(proposal: Proposal) -> Trial:
            clock.advance(60.0)
            return trial_of(proposal, measurement=show(proposal.point))

        request = replace(REPEATED, budget=Budget(trials=6, minutes=8.0))
        search = run(request, measure=measure, now=clock.monotonic_s)
        assert (len(search.trials), search.ended_because) == (8, "minutes")

    def test_a_limit_reached_as_they_end_is_not_the_reason(self) -> None:
        """A job whose last repeat used up its energy ran to its end: there was nothing left to spend energy on."""
        whole = run(REPEATED)
        search = run(replace(REPEATED, budget=Budget(trials=6, joules=1000.0 * len(whole.trials))))
        assert (search.trials, search.ended_because) == (whole.trials, "trials")

    @pytest.mark.parametrize("num_trials", [2, 8])
    def test_whoever_stops_screening_gets_no_finals(self, num_trials: int) -> None:
        """A job that is cancelled, in screening or amid finals, measures no window more."""
        trials: list[Trial] = []

        def measure(proposal: Proposal) -> Trial:
            trials.append(trial_of(proposal, measurement=show(proposal.point)))
            return trials[-1]

        search = run(REPEATED, measure=measure, should_stop=lambda: "cancelled" if len(trials) == num_trials else None)
        assert (len(search.trials), search.ended_because) == (num_trials, "cancelled")


class TestResume:
    """Finals go on where they were, from the trials alone."""

    @pytest.mark.parametrize("reason", ENDINGS)
    def test_a_job_goes_on_as_if_undisturbed(self, reason: str) -> None:
        """BUG-17: cut short anywhere, in screening or finals, a job measures the very windows it would have."""
        request, space = ENDINGS[reason]
        whole = run(request, space).trials
        for cut in range(len(whole) + 1):
            search = run(request, space, history=whole[:cut])
            assert (search.trials, search.ended_because) == (whole, reason)

    @pytest.mark.parametrize("reason", ENDINGS)
    def test_a_repeat_cut_short_stays_a_repeat(self, reason: str) -> None:
        """BUG-17: a window of the finals whose worker died comes again in its role and under its number."""
        request, space = ENDINGS[reason]
        whole = run(request, space).trials
        for cut in range(len(whole)):
            died = replace(whole[cut], state=TrialState.INTERRUPTED, measurement=None)
            retries = [Proposal(number=cut, point=died.point)]
            assert run(request, space, history=[*whole[:cut], died], retries=retries).trials == whole

    @pytest.mark.parametrize("sampler", ["wattfront", "random"])
    def test_after_finals_began_nothing_is_screened(self, sampler: str) -> None:
        """A job resumed amid finals with room for more trials keeps to its finalists: screening is not reopened."""
        request = replace(REPEATED, sampler=sampler)
        whole = run(request).trials
        longer = run(replace(request, budget=Budget(trials=12)), history=whole[:7], first=[at(16, "fp32")])
        assert (longer.trials, longer.ended_because) == (whole, "exhausted")


class TestRepeats:
    """What repeats are for."""

    @pytest.fixture
    def trials(self) -> list[Trial]:
        """REPEATED, on a server whose figures scatter by 2 % from one launch to another."""

        def measure(proposal: Proposal) -> Trial:
            figures = show(proposal.point)
            assert figures.tok_per_j is not None
            assert figures.tpot.p99 is not None
            scatter = 1.0 + 0.02 * (-1, 0, 1)[proposal.number % 3]
            shown = measured(figures.tok_per_j.value * scatter, figures.tpot.p99.value / scatter)
            return trial_of(proposal, measurement=shown)

        return run(replace(REPEATED, sla=()), measure=measure).trials

    def test_repeats_of_a_point_are_one_with_their_spread(self, trials: list[Trial]) -> None:
        """BUG-18: windows of one point are grouped: one mean, with an interval that tells how launches scatter."""
        repeated = {trial.point for trial in repeats_of(trials)}
        groups = aggregated(trials, REPEATED.latency_metric)
        assert len(groups) == len({trial.point for trial in trials}) == 6
        for group in groups:
            if group.point in repeated:
                assert group.num_windows >= 3
                assert group.interval_of is IntervalOf.SESSIONS
                assert group.tok_per_j.low is not None
                assert group.tok_per_j.high is not None
                assert group.tok_per_j.low < group.tok_per_j.value < group.tok_per_j.high
            else:
                assert (group.num_windows, group.interval_of) == (1, IntervalOf.WINDOW)

    def test_the_front_names_each_point_once(self, trials: list[Trial]) -> None:
        """BUG-18: the better of two equal windows is no gain: a point stands on the front once, with all of them."""
        front = front_of(trials, REPEATED.latency_metric, created_at=START)
        points = points_of_front(front, trials)
        assert len(points) == len(set(points_of(front.trials)))
        finalists = {trial.point for trial in trials if trial.role is TrialRole.FINALIST}
        assert finalists <= {point.trial.point for point in points if point.aggregated.num_windows == 3}
