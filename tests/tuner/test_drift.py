"""The baseline's drift, and figures without it."""

from __future__ import annotations

import math
import random
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.drift import LARGEST_CHANGE, BaselineDrifted, Drift, interleaved
from tuner.measurement import Estimate

#: Minutes apart, as trials are.
TIMES = [5000.0 + 60.0 * i for i in range(6)]
#: A slope that stays below LARGEST_CHANGE over TIMES.
slopes = st.floats(-1.5e-4, 1.5e-4)


def fitted(times: list[float], values: list[float]) -> Drift:
    drift = Drift.fit(times, values)
    assert isinstance(drift, Drift)
    return drift


def drifting(level: float, slope: float, time: float) -> float:
    return level * math.exp(slope * (time - TIMES[0]))


class TestOrder:
    """The order of points and baseline."""

    @given(num_points=st.integers(0, 40), every=st.integers(1, 10), seed=st.integers())
    def test_the_baseline_is_first_last_and_in_between(self, num_points: int, every: int, seed: int) -> None:
        """Every point comes once, the baseline at both ends, and never more than `every` points lie between two."""
        order = interleaved(range(num_points), -1, every=every, rng=random.Random(seed))
        places = [i for i, one in enumerate(order) if one == -1]
        assert sorted(one for one in order if one != -1) == list(range(num_points))
        assert (0, len(order) - 1) == (places[0], places[-1])
        between = [later - earlier - 1 for earlier, later in pairwise(places)]
        assert all(1 <= num <= every for num in between)
        assert all(num == every for num in between[:-1])

    def test_the_order_is_random_and_the_seed_repeats_it(self) -> None:
        """The same seed gives the same order, another one another, and neither is the one given."""
        one, again, other = (interleaved("abcdefghij", "-", rng=random.Random(seed)) for seed in (1, 1, 2))
        assert one == again != other
        assert list("abcdefghij") not in [[point for point in order if point != "-"] for order in (one, other)]

    @given(groups=st.lists(st.integers(0, 3), max_size=12), seed=st.integers())
    def test_a_group_stays_together(self, groups: list[int], seed: int) -> None:
        """Points of one group follow one another, whatever their order; only a baseline comes between them."""
        points = list(enumerate(groups))
        order = interleaved(points, (-1, -1), rng=random.Random(seed), group_of=lambda point: point[1])
        shown = [group for group, _ in groupby(group for _, group in order if group != -1)]
        assert len(shown) == len(set(groups))
        assert sorted(point for point in order if point[0] != -1) == points

    def test_no_points_between_baselines_are_refused(self) -> None:
        """A baseline after every 0 points is a ValueError."""
        with pytest.raises(ValueError, match="every is 0"):
            interleaved("ab", "-", every=0, rng=random.Random(0))


