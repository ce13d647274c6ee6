"""Who is measured again, when, and in which order."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.db.factories import START, make_trial
from tests.tuner.factories import make_knob, make_request, measured
from tuner.drift import BASELINE_EVERY
from tuner.finalists import Repeat, finalists, next_repeat
from tuner.point import OperatingPoint
from tuner.request import RepeatRule, TuneRequest
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialRole, TrialState

#: Ten launches, each with two live settings; batch 1 at chunk 64 is the default.
SPACE = SearchSpace(
    knobs=(
        make_knob("max_batch", tuple(range(1, 11))),
        make_knob("prefill_chunk", (64, 128), needs_launch=False),
    )
)
JOB = make_request(repeats=RepeatRule(windows=3, finalists=6), seed=5)


def at(batch: int, chunk: int = 64) -> OperatingPoint:
    return OperatingPoint.of({"max_batch": batch, "prefill_chunk": chunk})


def screened(points: list[OperatingPoint] | None = None, **changes: Any) -> list[Trial]:
    """A screening whose points are all on the front: the larger the batch, the more frugal and the slower."""
    points = [at(batch) for batch in range(1, 11)] if points is None else points
    return [
        make_trial(
            number=number,
            point=point,
            measurement=measured(2.0 * int(point["max_batch"]), 10.0 * int(point["max_batch"]), spread=0.001),
            session=f"screening {number}",
            **changes,
        )
        for number, point in enumerate(points)
    ]


def answered(trials: list[Trial], repeat: Repeat, **changes: Any) -> Trial:
    """What came of a repeat: by default the figures that its point had in screening."""
    like = next(trial for trial in trials if trial.point == repeat.point)
    number = max(trial.number for trial in trials) + 1
    fields: dict[str, Any] = {
        "number": number,
        "role": repeat.role,
        "session": f"s{number}",
        "started_at": START + timedelta(minutes=number),
    }
    return replace(like, **(fields | changes))


def finals(request: TuneRequest, trials: list[Trial]) -> list[Repeat]:
    """Run finals to their end in which every window gives figures."""
    repeats = []
    trials = list(trials)
    while (repeat := next_repeat(request, SPACE, trials)) is not None:
        repeats.append(repeat)
        trials.append(answered(trials, repeat))
    return repeats


class TestWhoIsAFinalist:
    """Points that are worth more windows."""

    def test_of_a_long_front_those_furthest_apart(self) -> None:
        """Both ends are among them, and the others are the furthest from those chosen before them."""
        request = replace(JOB, repeats=RepeatRule(windows=3, finalists=4))
        assert (at(1), at(3), at(5), at(10)) == finalists(request, screened())

    @pytest.mark.parametrize(("most", "batches"), [(1, [10]), (2, [1, 10]), (10, list(range(1, 11)))])
    def test_the_ends_come_first(self, most: int, batches: list[int]) -> None:
        """One finalist is the most frugal point, two are both ends, and a front that is short enough goes whole."""
        request = replace(JOB, repeats=RepeatRule(windows=3, finalists=most))
        assert tuple(at(batch) for batch in batches) == finalists(request, screened())

    def test_ties_go_before_those_who_lead(self) -> None:
        """A point that is behind another within the intervals is a finalist while there is room, and not beyond."""
        leading = screened([at(2), at(8)])
        tied = make_trial(number=2, point=at(8, 128), measurement=measured(15.99, 80.1, spread=0.01))
        for most, points in ((2, (at(2), at(8))), (3, (at(2), at(8), at(8, 128)))):
            request = replace(JOB, repeats=RepeatRule(windows=3, finalists=most))
            assert points == finalists(request, [*leading, tied])

    def test_finals_do_not_change_it(self) -> None:
        """Whatever repeats show, the finalists stay those that screening chose."""
        trials = screened()
        repeat = next_repeat(JOB, SPACE, trials)
        assert repeat is not None
        worse = answered(trials, repeat, role=TrialRole.FINALIST, measurement=measured(0.1, 999.0))
        assert finalists(JOB, trials) == finalists(JOB, [*trials, worse])

    def test_of_nothing_there_are_none(self) -> None:
        """Without a point inside the limits nothing is measured again."""
        failed = screened(state=TrialState.FAILED)
        assert finalists(JOB, []) == finalists(JOB, failed) == ()
        assert next_repeat(JOB, SPACE, failed) is None


class TestOrder:
    """Which window comes next."""

    def test_without_repeats_there_is_none(self) -> None:
        """A job of one window a point has no finals."""
        assert next_repeat(replace(JOB, repeats=RepeatRule(windows=1)), SPACE, screened()) is None

    @settings(deadline=None, max_examples=10)
    @given(windows=st.integers(2, 4), most=st.integers(1, 10), seed=st.integers(0, 99))
    def test_each_finalist_gets_its_windows(self, windows: int, most: int, seed: int) -> None:
        """With screening's every finalist has `windows`, one a round; the default point stands for itself."""
        request = replace(JOB, repeats=RepeatRule(windows=windows, finalists=most), seed=seed)
        trials = screened()
        chosen = [point for point in finalists(request, trials) if point != SPACE.default_point]
        repeats = finals(request, trials)
        again = [repeat.point for repeat in repeats if repeat.role is TrialRole.FINALIST]
        assert sorted(chosen * (windows - 1), key=str) == sorted(again, key=str)
        rounds = [again[i : i + len(chosen)] for i in range(0, len(again), len(chosen) or 1)]
        assert all(sorted(one, key=str) == sorted(chosen, key=str) for one in rounds)

    @settings(deadline=None, max_examples=10)
    @given(windows=st.integers(2, 4), most=st.integers(2, 10), seed=st.integers(0, 99))
    def test_the_baseline_is_first_last_and_between(self, windows: int, most: int, seed: int) -> None:
        """The default point begins and ends the finals, and never more than six points lie between two of it."""
        request = replace(JOB, repeats=RepeatRule(windows=windows, finalists=most), seed=seed)
        roles = [repeat.role for repeat in finals(request, screened())]
        places = [i for i, role in enumerate(roles) if role is TrialRole.BASELINE]
        assert (0, len(roles) - 1) == (places[0], places[-1])
        assert all(1 <= later - earlier - 1 <= BASELINE_EVERY for earlier, later in pairwise(places))

    def test_the_order_is_random_by_seed(self) -> None:
        """Rounds differ in their order, the seed repeats them, and another seed gives others."""
        one, again, other = (finals(replace(JOB, seed=seed), screened()) for seed in (1, 1, 2))
        assert one == again != other
        points = [repeat.point for repeat in one if repeat.role is TrialRole.FINALIST]
        half = len(points) // 2
        assert points[:half] != points[half:]

    def test_points_of_one_launch_follow_one_another(self) -> None:
        """In a round the live settings of a launch are measured in that launch."""
        trials = screened([at(1), *(at(batch, chunk) for batch in (4, 7) for chunk in (64, 128))])
        request = replace(JOB, repeats=RepeatRule(windows=4, finalists=10))
        again = [repeat.point for repeat in finals(request, trials) if repeat.role is TrialRole.FINALIST]
        batches = [point["max_batch"] for point in again]
        assert all(one == other for one, other in zip(batches[::2], batches[1::2], strict=True))

    def test_each_round_begins_with_a_new_launch(self) -> None:
        """The first window of a round asks for a new launch, so that no two windows of a point share one."""
        request = replace(JOB, repeats=RepeatRule(windows=3, finalists=6))
        repeats = finals(request, screened())
        first_of_rounds = [i for i, repeat in enumerate(repeats) if repeat.needs_new_launch]
        assert first_of_rounds == [0, 7]  # baseline and five finalists, baseline; the sixth is the default point

    @settings(deadline=None, max_examples=10)
    @given(cut=st.integers(0, 13))
    def test_it_follows_from_the_trials_alone(self, cut: int) -> None:
        """Finals that were stopped after any window go on with the next, as if nothing had been."""
        whole = finals(JOB, screened())
        trials = screened()
        for repeat in whole[:cut]:
            trials.append(answered(trials, repeat))
        assert [*whole, None][cut] == next_repeat(JOB, SPACE, list(reversed(trials)))

    @pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "failed"])
    def test_without_a_measurable_default_the_fastest_finalist_is_the_baseline(self, is_cut: bool) -> None:
        """Where the default point's window failed or was cut, the fastest finalist takes its place."""
        first, *others = screened()
        cut = measured(2.0, 10.0, cut_by="sla:ttft_p99_ms")
        broken = (
            replace(first, state=TrialState.INFEASIBLE, measurement=cut)
            if is_cut
            else replace(first, state=TrialState.FAILED, measurement=None)
        )
        repeats = finals(JOB, [broken, *others])
        assert {at(2)} == {repeat.point for repeat in repeats if repeat.role is TrialRole.BASELINE}
        assert at(2) not in {repeat.point for repeat in repeats if repeat.role is TrialRole.FINALIST}
        assert [repeats[0].role, repeats[-1].role] == [TrialRole.BASELINE] * 2

    def test_one_finalist_alone_has_no_baseline(self) -> None:
        """A single finalist without a default point beside it is measured again all the same."""
        first, second, *_ = screened()
        failed = replace(first, state=TrialState.FAILED, measurement=None)
        repeats = finals(JOB, [failed, second])
        assert [(TrialRole.FINALIST, at(2), True)] * 2 == [(r.role, r.point, r.needs_new_launch) for r in repeats]


