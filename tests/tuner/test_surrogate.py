"""The Gaussian process against what follows from its definition, and against functions of its own prior."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from tuner.surrogate import (
    DEVIATION,
    LENGTH,
    NOISE,
    Array,
    Surrogate,
    _distances,
    _loss,
    _matern,
    _squares,
    _trends,
)

#: One number, two numbers, a number and a word.
ONE = np.array([False])
TWO = np.array([False, False])
MIXED = np.array([False, True])


def line(count: int, start: float = 0.0, end: float = 1.0) -> Array:
    return np.linspace(start, end, count)[:, None]


def wave(places: Array) -> Array:
    values: Array = np.sin(3.0 * places[:, 0])
    return values


class TestFit:
    """What is said of places from figures at others."""

    def test_it_passes_through_figures_without_noise(self) -> None:
        """At places that were seen the mean is the figure, and in between it is near the function."""
        places = line(8)
        fitted = Surrogate.fit(places, wave(places), ONE)
        between = line(50)

        assert fitted.predict(places).mean == pytest.approx(wave(places), abs=5e-3)
        assert fitted.predict(between).mean == pytest.approx(wave(between), abs=2e-2)

    def test_it_is_surer_near_figures_than_far_from_them(self) -> None:
        """The deviation is small where there is a figure, larger half way, largest at the far end."""
        places = line(4, 0.0, 0.5)
        deviation = Surrogate.fit(places, wave(places), ONE).predict(np.array([[0.5], [0.75], [1.0]])).deviation

        assert deviation[0] < 0.1 * deviation[2]
        assert deviation[0] < deviation[1] < deviation[2]

    def test_a_shift_of_all_figures_shifts_what_is_said(self) -> None:
        """Figures about 1000 are learned as well as figures about 0."""
        places, between = line(6), line(20)
        near = Surrogate.fit(places, wave(places), ONE).predict(between)
        far = Surrogate.fit(places, wave(places) + 1000.0, ONE).predict(between)

        assert far.mean - 1000.0 == pytest.approx(near.mean, abs=1e-4)
        assert far.deviation == pytest.approx(near.deviation, rel=1e-3, abs=1e-6)

    def test_one_figure_is_enough(self) -> None:
        """After a single figure it is expected everywhere, more surely near it."""
        fitted = Surrogate.fit(np.array([[0.5]]), np.array([2.0]), ONE).predict(np.array([[0.5], [1.0]]))

        assert fitted.mean == pytest.approx([2.0, 2.0])
        assert fitted.deviation[0] < fitted.deviation[1]

    def test_figures_of_one_place_are_averaged(self) -> None:
        """Four figures of one place that differ are taken for noise, and their mean is expected there."""
        places = np.array([[0.0], [0.5], [0.5], [0.5], [0.5], [1.0]])
        fitted = Surrogate.fit(places, np.array([0.0, 0.9, 1.1, 0.9, 1.1, 2.0]), ONE)

        assert fitted.predict(np.array([[0.5]])).mean == pytest.approx([1.0], abs=0.02)

    def test_the_same_figure_of_one_place_many_times_does_no_harm(self) -> None:
        """A covariance whose rows are all alike is still factored."""
        fitted = Surrogate.fit(np.full((30, 2), 0.3), np.ones(30), TWO)

        assert fitted.predict(np.array([[0.3, 0.3]])).mean == pytest.approx([1.0])

    @pytest.mark.parametrize(
        ("figures", "told"),
        [([], "0 figures"), ([1.0, np.nan], "2 figures, finite: 1"), ([np.inf, 1.0], "2 figures, finite: 1")],
    )
    def test_no_figures_and_none_that_are_no_numbers(self, figures: list[float], told: str) -> None:
        """Without figures, or with one that is not finite, a ValueError tells how many there were."""
        with pytest.raises(ValueError, match=told):
            Surrogate.fit(np.zeros((len(figures), 1)), np.array(figures), ONE)

    def test_more_figures_than_scales_are_found_from_are_all_used(self) -> None:
        """Beyond the number that lengths are found from, a figure still teaches what is said of its place."""
        places = np.random.default_rng(0).random((100, 2))
        figures = np.sin(5.0 * places[:, 0]) + places[:, 1]
        fitted = Surrogate.fit(places, figures, TWO)

        assert fitted.predict(places).mean == pytest.approx(figures, abs=0.02)


class TestCalibration:
    """Whether deviations mean what they say."""

    def test_functions_of_its_own_prior_lie_within_its_deviations(self) -> None:
        """Of 40 functions drawn from the prior, about 68 % of unseen values are within one deviation, 95 % in two."""
        random = np.random.default_rng(3)
        scores = np.concatenate([_scores(random) for _ in range(40)])

        assert 0.5 < float(np.mean(np.abs(scores) < 1.0)) < 0.8
        assert 0.85 < float(np.mean(np.abs(scores) < 2.0)) <= 1.0

    @settings(deadline=None, max_examples=15)
    @given(seed=st.integers(0, 2**31), num_knobs=st.integers(1, 4))
    def test_the_gradient_is_that_of_the_loss(self, seed: int, num_knobs: int) -> None:
        """The gradient of the negative log posterior equals finite differences."""
        random = np.random.default_rng(seed)
        is_word = np.arange(num_knobs) == 1
        places = np.where(is_word, random.integers(0, 3, (7, num_knobs)), random.random((7, num_knobs)))
        fixed = _trends(places, places, is_word, np.zeros(7), np.zeros(7)) + 1e-6 * np.eye(7)
        priors = np.array([LENGTH] * num_knobs + [DEVIATION, NOISE])
        loss = _loss(_distances(places, places, is_word), random.normal(size=7), fixed, priors)
        at = priors[:, 0] + random.normal(0, 0.5, len(priors))
        at[-1] = np.log(0.1)  # with next to no noise the loss is too steep for finite differences

        numeric = approx_fprime(at, lambda scales: loss(scales)[0], 1e-6)
        assert loss(at)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-3)


def _scores(random: np.random.Generator) -> Array:
    """How many deviations unseen values of one function lie away from what is expected of them."""
    lengths = np.exp(random.normal(*LENGTH, size=2))
    deviation = float(np.exp(random.normal(*DEVIATION)))
    places = random.random((40, 2))
    covariance = deviation**2 * _matern(_squares(places, places, TWO, lengths))
    covariance += _trends(places, places, TWO, np.zeros(40), np.zeros(40)) + 1e-8 * np.eye(40)
    values = np.linalg.cholesky(covariance) @ random.normal(size=40)
    predicted = Surrogate.fit(places[:15], values[:15], TWO).predict(places[15:])
    scores: Array = (values[15:] - predicted.mean) / predicted.deviation
    return scores


class TestWords:
    """Knobs that have no order."""

    def test_a_word_learns_less_from_another_word(self) -> None:
        """Next to a figure of the same word the deviation is smaller than at another word."""
        places = np.column_stack([np.linspace(0, 1, 5), np.zeros(5)])
        fitted = Surrogate.fit(places, wave(places), MIXED)
        deviation = fitted.predict(np.array([[0.5, 0.0], [0.5, 1.0]])).deviation

        assert deviation[0] < 0.2 * deviation[1]

    def test_the_order_of_words_does_not_matter(self) -> None:
        """Whichever number stands for which word, the same is said of the same point."""
        random = np.random.default_rng(1)
        words = random.integers(0, 3, 12)
        places = np.column_stack([random.random(12), words])
        figures = places[:, 0] + np.array([0.0, 0.5, -0.3])[words]
        renamed = places.copy()
        renamed[:, 1] = np.array([2.0, 0.0, 1.0])[words]

        one, other = (Surrogate.fit(some[:9], figures[:9], MIXED).predict(some[9:]) for some in (places, renamed))
        assert other.mean == pytest.approx(one.mean, abs=1e-4)
        assert other.deviation == pytest.approx(one.deviation, abs=1e-4)

    def test_what_a_word_adds_is_learned_from_few_figures(self) -> None:
        """What a word adds everywhere is told from one figure of it, where only the other word was seen too."""
        places = np.array([[0.0, 0.0], [0.25, 0.0], [0.5, 0.0], [0.75, 0.0], [1.0, 0.0], [0.5, 1.0]])
        figures = places[:, 0] + 0.5 * places[:, 1]
        predicted = Surrogate.fit(places, figures, MIXED).predict(np.array([[0.1, 1.0], [0.9, 1.0]]))

        assert predicted.mean == pytest.approx([0.6, 1.4], abs=0.1)
