"""A mean function in the surrogate, what it believes of places that are being measured, and samples of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.linalg import cho_solve, cholesky

from tuner.surrogate import _JITTER, Array, Surrogate, _matern, _squares, _trends

TWO = np.array([False, False])
MIXED = np.array([False, True])


def truth(places: Array) -> Array:
    """A bent surface, from about -1 to 2."""
    values: Array = 2.0 * np.sin(2.5 * places[:, 0]) * (0.3 + places[:, 1]) - np.exp(-8.0 * places[:, 1])
    return values


def right(places: Array) -> Array:
    """The truth but for a constant and a little bend."""
    values: Array = truth(places) + 3.0 + 0.05 * places[:, 0] ** 2
    return values


def wrong(places: Array) -> Array:
    """Waves that have nothing to do with the truth."""
    values: Array = 2.0 * np.cos(9.0 * places[:, 1] + 5.0 * places[:, 0])
    return values


def error(count: int, seed: int, kind: str) -> float:
    """The root mean square error over the square, from so many random figures with a mean function of a kind."""
    places = np.random.default_rng(seed).random((count, 2))
    others = np.random.default_rng(99).random((200, 2))
    mean = {"right": right, "wrong": wrong}.get(kind)
    fitted = Surrogate.fit(places, truth(places), TWO, mean=None if mean is None else mean(places))
    predicted = fitted.predict(others, mean=None if mean is None else mean(others))
    return float(np.sqrt(np.mean(np.square(predicted.mean - truth(others)))))


def errors(count: int, kind: str) -> float:
    return float(np.median([error(count, seed, kind) for seed in range(7)]))


class TestMeanFunction:
    """It must help where it is right and wash out where it is wrong."""

    def test_a_right_one_makes_few_figures_enough(self) -> None:
        """With five figures the error is less than a fifth of what it is without a mean function."""
        assert errors(5, "right") < 0.2 * errors(5, "none")

    def test_a_wrong_one_is_pushed_out(self) -> None:
        """A mean function of something else does harm with five figures, and little of it is left with thirty."""
        assert errors(5, "wrong") > 1.2 * errors(5, "none")
        assert errors(30, "wrong") < 0.2 * errors(5, "wrong")
        assert errors(30, "wrong") < 2.0 * errors(30, "none")

    def test_its_constant_does_not_matter(self) -> None:
        """A mean function that is off by a constant says the same as one that is not."""
        places, others = np.random.default_rng(0).random((6, 2)), np.random.default_rng(1).random((9, 2))
        one = Surrogate.fit(places, truth(places), TWO, mean=right(places)).predict(others, mean=right(others))
        off = Surrogate.fit(places, truth(places), TWO, mean=right(places) + 40.0)
        other = off.predict(others, mean=right(others) + 40.0)

        assert other.mean == pytest.approx(one.mean, abs=1e-5)
        assert other.deviation == pytest.approx(one.deviation, abs=1e-5)


@pytest.fixture
def fitted() -> Surrogate:
    """Eight figures of a number and a word, with a mean function."""
    return Surrogate.fit(known(), truth(known()) + 0.2 * known()[:, 1], MIXED, mean=known()[:, 0])


def known() -> Array:
    random = np.random.default_rng(5)
    return np.column_stack([random.random(8), random.integers(0, 2, 8)]).astype(np.float64)


def unknown() -> Array:
    random = np.random.default_rng(6)
    return np.column_stack([random.random(5), random.integers(0, 2, 5)]).astype(np.float64)


class TestBelieving:
    """Places that are being measured count as if they had shown what is expected of them."""

    def test_it_equals_a_fit_with_the_expected_figures(self, fitted: Surrogate) -> None:
        """With the scales kept, what is said elsewhere is what a fit with the expected figures says."""
        busy, elsewhere = unknown()[:2], unknown()[2:]
        expected = fitted.predict(busy, mean=busy[:, 0]).mean

        believing = fitted.believing(busy, mean=busy[:, 0]).predict(elsewhere, mean=elsewhere[:, 0])
        anew = refitted(fitted, busy, expected).predict(elsewhere, mean=elsewhere[:, 0])

        assert believing.mean == pytest.approx(anew.mean, abs=1e-6)
        assert believing.deviation == pytest.approx(anew.deviation, abs=1e-6)

    def test_it_moves_no_mean_and_lowers_deviations(self, fitted: Surrogate) -> None:
        """Means elsewhere stay, deviations fall, at the places themselves too."""
        busy, elsewhere = unknown()[:2], unknown()[2:]
        believing = fitted.believing(busy, mean=busy[:, 0])
        before, after = (one.predict(elsewhere, mean=elsewhere[:, 0]) for one in (fitted, believing))
        there_before, there_after = (one.predict(busy, mean=busy[:, 0]) for one in (fitted, believing))

        assert after.mean == pytest.approx(before.mean, abs=1e-6)
        assert np.all(after.deviation < before.deviation)
        assert np.all(there_after.deviation < there_before.deviation)

    def test_a_place_twice_and_one_that_is_known_do_no_harm(self, fitted: Surrogate) -> None:
        """Places alike and places that were measured leave a surrogate that predicts."""
        busy = np.concatenate([known()[:1], unknown()[:1], unknown()[:1]])
        predicted = fitted.believing(busy, mean=busy[:, 0]).predict(known(), mean=known()[:, 0])

        assert predicted.mean == pytest.approx(fitted.predict(known(), mean=known()[:, 0]).mean, abs=1e-5)


def refitted(fitted: Surrogate, places: Array, figures: Array) -> Surrogate:
    """The surrogate with figures more, its scales kept; the definition, written out."""
    added, mean_of_added = fitted._located(places, places[:, 0])
    every, mean = np.concatenate([fitted.places, added]), np.concatenate([fitted.mean, mean_of_added])
    is_word = fitted.is_word
    covariance = fitted.deviation**2 * _matern(_squares(every, every, is_word, fitted.lengths))
    covariance += _trends(every, every, is_word, mean, mean) + (fitted.noise**2 + _JITTER) * np.eye(len(every))
    factor = cholesky(covariance, lower=True)
    residuals = np.concatenate([truth(known()) + 0.2 * known()[:, 1], figures]) - fitted.offset - mean
    weights = cho_solve((factor, True), residuals)
    return dataclasses.replace(fitted, places=every, mean=mean, factor=factor, weights=weights)


class TestSample:
    """Figures at several places as they may be together."""

    def test_samples_have_the_means_and_deviations_that_are_predicted(self, fitted: Surrogate) -> None:
        """Over 20,000 samples means and deviations are those of `predict`."""
        places = unknown()
        rows = fitted.sample(places, np.random.default_rng(0).normal(size=(20_000, 5)), mean=places[:, 0])
        predicted = fitted.predict(places, mean=places[:, 0])

        assert np.mean(rows, axis=0) == pytest.approx(predicted.mean, abs=0.04 * float(predicted.deviation.max()))
        assert np.std(rows, axis=0) == pytest.approx(predicted.deviation, rel=0.05)

    def test_places_close_together_have_figures_close_together(self, fitted: Surrogate) -> None:
        """Two places next to each other vary together, two of different words much less."""
        places = np.array([[0.9, 1.0], [0.9001, 1.0], [0.1, 0.0]])
        rows = fitted.sample(places, np.random.default_rng(0).normal(size=(5_000, 3)), mean=places[:, 0])
        correlation = np.asarray(np.corrcoef(rows.T))

        assert correlation[0, 1] > 0.95
        assert abs(correlation[0, 2]) < 0.8
