"""Where batch sizes lie that would not be filled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.tuner.factories import make_knob, make_request, make_space
from tuner.evidence import Observation
from tuner.grid import Grid
from tuner.occupancy import filled_places
from tuner.point import OperatingPoint
from tuner.pruning import merged
from tuner.space import SearchSpace

BATCHES = (2, 4, 8, 16, 32, 64)
SPACE = SearchSpace(
    knobs=(
        make_knob("max_batch", BATCHES),
        make_knob("policy", ("decode_first", "prefill_first")),
        make_knob("sm_clock_cap_mhz", (1000, 1200, 1400, 1600, 1800, 2000), needs_launch=False),
    )
)
GRID = Grid.of(SPACE, make_request().workload, seed="0")
COLUMN = [knob.name for knob in SPACE.knobs].index("max_batch")


def point_of(batch: int, clock: int, policy: str = "decode_first") -> OperatingPoint:
    return OperatingPoint.of({"max_batch": batch, "policy": policy, "sm_clock_cap_mhz": clock})


def ran(peak: int | None, point: OperatingPoint) -> Observation:
    """A point with the most sequences that ran at once."""
    return Observation(
        point=point,
        num_windows=1,
        log_tok_per_j=0.0,
        log_latency_ms=math.log(20.0),
        log_step_ms=None,
        log_limits={},
        is_feasible=True,
        peak_running=peak,
        is_power_capped=None,
        highest_clock_mhz=None,
    )


def places_after(*seen: Observation, grid: Grid = GRID) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return filled_places(grid, merged(grid, seen), seen)


def sizes_after(seen: Sequence[Observation], points: Sequence[OperatingPoint]) -> list[float]:
    """The batch sizes at which points lie."""
    places = places_after(*seen)[:, COLUMN]
    return [float(2.0 * 32.0 ** places[GRID.index[point]]) for point in points]


class TestFilledPlaces:
    """The batch size that a surrogate takes a point to have."""

    def test_neighbours_of_a_batch_that_was_not_filled_lie_beside_it(self) -> None:
        """Seven ran where 64 might: 64 lies near seven at other clocks and with the other policy too."""
        points = [point_of(64, 1600), point_of(64, 1800), point_of(64, 1600, "prefill_first")]
        assert sizes_after([ran(7, point_of(64, 1600))], points) == pytest.approx([7, 7, 7], rel=0.1)

    def test_a_batch_that_is_filled_stays_where_it_is(self) -> None:
        """Two and four lie at two and four where seven would run."""
        assert sizes_after([ran(7, point_of(64, 1600))], [point_of(2, 1800), point_of(4, 1000)]) == pytest.approx(
            [2, 4]
        )

    def test_it_learns_that_slow_clocks_fill_more(self) -> None:
        """Where 20 ran at the lowest clock and five at the highest, some ten are expected between them."""
        seen = [ran(20, point_of(64, 1000)), ran(5, point_of(64, 2000))]
        (between,) = sizes_after(seen, [point_of(64, 1400)])
        assert 6 < between < 16

    def test_a_full_batch_shows_that_more_would_run(self) -> None:
        """Sixty-four ran at the slowest clock, as many as may: 32 is not taken for the seven of a fast clock there."""
        seen = [ran(64, point_of(64, 1000)), ran(7, point_of(64, 2000))]
        assert sizes_after(seen, [point_of(32, 1000)]) == pytest.approx([32])

    def test_a_small_full_batch_says_nothing_of_large_ones(self) -> None:
        """That two fill a batch of two does not make two of the seven that run in a larger one."""
        seen = [ran(7, point_of(64, 1600)), ran(2, point_of(2, 1600))]
        assert sizes_after(seen, [point_of(64, 1600)]) == pytest.approx([7], rel=0.1)

    @pytest.mark.parametrize("seen", [(), (ran(64, point_of(64, 1600)),), (ran(None, point_of(64, 1600)),)])
    def test_nothing_changes_while_every_batch_is_filled(self, seen: tuple[Observation, ...]) -> None:
        """With requests kept in flight, or none counted, points lie where the grid has them."""
        assert places_after(*seen).tolist() == GRID.places.tolist()

    def test_other_knobs_stay_where_they_are(self) -> None:
        """Only the batch size is moved."""
        moved = places_after(ran(7, point_of(64, 1600)))
        assert np.delete(moved, COLUMN, axis=1).tolist() == np.delete(GRID.places, COLUMN, axis=1).tolist()

    def test_a_space_without_batch_sizes_is_left_alone(self) -> None:
        """A job that does not search the batch size has nothing to move."""
        grid = Grid.of(make_space(sm_clock_cap_mhz=(1000, 2000)), make_request().workload, seed="0")
        seen = ran(3, grid.points[0])
        assert places_after(seen, grid=grid).tolist() == grid.places.tolist()

    def test_an_idle_server_lies_at_the_smallest_batch(self) -> None:
        """Where none ever ran the place is the least there is, not below it."""
        assert sizes_after([ran(0, point_of(64, 1600))], [point_of(64, 1600)]) == pytest.approx([2])