class TestFit:
    """The line through the baseline."""

    @settings(deadline=None)
    @given(level=st.floats(1e-3, 1e6), slope=slopes, true=st.floats(1e-3, 1e6), share=st.floats(-0.5, 1.5))
    def test_a_log_linear_drift_is_divided_out_exactly(
        self, level: float, slope: float, true: float, share: float
    ) -> None:
        """Whatever level and slope, any figure at any time comes back as it would have been at the reference."""
        drift = fitted(TIMES, [drifting(level, slope, time) for time in TIMES])
        time = TIMES[0] + share * (TIMES[-1] - TIMES[0])
        at_reference = drifting(true, slope, drift.reference)
        figure = Estimate(drifting(true, slope, time), None, None)
        assert pytest.approx(at_reference, rel=1e-9) == drift.corrected(time, figure).value
        assert pytest.approx(slope, abs=1e-12) == drift.log_slope

    def test_at_the_reference_nothing_changes(self) -> None:
        """A figure of the reference's instant, the middle of the baseline's times, is left as it is."""
        drift = fitted(TIMES, [100.0, 100.4, 100.9, 101.1, 101.7, 102.0])
        figure = Estimate(7.0, 6.0, 9.0)
        assert (sum(TIMES) / 6, figure) == (drift.reference, drift.corrected(drift.reference, figure))

    def test_the_slopes_interval_holds_the_truth_as_often_as_it_says(self) -> None:
        """Of 400 noisy baselines the 95 % interval of the slope holds the true one in 92 to 98 %."""
        rng = np.random.default_rng(2)
        noisy = [
            [drifting(100.0, 5e-5, time) * math.exp(x) for time, x in zip(TIMES, row, strict=True)]
            for row in rng.normal(0.0, 0.005, (400, 6))
        ]
        drifts = [fitted(TIMES, values) for values in noisy]
        hits = sum(abs(drift.log_slope - 5e-5) <= (drift.half_width or 0.0) for drift in drifts)
        assert 368 <= hits <= 392

    def test_a_corrected_interval_is_wider_by_what_the_fit_leaves(self) -> None:
        """Half widths of figure and fit add in quadrature, and the fit's grows with the distance from the reference."""
        drift = Drift(reference=0.0, level=1.0, log_slope=0.0, half_width=math.log(1.04) / 100)
        corrected = drift.corrected(100.0, Estimate(100.0, 97.0, 103.0))
        assert corrected.value == 100.0
        assert pytest.approx(95.0) == corrected.low
        assert pytest.approx(105.0) == corrected.high
        near, far = (drift.corrected(time, Estimate(100.0, 97.0, 103.0)).high for time in (-10.0, -200.0))
        assert near is not None
        assert far is not None
        assert 103.0 < near < 105.0 < far

    def test_of_two_baselines_the_interval_is_unknown(self) -> None:
        """Two figures fit any line: what they correct has a value and no interval, rather than one of no width."""
        drift = fitted([0.0, 100.0], [100.0, 102.0])
        corrected = drift.corrected(100.0, Estimate(102.0, 101.0, 103.0))
        assert (drift.half_width, corrected.low, corrected.high) == (None, None, None)
        assert pytest.approx(102.0 / math.sqrt(1.02)) == corrected.value

    def test_a_figure_without_interval_gets_none(self) -> None:
        """A bound that the window could not give is not made up."""
        drift = fitted(TIMES, [100.0, 100.4, 100.9, 101.1, 101.7, 102.0])
        assert ((one := drift.corrected(5000.0, Estimate(7.0))).low, one.high) == (None, None)
        assert drift.corrected(5000.0, Estimate(7.0, 6.0, None)).low is not None

    @pytest.mark.parametrize(
        "values",
        [[100.0, 103.0, 106.0], [106.0, 103.0, 100.0], [100.0, 94.0, 100.0]],
        ids=["up", "down", "there and back"],
    )
    def test_a_block_is_refused_when_the_baseline_changed_by_more_than_five_percent(self, values: list[float]) -> None:
        """However the change came about, the block has a reason code and the share it changed by, and no correction."""
        refused = Drift.fit([0.0, 1.0, 2.0], values)
        assert isinstance(refused, BaselineDrifted)
        assert (refused.reason, refused.change_share > LARGEST_CHANGE) == ("baseline_drifted", True)
        assert f"{refused.change_share:.1%}" in refused.detail

    @pytest.mark.parametrize(
        ("times", "values"),
        [
            ([], []),
            ([1.0], [2.0]),
            ([1.0, 1.0], [2.0, 2.0]),
            ([1.0, 2.0], [2.0]),
            ([1.0, 2.0], [2.0, 0.0]),
            ([1.0, 2.0], [2.0, -1.0]),
            ([1.0, 2.0], [2.0, math.nan]),
            ([1.0, 2.0], [2.0, math.inf]),
        ],
    )
    def test_what_no_line_fits_is_refused(self, times: list[float], values: list[float]) -> None:
        """Fewer than two instants, or a baseline without a positive figure, is a ValueError."""
        with pytest.raises(ValueError, match=r"times are|baselines are"):
            Drift.fit(times, values)
