"""What trials say of points that were not tried: a Gaussian process over the grid. Pure statistics: arrays in and out.

Inputs are places in the unit cube, one column a knob; columns of words differ or do not. The covariance is Matern's
with nu = 5/2 and a length of its own for each knob (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, equation 4.17). Lengths, variance and noise are those of highest posterior density. A mean function may be
given: it enters as a basis whose weight is itself uncertain, around 1 (ibid., section 2.7), and as one more coordinate.
Where it is right few trials suffice, where it is wrong the trials push it out. Knows nothing of energy or latency.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from threadpoolctl import ThreadpoolController

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: Priors of the logarithms of a length in the unit cube, of the standard deviation and of the noise beside it: mean
#: and spread. Figures are logarithms, so that a deviation of 0.3 is a factor of 1.35.
LENGTH = (np.log(0.7), 0.5)
DEVIATION = (np.log(0.25), 0.5)
NOISE = (np.log(0.01), 0.5)
#: How uncertain are a figure's constant, the weight of its mean function, its slope along a number from end to end,
#: and what a word adds to it everywhere.
CONSTANT_DEVIATION = 2.0
MEAN_WEIGHT_DEVIATION = 0.5
SLOPE_DEVIATION = 0.3
WORD_DEVIATION = 0.4
#: Lengths are found from so many trials at most, drawn from all: from 200 they would take a second.
MAX_FITTED = 80
_BOUNDS = ((np.log(0.05), np.log(50.0)), (np.log(1e-3), np.log(5.0)), (np.log(1e-4), np.log(0.3)))
_JITTER = 1e-9
#: Words that a knob may have at most.
_MAX_WORDS = 12


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep linear algebra to one thread: over some hundred rows two wait ten times as long as they compute."""
    with _threads().limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Means and standard deviations at places, in the units of the figures that were fitted."""

    mean: Array
    deviation: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """A fitted Gaussian process."""

    #: Coordinates of the trials: places, and the mean function where there is one.
    places: Array
    is_word: Flags
    lengths: Array
    deviation: float
    noise: float
    #: Values of the mean function at the trials, less `centre`.
    mean: Array
    centre: float
    #: From its lowest value there to its highest; 0 without a mean function.
    span: float
    #: What is added to the covariance's weights so that figures far from 0 cost nothing.
    offset: float
    factor: Array
    weights: Array

    @classmethod
    def fit(cls, places: Array, figures: Array, is_word: Flags, *, mean: Array | None = None) -> Surrogate:
        """Fit figures, one a place. `mean` is what the mean function gives there.

        Raises ValueError without figures, or with one that is not finite.
        """
        if len(figures) == 0 or not np.all(np.isfinite(figures)):
            raise ValueError(f"{len(figures)} figures, finite: {np.isfinite(figures).sum()}; leave the others out")
        centre = 0.0 if mean is None else float(np.mean(mean))
        span = 0.0 if mean is None else float(np.ptp(mean)) or 1.0
        mean = np.zeros(len(figures)) if mean is None else mean - centre
        places, is_word = _with_mean(places, mean, span), np.append(is_word, np.zeros(int(span > 0), dtype=np.bool_))
        offset = float(np.median(figures - mean))
        residuals = figures - offset - mean
        trends = _trends(places, places, is_word, mean, mean)
        chosen = _spread_out(len(figures), MAX_FITTED)
        log_scales = _most_probable(places[chosen], residuals[chosen], is_word, trends[np.ix_(chosen, chosen)])
        lengths, deviation, noise = (
            np.exp(log_scales[:-2]),
            float(np.exp(log_scales[-2])),
            float(np.exp(log_scales[-1])),
        )
        covariance = deviation**2 * _matern(_squares(places, places, is_word, lengths)) + trends
        covariance[np.diag_indices_from(covariance)] += noise**2 + _JITTER
        factor = cholesky(covariance, lower=True)
        return cls(
            places=places,
            is_word=is_word,
            lengths=lengths,
            deviation=deviation,
            noise=noise,
            mean=mean,
            centre=centre,
            span=span,
            offset=offset,
            factor=factor,
            weights=cho_solve((factor, True), residuals),
        )

    def predict(self, places: Array, *, mean: Array | None = None) -> Prediction:
        """Return means and deviations of what a window at each place would show; `mean` as in `fit`.

        What no place nearby tells is taken to be the place's own: a batch and a chunk that suit each other do so again.
        """
        places, mean = self._located(places, mean)
        shared = self._shared(places, mean)
        explained = solve_triangular(self.factor, shared, lower=True)
        own = self.deviation**2 + _own_trends(places, self.is_word, mean) + self.noise**2
        return Prediction(
            mean=self.offset + mean + shared.T @ self.weights,
            deviation=np.sqrt(np.maximum(own - np.einsum("ij,ij->j", explained, explained), _JITTER)),
        )

    def sample(self, places: Array, normals: Array, *, mean: Array | None = None) -> Array:
        """Return figures at places as they may be together, a row for each row of standard normal numbers."""
        places, mean = self._located(places, mean)
        shared = self._shared(places, mean)
        explained = solve_triangular(self.factor, shared, lower=True)
        covariance = self.deviation**2 * _matern(_squares(places, places, self.is_word, self.lengths))
        covariance += _trends(places, places, self.is_word, mean, mean) - explained.T @ explained
        covariance[np.diag_indices_from(covariance)] += self.noise**2
        values, vectors = np.linalg.eigh(covariance)
        means = self.offset + mean + shared.T @ self.weights
        rows: Array = means + (normals * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        return rows

    def believing(self, places: Array, *, mean: Array | None = None) -> Surrogate:
        """Return the surrogate as it would be had these places shown just what it expects of them."""
        expected = self.predict(places, mean=mean).mean
        places, less = self._located(places, mean)
        shared = self._shared(places, less)
        corner = solve_triangular(self.factor, shared, lower=True)
        covariance = self.deviation**2 * _matern(_squares(places, places, self.is_word, self.lengths))
        covariance += _trends(places, places, self.is_word, less, less) - corner.T @ corner
        covariance[np.diag_indices_from(covariance)] += self.noise**2 + _JITTER
        own = cholesky(covariance, lower=True)
        factor = np.block([[self.factor, np.zeros((len(self.factor), len(places)))], [corner.T, own]])
        means = np.concatenate([self.mean, less])
        residuals = np.concatenate([self.factor @ (self.factor.T @ self.weights), expected - self.offset - less])
        return dataclasses.replace(
            self,
            places=np.concatenate([self.places, places]),
            mean=means,
            factor=factor,
            weights=cho_solve((factor, True), residuals),
        )

    def _located(self, places: Array, mean: Array | None) -> tuple[Array, Array]:
        """Return the coordinates of places, and the mean function there less its centre."""
        less = np.zeros(len(places)) if mean is None else mean - self.centre
        return _with_mean(places, less, self.span), less

    def _shared(self, places: Array, mean: Array) -> Array:
        covariance = self.deviation**2 * _matern(_squares(self.places, places, self.is_word, self.lengths))
        return covariance + _trends(self.places, places, self.is_word, self.mean, mean)


def _with_mean(places: Array, mean: Array, span: float) -> Array:
    """Return places with the mean function as one more coordinate: where it says the same, figures are alike."""
    return np.concatenate([places, (mean / span)[:, None] + 0.5], axis=1) if span > 0 else places


def _spread_out(count: int, limit: int) -> NDArray[np.intp]:
    """Return the indices of all, or of so many drawn from more, the same ones every time."""
    if count <= limit:
        return np.arange(count)
    return np.sort(np.random.default_rng(count).choice(count, limit, replace=False))


def _squares(ones: Array, others: Array, is_word: Flags, lengths: Array) -> Array:
    """Return squared distances in lengths: shape ones x others. Words that differ are one length apart."""
    ours = np.concatenate([ones[:, ~is_word] / lengths[~is_word], _marks(ones, is_word, lengths)], axis=1)
    theirs = np.concatenate([others[:, ~is_word] / lengths[~is_word], _marks(others, is_word, lengths)], axis=1)
    squares: Array = cdist(ours, theirs, "sqeuclidean")
    return squares


def _marks(places: Array, is_word: Flags, lengths: Array) -> Array:
    """Return a column for each word that a knob may have, so that two words are a length apart."""
    columns = [
        (places[:, [knob]] == np.arange(_MAX_WORDS)) / (np.sqrt(2.0) * lengths[knob]) for knob in np.nonzero(is_word)[0]
    ]
    return np.concatenate(columns, axis=1) if columns else np.empty((len(places), 0))


def _distances(ones: Array, others: Array, is_word: Flags) -> Array:
    """Return squared differences by knob: shape ones x others x knobs."""
    squares = np.square(ones[:, None, :] - others[None, :, :])
    squares[:, :, is_word] = squares[:, :, is_word] != 0
    return squares


def _trends(ones: Array, others: Array, is_word: Flags, mean: Array, mean_of_others: Array) -> Array:
    """Return the covariance of what is the same everywhere: constant, weight of the mean, slopes, effects of words."""
    slopes = (ones[:, ~is_word] - 0.5) @ (others[:, ~is_word] - 0.5).T
    unit = np.full(len(is_word), np.sqrt(0.5))
    words = _marks(ones, is_word, unit) @ _marks(others, is_word, unit).T
    weights = MEAN_WEIGHT_DEVIATION**2 * np.outer(mean, mean_of_others)
    covariance: Array = CONSTANT_DEVIATION**2 + weights + SLOPE_DEVIATION**2 * slopes + WORD_DEVIATION**2 * words
    return covariance


def _own_trends(places: Array, is_word: Flags, mean: Array) -> Array:
    """Return the diagonal of `_trends`."""
    slopes = np.square(places[:, ~is_word] - 0.5).sum(axis=1)
    words = float(is_word.sum())
    own: Array = CONSTANT_DEVIATION**2 + MEAN_WEIGHT_DEVIATION**2 * mean**2 + SLOPE_DEVIATION**2 * slopes
    return own + WORD_DEVIATION**2 * words


def _matern(squares: Array) -> Array:
    root = np.sqrt(5.0 * squares)
    value: Array = (1.0 + root + 5.0 / 3.0 * squares) * np.exp(-root)
    return value


def _most_probable(places: Array, residuals: Array, is_word: Flags, trends: Array) -> Array:
    """Return the logarithms of lengths, deviation and noise of highest posterior density."""
    squares = _distances(places, places, is_word)
    num_knobs = places.shape[1]
    fixed = trends + _JITTER * np.eye(len(trends))
    priors = np.array([LENGTH] * num_knobs + [DEVIATION, NOISE])
    bounds = [_BOUNDS[0]] * num_knobs + [_BOUNDS[1], _BOUNDS[2]]
    loss = _loss(squares, residuals, fixed, priors)
    found = minimize(loss, priors[:, 0], jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 40})
    scales: Array = found.x
    return scales


def _loss(squares: Array, residuals: Array, fixed: Array, priors: Array) -> Callable[[Array], tuple[float, Array]]:
    """Return the negative log posterior of the scales and its gradient (Rasmussen and Williams, equation 5.9)."""
    count = len(residuals)

    def loss(log_scales: Array) -> tuple[float, Array]:
        inverse = np.exp(-2.0 * log_scales[:-2])
        variance, noise = np.exp(2.0 * log_scales[-2]), np.exp(2.0 * log_scales[-1])
        scaled = squares * inverse
        distances = scaled.sum(axis=2)
        root = np.sqrt(5.0 * distances)
        decay = np.exp(-root)
        kernel = variance * (1.0 + root + 5.0 / 3.0 * distances) * decay
        factor = cholesky(kernel + fixed + noise * np.eye(count), lower=True)
        weights = cho_solve((factor, True), residuals)
        slopes = np.outer(weights, weights) - cho_solve((factor, True), np.eye(count))
        by_length = variance * 5.0 / 3.0 * (1.0 + root) * decay * slopes
        gradient = np.empty(len(log_scales))
        gradient[:-2] = -0.5 * np.einsum("ij,ijk->k", by_length, scaled)
        gradient[-2] = -np.sum(slopes * kernel)
        gradient[-1] = -noise * np.trace(slopes)
        away = (log_scales - priors[:, 0]) / priors[:, 1]
        value = 0.5 * residuals @ weights + np.log(np.diag(factor)).sum() + 0.5 * away @ away
        return float(value), gradient + away / priors[:, 1]

    return loss
