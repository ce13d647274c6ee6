"""Repeated windows as one figure."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.measurement import Estimate, mean_estimate
from tuner.repeats import BOOTSTRAP_FROM, Combined, Place, Repeat, are_tied, combined, dominates_with_margin

figures = st.floats(-1e6, 1e6)
many_sessions = st.lists(st.lists(figures, min_size=1, max_size=4), min_size=2, max_size=25)


def of_sessions(*sessions: list[float]) -> list[Repeat]:
    """The windows of some sessions, session by session."""
    return [Repeat(value=value, session=f"s{i}") for i, values in enumerate(sessions) for value in values]


def near(value: float, half_width: float) -> Estimate:
    return Estimate(value, value - half_width, value + half_width)


def place(tok_per_j: float, latency_ms: float, *, half_width: float = 0.1) -> Place:
    return Place(tok_per_j=near(tok_per_j, half_width), latency_ms=near(latency_ms, half_width))


class TestCombined:
    """What repeats show together."""

    def test_of_few_sessions_it_is_the_t_interval_of_their_means(self) -> None:
        """Below ten sessions the interval is Student's t over one figure a session."""
        whole = combined(of_sessions([2.0], [3.0], [4.0]))
        assert (mean_estimate([2.0, 3.0, 4.0]), 3, 3) == (whole.estimate, whole.num_windows, whole.num_sessions)
        assert pytest.approx(1 / 3) == whole.cv

    def test_windows_of_one_session_are_not_independent(self) -> None:
        """Many windows of a session count as one figure: they neither narrow the interval nor weigh by number."""
        whole = combined(of_sessions([1.0, 2.0, 3.0] * 10, [4.0]))
        assert (mean_estimate([2.0, 4.0]), 31, 2) == (whole.estimate, whole.num_windows, whole.num_sessions)
        assert pytest.approx(math.sqrt(2) / 3) == whole.cv

    @pytest.mark.parametrize("windows", [[2.0], [2.0, 2.5, 1.5]])
    def test_one_session_has_no_interval(self, windows: list[float]) -> None:
        """One session, of one window or several, gives a mean, and neither an interval nor a CV."""
        assert Combined(estimate=Estimate(2.0), cv=None, num_windows=len(windows), num_sessions=1) == combined(
            of_sessions(windows)
        )

    def test_of_many_sessions_it_is_a_bootstrap_of_them(self) -> None:
        """From ten sessions on the interval comes from resampled sessions, and is about 1.96 standard errors wide."""
        means = np.random.default_rng(1).normal(100.0, 5.0, 60).tolist()
        whole = combined(of_sessions(*[[mean] for mean in means]))
        low, high = whole.estimate.low, whole.estimate.high
        assert low is not None
        assert high is not None
        assert pytest.approx(2 * 1.96 * statistics.stdev(means) / math.sqrt(60), rel=0.1) == high - low
        assert statistics.fmean(means) == pytest.approx(whole.estimate.value)

    def test_the_bootstrap_starts_with_the_tenth_session(self) -> None:
        """Nine sessions have the t interval, ten a narrower one of their own."""
        nine = of_sessions(*[[float(i)] for i in range(BOOTSTRAP_FROM - 1)])
        ten = [*nine, Repeat(value=4.0, session="last")]
        assert mean_estimate([repeat.value for repeat in nine]) == combined(nine).estimate
        assert mean_estimate([repeat.value for repeat in ten]) != combined(ten).estimate

    def test_the_seed_repeats_the_bootstrap(self) -> None:
        """The same seed gives the same interval, another one nearly the same."""
        repeats = of_sessions(*[[float(i * i)] for i in range(12)])
        assert combined(repeats, seed=1) == combined(repeats, seed=1)
        one, other = combined(repeats, seed=1).estimate, combined(repeats, seed=2).estimate
        assert one != other
        assert pytest.approx(one.low, rel=0.05) == other.low
        assert pytest.approx(one.high, rel=0.05) == other.high

    def test_the_bootstrap_covers_the_truth_as_often_as_it_says(self) -> None:
        """Of 200 experiments with 30 sessions each, the interval holds the true mean in 90 to 99 %."""
        rng = np.random.default_rng(4)
        wholes = [combined(of_sessions(*[[x] for x in rng.normal(50.0, 3.0, 30)]), seed=i) for i in range(200)]
        bounds = [(whole.estimate.low, whole.estimate.high) for whole in wholes]
        hits = sum(low is not None and high is not None and low <= 50.0 <= high for low, high in bounds)
        assert 180 <= hits <= 198

    @settings(deadline=None, max_examples=50)
    @given(
        sessions=st.lists(st.lists(figures, min_size=1, max_size=4), min_size=2, max_size=25), seed=st.integers(0, 9)
    )
    def test_the_interval_contains_the_mean(self, sessions: list[list[float]], seed: int) -> None:
        """Whatever the figures, with two sessions or more both bounds exist and the mean lies between them."""
        estimate = combined(of_sessions(*sessions), seed=seed).estimate
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low <= estimate.value <= estimate.high

    @settings(deadline=None)
    @given(windows=st.lists(st.tuples(figures, st.sampled_from("abc")), min_size=1), data=st.data())
    def test_the_order_of_windows_does_not_matter(self, windows: list[tuple[float, str]], data: st.DataObject) -> None:
        """Windows taken in another order, sessions interleaved or not, show the same."""
        repeats = [Repeat(value=value, session=session) for value, session in windows]
        one, other = combined(repeats), combined(data.draw(st.permutations(repeats)))
        assert one.num_sessions == other.num_sessions
        assert pytest.approx(one.estimate.value) == other.estimate.value

    def test_a_mean_of_zero_has_no_cv(self) -> None:
        """Nothing is divided by a mean of 0."""
        assert combined(of_sessions([-1.0], [1.0])).cv is None

    @pytest.mark.parametrize("values", [[], [math.nan], [2.0, math.inf]])
    def test_what_is_no_figure_is_refused(self, values: list[float]) -> None:
        """No repeats, or one without a finite figure, is a ValueError: such windows are left out, not averaged in."""
        with pytest.raises(ValueError, match=r"give one window|leave such windows out"):
            combined(of_sessions(values))


