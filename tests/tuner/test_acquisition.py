"""Which points promise most for their device time: areas against `tuner.pareto`, and choices whose answer is plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.acquisition import (
    LONGEST_BLOCK,
    Array,
    Candidates,
    Costs,
    Indices,
    Staircase,
    best_block,
    expected_gains,
)
from tuner.pareto import ObjectivePair, hypervolume

REFERENCE_MS = 10.0
COSTS = Costs(launch_s=60.0, window_s=30.0)
#: Small whole numbers, so that equal figures and figures on the reference are common.
places = st.tuples(st.integers(1, 6).map(float), st.integers(1, 12).map(float))
many_places = st.lists(places, max_size=8)


def staircase(places: Sequence[tuple[float, float]]) -> Staircase:
    """The front of places of tokens per joule and latency."""
    return Staircase.of(
        np.array([height for height, _ in places]), np.array([latency for _, latency in places]), REFERENCE_MS
    )


def area(places: Sequence[tuple[float, float]]) -> float:
    return hypervolume([ObjectivePair(*place) for place in places], REFERENCE_MS)


class TestStaircase:
    """A front as a function."""

    @settings(deadline=None, max_examples=30)
    @given(many_places)
    def test_its_area_is_the_hypervolume(self, known: list[tuple[float, float]]) -> None:
        """The area below the steps is what `tuner.pareto` counts."""
        assert staircase(known).area == pytest.approx(area(known))

    @settings(deadline=None, max_examples=30)
    @given(known=many_places, new=st.lists(places, min_size=1, max_size=5))
    def test_a_gain_is_what_the_hypervolume_grows_by(
        self, known: list[tuple[float, float]], new: list[tuple[float, float]]
    ) -> None:
        """Each place's gain is the hypervolume with it less that without it, whatever the others are."""
        gains = staircase(known).gains(np.array([one[0] for one in new]), np.array([one[1] for one in new]))
        assert gains == pytest.approx([area([*known, one]) - area(known) for one in new], abs=1e-9)

    def test_an_empty_front_is_passed_by_any_place(self) -> None:
        """Without a point the area is 0, and a place gains its height up to the reference."""
        assert staircase([]).area == 0.0
        assert staircase([]).gains(np.array([2.0, 3.0]), np.array([4.0, 11.0])).tolist() == [12.0, 0.0]


def candidates(
    heights: Sequence[float],
    latencies: Sequence[float],
    launches: Sequence[int],
    *,
    deviation: float = 1e-4,
    likelihood: Sequence[float] | None = None,
) -> Candidates:
    """Points known to `deviation` of their logarithms, independent of each other."""
    means, others = np.log(heights), np.log(latencies)

    def sample(chosen: Indices, normals: Array, other_normals: Array) -> tuple[Array, Array]:
        return means[chosen] + deviation * normals, others[chosen] + deviation * other_normals

    return Candidates(
        log_height_mean=means,
        log_height_deviation=np.full(len(means), deviation),
        log_latency_mean=others,
        log_latency_deviation=np.full(len(means), deviation),
        likelihood=np.ones(len(means)) if likelihood is None else np.array(likelihood),
        launches=np.array(launches, dtype=np.intp),
        sample=sample,
    )


class TestExpectedGains:
    """What a point is expected to add by itself."""

    def test_of_points_that_are_known_it_is_their_gain(self) -> None:
        """A point without doubt is expected to add what it adds."""
        front = staircase([(2.0, 4.0)])
        found = expected_gains(front, candidates([3.0, 1.0, 1.0], [4.0, 5.0, 2.0], [0, 0, 0]))
        assert found == pytest.approx([6.0, 0.0, 2.0], abs=0.01)

    def test_it_is_the_mean_over_what_is_held_possible(self) -> None:
        """Against many plain random draws the expectation is right to some percent."""
        front = staircase([(2.0, 4.0), (3.0, 6.0)])
        normals = np.random.default_rng(0).normal(size=(2, 200_000))
        drawn = front.gains(np.exp(np.log(2.5) + 0.3 * normals[0]), np.exp(np.log(5.0) + 0.3 * normals[1])).mean()
        found = expected_gains(front, candidates([2.5], [5.0], [0], deviation=0.3))
        assert found == pytest.approx([drawn], rel=0.1)

    def test_doubt_is_worth_something(self) -> None:
        """A point that is dominated by its mean may still gain, the more the less is known of it."""
        front = staircase([(2.0, 4.0)])
        gains = [
            expected_gains(front, candidates([1.8], [4.4], [0], deviation=deviation))[0]
            for deviation in (0.01, 0.2, 0.4)
        ]
        assert 0.0 <= gains[0] < gains[1] < gains[2]

    def test_it_counts_by_the_likelihood_of_meeting_the_limits(self) -> None:
        """A point that meets its limits one time in four is worth a quarter."""
        one, other = (
            expected_gains(staircase([]), candidates([2.0], [5.0], [0], likelihood=[likelihood]))[0]
            for likelihood in (1.0, 0.25)
        )
        assert other == pytest.approx(one / 4)


