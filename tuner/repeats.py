"""Repeated windows of one point as one figure, and comparisons that allow for its interval. Pure statistics.

Windows of one server session share its weights' placement, its graphs and its temperature, so the independent unit is
the session: windows are averaged within it and only sessions count. Knows nothing of what was measured, nor of why a
window is missing: invalid and failed windows are left out by the caller, never passed as 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.measurement import CONFIDENCE, Estimate, mean_estimate

#: From so many sessions on their own spread stands in for a distribution that Student's t would have to assume.
BOOTSTRAP_FROM = 10
#: Enough for 2.5 % quantiles that two seeds agree on to a few percent of the interval.
NUM_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One window's figure."""

    value: float
    #: Which launch of the server it is from.
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """What the repeats of one point show together."""

    #: Mean over sessions; without bounds when there was one session.
    estimate: Estimate
    #: Standard deviation over sessions as a share of the mean; None with one session or a mean of 0.
    cv: float | None
    num_windows: int
    num_sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A point's place on the plane, with what is uncertain about it."""

    tok_per_j: Estimate
    latency_ms: Estimate


def combined(repeats: Sequence[Repeat], *, seed: int = 0) -> Combined:
    """Combine the windows of one point: each session's mean counts once, however many windows it had.

    The interval is Student's t below BOOTSTRAP_FROM sessions; from there on it is that of a bootstrap whose blocks are
    sessions, drawn by `seed` (percentile method: with ten blocks it is a little too narrow). Raises ValueError without
    repeats or with a value that is not finite.
    """
    if not repeats:
        raise ValueError("there are no repeats to combine; give one window or more")
    means = _session_means(repeats)
    estimate = mean_estimate(means) if len(means) < BOOTSTRAP_FROM else _bootstrap_estimate(means, seed)
    has_spread = len(means) > 1 and estimate.value != 0
    return Combined(
        estimate=estimate,
        cv=statistics.stdev(means) / abs(estimate.value) if has_spread else None,
        num_windows=len(repeats),
        num_sessions=len(means),
    )


def are_tied(one: Estimate, other: Estimate) -> bool:
    """Tell whether two figures cannot be told apart: they differ by no more than the wider half width that is known.

    Where nothing is known of either, only equal figures are tied.
    """
    return abs(one.value - other.value) <= max(_known_half_width(one), _known_half_width(other))


def dominates_with_margin(one: Place, other: Place) -> bool:
    """Tell whether `one` is better than `other` on both axes by more than the wider of the two half widths there.

    False where an interval is unknown: one window shows no difference that can be relied on.
    """
    gain_tok_per_j = one.tok_per_j.value - other.tok_per_j.value
    gain_ms = other.latency_ms.value - one.latency_ms.value
    return gain_tok_per_j > _margin(one.tok_per_j, other.tok_per_j) and gain_ms > _margin(
        one.latency_ms, other.latency_ms
    )


def _session_means(repeats: Sequence[Repeat]) -> list[float]:
    """Return the mean of each session, in the order of its first window."""
    sessions: dict[str, list[float]] = {}
    for repeat in repeats:
        if not math.isfinite(repeat.value):
            raise ValueError(f"a repeat of session {repeat.session} is {repeat.value}; leave such windows out")
        sessions.setdefault(repeat.session, []).append(repeat.value)
    return [statistics.fmean(values) for values in sessions.values()]


def _bootstrap_estimate(means: Sequence[float], seed: int) -> Estimate:
    value = mean_estimate(means).value
    blocks = np.random.default_rng(seed).choice(means, size=(NUM_RESAMPLES, len(means)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(blocks.mean(axis=1), (tail, 1 - tail))
    return Estimate(value, min(float(low), value), max(float(high), value))


def _margin(one: Estimate, other: Estimate) -> float:
    """Return the wider half width; infinite where one is unknown."""
    return max(_half_width(one), _half_width(other))


def _known_half_width(estimate: Estimate) -> float:
    """Return the wider side of an interval that is known; 0 where neither is."""
    below = 0.0 if estimate.low is None else estimate.value - estimate.low
    above = 0.0 if estimate.high is None else estimate.high - estimate.value
    return max(below, above)


def _half_width(estimate: Estimate) -> float:
    if estimate.low is None or estimate.high is None:
        return math.inf
    return max(estimate.value - estimate.low, estimate.high - estimate.value)
