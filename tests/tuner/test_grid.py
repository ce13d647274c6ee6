"""A space as arrays: places, launches, draws of large spaces."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuner.factories import make_knob, make_request, make_space
from tuner.grid import MAX_POINTS, Grid
from tuner.point import OperatingPoint
from tuner.space import SearchSpace

WORKLOAD = make_request().workload
#: 27,000 points.
LARGE = make_space(max_batch=tuple(range(1, 31)), prefill_chunk=tuple(range(1, 31)), sm_clock_cap_mhz=tuple(range(30)))


def grid_of(space: SearchSpace) -> Grid:
    return Grid.of(space, WORKLOAD, seed="0")


class TestPlaces:
    """Where points lie in the unit cube."""

    def test_wide_numbers_are_spread_by_their_logarithm(self) -> None:
        """Batch sizes from 4 to 64 are as far from each other as the powers of two are."""
        places = grid_of(make_space(max_batch=(4, 8, 16, 32, 64))).places
        assert places[:, 0] == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])

    @pytest.mark.parametrize(
        ("name", "values"),
        [("max_batch", (10, 15, 20)), ("sm_clock_cap_mhz", (200, 600, 1000)), ("prefill_gpus", (0, 4, 8))],
    )
    def test_narrow_numbers_clocks_and_zeros_are_spread_evenly(self, name: str, values: tuple[int, ...]) -> None:
        """A span below a factor of four, a clock of any span, and a knob that may be 0 lie on an even scale."""
        assert grid_of(make_space(**{name: values})).places[:, 0] == pytest.approx([0.0, 0.5, 1.0])

    def test_the_order_of_values_does_not_matter(self) -> None:
        """Numbers listed from the largest on lie where they lie when listed from the smallest."""
        one, other = (grid_of(make_space(max_batch=values)) for values in ((4, 8, 16), (16, 4, 8)))
        assert {point: place[0] for point, place in zip(one.points, one.places, strict=True)} == {
            point: place[0] for point, place in zip(other.points, other.places, strict=True)
        }

    def test_a_knob_of_one_value_lies_at_0(self) -> None:
        """A knob that has no choice takes no room."""
        assert grid_of(make_space(max_batch=(8,), precision=("bf16",))).places.tolist() == [[0.0, 0.0]]

    def test_numbers_between_values_lie_between_them(self) -> None:
        """What is no value of a knob has a place on its scale: 8 on the scale of 4 and 16, 1,500 on that of clocks."""
        grid = grid_of(make_space(max_batch=(4, 16), sm_clock_cap_mhz=(1000, 2000)))
        assert grid.scaled("max_batch", np.array([4.0, 8.0, 16.0])) == pytest.approx([0.0, 0.5, 1.0])
        assert grid.scaled("sm_clock_cap_mhz", np.array([1500.0])) == pytest.approx([0.5])

    def test_words_are_numbered(self) -> None:
        """A word's place says which of the knob's words it is, and is marked as a word."""
        grid = grid_of(make_space(max_batch=(4, 8), precision=("fp32", "int8", "bf16")))
        assert grid.is_word.tolist() == [False, True]
        assert grid.places[:3, 1].tolist() == [0.0, 1.0, 2.0]

    @settings(deadline=None, max_examples=30)
    @given(values=st.lists(st.integers(1, 5000), min_size=1, max_size=8, unique=True))
    def test_every_number_lies_in_the_unit_interval_in_order(self, values: list[int]) -> None:
        """Places rise with the values, from 0 to 1."""
        places = grid_of(make_space(max_batch=tuple(sorted(values)))).places[:, 0]
        assert places[0] == 0.0
        assert len(values) == 1 or places[-1] == pytest.approx(1.0)
        assert np.all(np.diff(places) > 0)


class TestLaunches:
    """Which points share a launch."""

    def test_points_share_a_launch_where_no_launch_knob_differs(self) -> None:
        """Of two batch sizes and three clocks there are two launches with three points each."""
        batch = make_knob(values=(4, 8))
        clock = make_knob("sm_clock_cap_mhz", (800, 1000, 1200), needs_launch=False)
        grid = grid_of(SearchSpace(knobs=(batch, clock)))
        assert grid.launches[0] != grid.launches[3]
        assert grid.launches.reshape(2, 3).tolist() == [[0, 0, 0], [1, 1, 1]]

    def test_without_launch_knobs_all_points_share_one(self) -> None:
        """A space of live knobs needs a single launch."""
        space = SearchSpace(knobs=(make_knob("prefill_chunk", (32, 64), needs_launch=False),))
        assert grid_of(space).launches.tolist() == [0, 0]


class TestWholeAndDrawn:
    """Small spaces are looked at whole, large ones in part."""

    def test_a_small_space_is_whole_and_in_order(self) -> None:
        """Each point of the space is there once, and `index` says where."""
        space = make_space()
        grid = grid_of(space)
        assert tuple(space.points()) == grid.points
        assert [grid.index[point] for point in space.points()] == [0, 1, 2, 3]

    def test_a_large_space_is_drawn(self) -> None:
        """Of a space beyond MAX_POINTS about as many different points are there, all of the space."""
        grid = grid_of(LARGE)
        assert LARGE.size > MAX_POINTS
        assert 0.7 * MAX_POINTS < len(grid.points) <= MAX_POINTS
        assert len(set(grid.points)) == len(grid.points)
        assert all(point in LARGE for point in grid.points)

    def test_the_same_seed_draws_the_same(self) -> None:
        """One seed gives one draw, another a different one."""
        one, again, other = (Grid.of(LARGE, WORKLOAD, seed=seed).points for seed in ("1", "1", "2"))
        assert one == again
        assert one != other

    def test_what_is_near_is_always_there(self) -> None:
        """Points that are named are in the draw, and all that is one value away from them in one knob."""
        near = OperatingPoint.of({"max_batch": 10, "prefill_chunk": 1, "sm_clock_cap_mhz": 29})
        points = set(Grid.of(LARGE, WORKLOAD, seed="0", near=[near]).points)
        steps = (("max_batch", 9), ("max_batch", 11), ("prefill_chunk", 2), ("sm_clock_cap_mhz", 28))
        assert {near, *(OperatingPoint.of(near.as_dict() | {name: value}) for name, value in steps)} <= points

    def test_of_words_every_other_one_is_near(self) -> None:
        """From one word all others are one step away."""
        space = SearchSpace(knobs=(*LARGE.knobs, make_knob("precision", ("bf16", "fp8", "int8", "int4"))))
        near = OperatingPoint.of({"max_batch": 1, "prefill_chunk": 1, "sm_clock_cap_mhz": 0, "precision": "fp8"})
        points = set(Grid.of(space, WORKLOAD, seed="0", near=[near]).points)
        assert all(
            OperatingPoint.of(near.as_dict() | {"precision": word}) in points for word in ("bf16", "int8", "int4")
        )


class TestWork:
    """What points ask of a machine."""

    def test_the_clock_is_a_share_of_the_highest_that_is_tried(self) -> None:
        """Of clocks up to 2000 MHz 1000 MHz is half, whatever points are looked at."""
        space = make_space(sm_clock_cap_mhz=(2000, 1000))
        grid = grid_of(space).with_points(list(space.points())[1:])
        assert grid.work.clock.tolist() == [0.5]

    def test_other_points_of_the_same_space(self) -> None:
        """A grid with other points keeps the scale of its space."""
        space = replace(make_space(max_batch=(4, 8, 16)))
        points = [OperatingPoint.of({"max_batch": 16})] * 2
        grid = grid_of(space).with_points(points)
        assert grid.places.tolist() == [[1.0], [1.0]]
        assert list(itertools.repeat(16.0, 2)) == grid.work.max_batch.tolist()