class TestTies:
    """Figures that cannot be told apart."""

    @pytest.mark.parametrize(
        ("one", "other", "is_tied"),
        [
            (near(2.0, 0.1), near(2.09, 0.05), True),
            (near(2.0, 0.1), near(2.15, 0.1), False),
            (near(2.0, 0.1), near(2.15, 0.2), True),
            (Estimate(2.0), near(2.1, 0.2), True),
            (Estimate(2.0, 1.7, None), near(2.2, 0.1), True),
            (Estimate(2.0), Estimate(2.0), True),
            (Estimate(2.0), Estimate(2.01), False),
        ],
        ids=["within", "apart", "the wider counts", "one known", "one side known", "equal", "nothing known"],
    )
    def test_figures_within_the_wider_half_width_are_a_tie(self, one: Estimate, other: Estimate, is_tied: bool) -> None:
        """Two figures are tied where they differ by no more than the wider half width known of either."""
        assert (is_tied, is_tied) == (are_tied(one, other), are_tied(other, one))

    @given(value=figures, half_width=st.floats(0, 1e3))
    def test_a_figure_is_tied_with_itself(self, value: float, half_width: float) -> None:
        """No figure can be told apart from itself."""
        assert are_tied(near(value, half_width), near(value, half_width))


class TestDominance:
    """One point better than another beyond doubt."""

    @pytest.mark.parametrize(
        ("one", "other", "dominates"),
        [
            (place(3.0, 10.0), place(2.0, 20.0), True),
            (place(2.05, 10.0), place(2.0, 20.0), False),
            (place(3.0, 19.95), place(2.0, 20.0), False),
            (place(3.0, 30.0), place(2.0, 20.0), False),
            (place(3.0, 10.0), place(2.0, 20.0, half_width=1.5), False),
        ],
        ids=["both", "tokens within", "latency within", "trade-off", "wider half width of the other"],
    )
    def test_both_gains_must_exceed_the_wider_half_width(self, one: Place, other: Place, dominates: bool) -> None:
        """A gain within the wider of two half widths, on either axis, is none."""
        assert (dominates, False) == (dominates_with_margin(one, other), dominates_with_margin(other, one))

    def test_without_an_interval_nothing_is_dominated(self) -> None:
        """A point measured once neither dominates nor is dominated: its margin is unknown, not 0."""
        once = Place(tok_per_j=Estimate(9.0), latency_ms=Estimate(1.0))
        worst = Place(tok_per_j=Estimate(0.1), latency_ms=Estimate(99.0))
        assert [
            dominates_with_margin(once, place(2.0, 20.0)),
            dominates_with_margin(place(2.0, 20.0), worst),
            dominates_with_margin(once, worst),
        ] == [False] * 3

    def test_of_lopsided_intervals_the_wider_side_counts(self) -> None:
        """An interval that reaches further on one side is as wide as that side."""
        lopsided = Place(tok_per_j=Estimate(3.0, 2.9, 4.5), latency_ms=near(10.0, 0.1))
        assert not dominates_with_margin(lopsided, place(2.0, 20.0))