class TestFailures:
    """Repeats that give no figures."""

    def run(self, *, fails: int) -> list[Repeat]:
        """Run finals in which the first windows of batch 10 fail."""
        trials, repeats, failed = screened(), [], 0
        while (repeat := next_repeat(JOB, SPACE, trials)) is not None:
            repeats.append(repeat)
            is_lost = repeat.point == at(10) and failed < fails
            failed += is_lost
            changes = {"state": TrialState.FAILED, "measurement": None} if is_lost else {}
            trials.append(answered(trials, repeat, **changes))
        return repeats

    @pytest.mark.parametrize(("fails", "windows"), [(0, 2), (1, 3), (2, 3), (3, 3)])
    def test_a_finalist_is_tried_once_more(self, fails: int, windows: int) -> None:
        """However many of its windows fail, a finalist gets one more than planned, and no second."""
        assert windows == [repeat.point for repeat in self.run(fails=fails)].count(at(10))

    def test_a_baseline_ends_the_second_tries(self) -> None:
        """After the second tries the baseline is measured once more, so that they too lie between two of it."""
        repeats = self.run(fails=1)
        assert [(TrialRole.FINALIST, at(10)), (TrialRole.BASELINE, at(1))] == [
            (repeat.role, repeat.point) for repeat in repeats[-2:]
        ]