class TestBestBlock:
    """What is measured next."""

    def test_the_open_launch_is_kept_where_gains_are_equal(self) -> None:
        """Of equal points in two launches that of the open one is chosen, as it costs no launch."""
        front, points = staircase([(1.0, 5.0)]), candidates([2.0, 2.0], [4.0, 4.0], [0, 1])
        assert best_block(front, points, COSTS, open_launch=0).tolist() == [0]
        assert best_block(front, points, COSTS, open_launch=1).tolist() == [1]

    def test_the_open_launch_is_left_where_another_promises_enough_more(self) -> None:
        """A launch of 60 s beside a window of 30 s is worth it for ten times the gain, not for a tenth more."""
        front = staircase([(1.0, 5.0)])
        little = candidates([1.10, 1.11], [5.0, 5.0], [0, 1])
        much = candidates([1.10, 2.00], [5.0, 5.0], [0, 1])
        assert best_block(front, little, COSTS, open_launch=0).tolist() == [0]
        assert best_block(front, much, COSTS, open_launch=0).tolist() == [1]

    def test_a_free_launch_changes_nothing(self) -> None:
        """Where launches cost nothing the point that gains most is the first, whatever launch is open."""
        free = replace(COSTS, launch_s=0.0)
        points = candidates([1.10, 1.11, 1.05], [5.0, 5.0, 5.0], [0, 1, 2])
        for is_open in (0, 1, 2, None):
            assert best_block(staircase([(1.0, 5.0)]), points, free, open_launch=is_open)[0] == 1

    def test_a_launch_is_worth_what_its_points_gain_together(self) -> None:
        """Four points of one launch that add to each other are chosen before one that alone gains more than each.

        Unless launches are free: then the one is first.
        """
        points = candidates([2.0, 1.5, 1.0, 0.5, 1.6], [8.0, 6.0, 4.0, 2.0, 6.0], [0, 0, 0, 0, 1])
        dear, free = (
            best_block(staircase([]), points, replace(COSTS, launch_s=launch_s), open_launch=None).tolist()
            for launch_s in (300.0, 0.0)
        )
        assert {0, 1, 2, 3} == set(dear)
        assert free == [4]

    def test_points_alike_are_not_measured_in_one_block(self) -> None:
        """Two points that would show the same are worth one window."""
        sampled = candidates([2.0, 2.0], [4.0, 4.0], [0, 0])
        assert len(best_block(staircase([]), sampled, COSTS, open_launch=None)) == 1

    @settings(deadline=None, max_examples=20)
    @given(
        points=st.lists(st.tuples(places, st.integers(0, 3), st.floats(0, 1)), min_size=1, max_size=12),
        known=many_places,
        is_open=st.sampled_from([None, 0, 7]),
        seed=st.integers(0, 3),
    )
    def test_a_block_is_of_one_launch_and_names_no_point_twice(
        self,
        points: list[tuple[tuple[float, float], int, float]],
        known: list[tuple[float, float]],
        is_open: int | None,
        seed: int,
    ) -> None:
        """Whatever is asked, there is an answer: one to LONGEST_BLOCK points, all different, all of one launch."""
        given_points = candidates(
            [place[0] for place, _, _ in points],
            [place[1] for place, _, _ in points],
            [launch for _, launch, _ in points],
            deviation=0.2,
            likelihood=[likelihood for _, _, likelihood in points],
        )
        block = best_block(staircase(known), given_points, COSTS, open_launch=is_open, seed=seed).tolist()
        assert 1 <= len(block) <= LONGEST_BLOCK
        assert len(set(block)) == len(block)
        assert len({points[i][1] for i in block}) == 1

    def test_points_that_cannot_meet_the_limits_are_left(self) -> None:
        """A point of likelihood 0 is not chosen while another gains, however much it would gain."""
        points = candidates([9.0, 1.2], [1.0, 5.0], [0, 1], likelihood=[0.0, 0.5])
        assert best_block(staircase([(1.0, 5.0)]), points, COSTS, open_launch=0).tolist() == [1]

    def test_where_nothing_can_gain_one_point_is_named_all_the_same(self) -> None:
        """With every likelihood 0, and with every point dominated, a single point is the answer."""
        hopeless = candidates([2.0, 3.0], [4.0, 4.0], [0, 1], likelihood=[0.0, 0.0])
        dominated = candidates([1.0, 1.1], [8.0, 8.0], [0, 1])
        assert len(best_block(staircase([]), hopeless, COSTS, open_launch=None)) == 1
        assert len(best_block(staircase([(5.0, 1.0)]), dominated, COSTS, open_launch=1)) == 1

    def test_the_same_seed_gives_the_same_block(self) -> None:
        """Asked twice, the answer is the same."""
        points = candidates([2.0, 1.5, 1.0, 1.9], [8.0, 6.0, 4.0, 7.9], [0, 0, 1, 1], deviation=0.3)
        one, other = (best_block(staircase([]), points, COSTS, open_launch=None, seed=5) for _ in range(2))
        assert one.tolist() == other.tolist()
