"""Front laws against a definition of dominance and an area count of their own."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.device import Scope
from tests.db.factories import START, make_engine_info, make_point, make_reading, make_trial
from tests.tuner.factories import measured
from tuner.pareto import Front, ObjectivePair, front_of, hypervolume, non_dominated, place_of
from tuner.trial import Trial, TrialState

#: The front's latency axis in these tests.
METRIC = "tpot_p99_ms"
#: Small whole numbers, so that equal figures are common.
pairs = st.builds(ObjectivePair, st.integers(0, 6).map(float), st.integers(0, 6).map(float))
many_pairs = st.lists(pairs, max_size=12)


def beats(one: ObjectivePair, other: ObjectivePair) -> bool:
    """More tokens per joule and less latency, or one of them with the other equal."""
    return (one.tok_per_j >= other.tok_per_j and one.latency_ms < other.latency_ms) or (
        one.tok_per_j > other.tok_per_j and one.latency_ms <= other.latency_ms
    )


def kept(pairs: list[ObjectivePair]) -> list[ObjectivePair]:
    return [pairs[i] for i in non_dominated(pairs)]


def placed(tok_per_j: float, latency_ms: float, number: int = 0, **changes: Any) -> Trial:
    """A trial of a point of its own."""
    point = make_point(max_batch=number + 1)
    return make_trial(number=number, point=point, measurement=measured(tok_per_j, latency_ms), **changes)


def front(*trials: Trial) -> Front:
    return front_of(trials, METRIC, created_at=START)


class TestDominance:
    """Which pairs stay."""

    @settings(deadline=None)
    @given(one=pairs, other=pairs)
    def test_dominance_is_better_on_one_axis_and_no_worse_on_the_other(
        self, one: ObjectivePair, other: ObjectivePair
    ) -> None:
        """A pair dominates exactly where it has more tokens per joule or less latency, and loses nothing."""
        assert beats(one, other) == one.dominates(other)

    @settings(deadline=None)
    @given(pairs=many_pairs)
    def test_no_member_is_dominated(self, pairs: list[ObjectivePair]) -> None:
        """No pair of the front is beaten by any pair at all."""
        assert not any(beats(other, member) for member in kept(pairs) for other in pairs)

    @settings(deadline=None)
    @given(pairs=many_pairs)
    def test_whoever_is_left_out_is_dominated_by_a_member(self, pairs: list[ObjectivePair]) -> None:
        """Every pair that is not on the front is beaten by one that is."""
        left_out = set(range(len(pairs))) - set(non_dominated(pairs))
        assert all(any(beats(member, pairs[i]) for member in kept(pairs)) for i in left_out)

    @settings(deadline=None)
    @given(pairs=many_pairs, data=st.data())
    def test_the_order_does_not_matter(self, pairs: list[ObjectivePair], data: st.DataObject) -> None:
        """The same pairs in another order make the same front."""
        shuffled = data.draw(st.permutations(pairs))
        assert kept(pairs) == kept(shuffled)

    @settings(deadline=None)
    @given(pairs=many_pairs)
    def test_a_front_is_its_own_front(self, pairs: list[ObjectivePair]) -> None:
        """Taking the front of a front leaves nothing out."""
        assert kept(pairs) == kept(kept(pairs))

    @settings(deadline=None)
    @given(pairs=many_pairs)
    def test_a_front_rises(self, pairs: list[ObjectivePair]) -> None:
        """Along the front latency and tokens per joule rise together."""
        members = kept(pairs)
        assert members == sorted(members, key=lambda pair: (pair.latency_ms, pair.tok_per_j))
        assert [pair.tok_per_j for pair in members] == sorted(pair.tok_per_j for pair in members)

    def test_ties_stay(self) -> None:
        """Equal pairs do not dominate each other, so all of them are kept."""
        assert sorted(non_dominated([ObjectivePair(2, 10), ObjectivePair(2, 10), ObjectivePair(1, 10),
                                                  ObjectivePair(2, 10)])) == [0, 1, 3]  # fmt: skip

    def test_of_nothing_nothing_stays(self) -> None:
        """The front of no pairs is empty."""
        assert non_dominated([]) == []


class TestHypervolume:
    """The area that a front covers."""

    @pytest.mark.parametrize(
        ("pairs", "area"),
        [
            ([], 0.0),
            ([(2.0, 30.0)], 140.0),
            ([(2.0, 30.0), (5.0, 60.0)], 140.0 + 3.0 * 40.0),
            ([(2.0, 30.0), (1.0, 60.0)], 140.0),  # the second is dominated
            ([(2.0, 30.0), (2.0, 30.0)], 140.0),
            ([(2.0, 100.0)], 0.0),  # on the reference
            ([(2.0, 30.0), (9.0, 150.0)], 140.0),  # beyond it
            ([(0.0, 1.0)], 0.0),
        ],
    )
    def test_known_areas(self, pairs: list[tuple[float, float]], area: float) -> None:
        """Up to 100 ms, fronts drawn by hand cover the areas counted by hand."""
        assert area == hypervolume([ObjectivePair(*pair) for pair in pairs], 100.0)

    @settings(deadline=None)
    @given(pairs=many_pairs, reference=st.integers(0, 7))
    def test_an_area_is_the_number_of_dominated_squares(self, pairs: list[ObjectivePair], reference: int) -> None:
        """On whole numbers the area is the count of unit squares that some pair dominates."""
        squares = sum(
            any(pair.tok_per_j >= tokens + 1 and pair.latency_ms <= latency for pair in pairs)
            for tokens in range(7)
            for latency in range(reference)
        )
        assert squares == hypervolume(pairs, float(reference))

    @settings(deadline=None)
    @given(pairs=many_pairs, another=pairs, reference=st.integers(0, 7))
    def test_another_pair_never_takes_area_away(
        self, pairs: list[ObjectivePair], another: ObjectivePair, reference: int
    ) -> None:
        """Adding a pair leaves the area as it is, or makes it larger where nothing dominated or equalled the pair."""
        before, after = hypervolume(pairs, float(reference)), hypervolume([*pairs, another], float(reference))
        is_new = not any(beats(pair, another) or pair == another for pair in pairs)
        is_inside = another.latency_ms < reference and another.tok_per_j > 0
        assert (after > before) if is_new and is_inside else (after == before)


class TestFront:
    """The front of trials."""

    def test_it_holds_the_non_dominated_trials_fastest_first(self) -> None:
        """Trials stand by rising latency, and the area reaches to the slowest that was complete."""
        fast, slow, dominated = placed(1.0, 10.0, 0), placed(3.0, 30.0, 1), placed(2.0, 50.0, 2)
        shown = front(slow, dominated, fast)
        assert (METRIC, (fast, slow), 50.0, START) == (
            shown.latency_metric,
            shown.trials,
            shown.latency_reference_ms,
            shown.created_at,
        )
        assert shown.hypervolume == 1.0 * 40.0 + 2.0 * 20.0

    def test_without_trials_it_is_empty(self) -> None:
        """A front of nothing has no trials, no area and no reference."""
        assert ((shown := front()).trials, shown.hypervolume, shown.latency_reference_ms) == ((), 0.0, None)

    @settings(deadline=None)
    @given(states=st.lists(st.sampled_from(TrialState), max_size=6), pairs=many_pairs)
    def test_only_complete_trials_reach_it(self, states: list[TrialState], pairs: list[ObjectivePair]) -> None:
        """Power case 60: a failed, invalid, infeasible or unfinished trial never stands on a front, however good."""
        trials = [placed(pair.tok_per_j, pair.latency_ms, i) for i, pair in enumerate(pairs)]
        others = [state for state in states if state is not TrialState.COMPLETE]
        better = [placed(99.0, 0.001, 50 + i, state=state) for i, state in enumerate(others)]
        assert front(*trials) == front(*better, *trials)

    @pytest.mark.parametrize(
        "trial",
        [
            make_trial(measurement=None),
            make_trial(measurement=measured(None, 1.0)),
            make_trial(measurement=measured(99.0, None)),
            make_trial(measurement=measured(99.0, 1.0, reasons=("no_steady_state",))),
            placed(math.nan, 1.0),
            placed(math.inf, 1.0),
            placed(99.0, math.nan),
            placed(99.0, -math.inf),
        ],
        ids=["nothing", "no energy", "no latency", "invalid", "nan", "inf", "nan latency", "-inf latency"],
    )
    def test_a_trial_without_usable_figures_does_not_reach_it(self, trial: Trial) -> None:
        """BUG-13: a complete trial with a missing, NaN or infinite figure neither stands on a front nor moves it."""
        assert place_of(trial, METRIC) is None
        assert front(placed(1.0, 10.0, 1)) == front(trial, placed(1.0, 10.0, 1), trial)

    def test_the_front_of_bug_13(self) -> None:
        """BUG-13: of (0, NaN), (0, inf) and (120 tok/s, 0.8 J/tok) only the third is on the front."""
        third = placed(1 / 0.8, 20.0, 2)
        assert (third,) == front(placed(math.nan, 20.0, 0), placed(math.inf, 20.0, 1), third).trials

    def test_ties_between_trials_stay(self) -> None:
        """Two trials with equal figures both stand on the front."""
        assert len(front(placed(2.0, 10.0, 0), placed(2.0, 10.0, 1)).trials) == 2

    def test_trials_within_each_others_intervals_both_stay(self) -> None:
        """Power case 61: of two trials whose intervals overlap on both axes neither is left out."""
        better = make_trial(number=0, point=make_point(1), measurement=measured(2.01, 9.99, spread=0.05))
        worse = make_trial(number=1, point=make_point(2), measurement=measured(2.0, 10.0, spread=0.05))
        assert {0, 1} == {trial.number for trial in front(better, worse).trials}

    @pytest.mark.parametrize(
        "changes",
        [
            {"reading": make_reading(scope=Scope.CPU_SHARE)},
            {"reading": make_reading(device_uuids=("GPU-2",))},
            {"engine": make_engine_info(model_hash="cd" * 32)},
            {"engine": make_engine_info(version="2")},
        ],
        ids=["scope", "device", "model", "engine version"],
    )
    def test_figures_of_another_origin_are_not_merged(self, changes: dict[str, Any]) -> None:
        """Power case 62: of a job resumed after a change only the trials measured like the newest are compared."""
        old = make_trial(number=0, measurement=measured(99.0, 1.0, **changes))
        new = placed(2.0, 10.0, 1, started_at=START + timedelta(hours=24))
        assert front(new) == front(old, new)
        assert front(old) == front(old, make_trial(number=2, state=TrialState.FAILED, measurement=None))
