"""Which points promise most front for their device time: expected hypervolume gain per second. Pure: arrays in and out.

The gain of a point is the area between it and the front so far, up to a reference latency; its expectation is taken
over samples of what the surrogates hold possible. A point in the launch that is open costs a window, any other a
launch as well. A launch is judged by the best few points inside it together, chosen one after the other, each given
what the ones before it may show: alone, no point of another launch would ever be worth the launch (q-point expected
hypervolume gain, Daulton et al., arXiv 2006.05078; per cost, Lee et al., arXiv 2003.10870). Knows nothing of what
the points are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

#: Samples of each candidate alone, and of those of one launch together.
NUM_SAMPLES = 64
NUM_JOINT_SAMPLES = 32
#: Launches that are looked at closely, points of each that may be chosen, and how many are chosen at most.
NUM_LAUNCHES = 6
NUM_POINTS = 32
LONGEST_BLOCK = 5
#: Cells of latency that a front is kept in where every sample has its own.
_NUM_CELLS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """A front as a function: the most tokens per joule known at a latency or below it."""

    #: Rising latencies with the tokens per joule from each on, and the area below the steps up to each.
    latencies: Array
    heights: Array
    areas: Array
    reference: float

    @classmethod
    def of(cls, heights: Array, latencies: Array, reference: float) -> Staircase:
        """Build the front of places of any order; those beyond the reference latency count for nothing."""
        order = np.lexsort((-heights, latencies))
        order = order[latencies[order] < reference]
        best = np.maximum.accumulate(heights[order]) if len(order) else heights[order]
        is_step = np.concatenate([[True], best[1:] > best[:-1]])[: len(best)]
        steps, rises = latencies[order][is_step], best[is_step]
        edges = np.concatenate([[0.0], steps, [reference]])
        levels = np.concatenate([[0.0], rises])
        areas = np.concatenate([[0.0], np.cumsum(levels * np.diff(edges))])
        return cls(latencies=edges[:-1], heights=levels, areas=areas[:-1], reference=reference)

    @property
    def area(self) -> float:
        """The front's hypervolume."""
        return float(self._area_to(np.array([self.reference]))[0])

    def gains(self, heights: Array, latencies: Array) -> Array:
        """Return the area that each place alone would add."""
        reached = np.searchsorted(self.heights, heights, side="left")
        ends = np.append(self.latencies, self.reference)[reached]
        starts = np.minimum(latencies, self.reference)
        wider = np.maximum(ends - starts, 0.0)
        gained: Array = np.where(wider > 0, heights * wider - self._area_to(ends) + self._area_to(starts), 0.0)
        return np.maximum(gained, 0.0)

    def _area_to(self, latencies: Array) -> Array:
        step = np.searchsorted(self.latencies, latencies, side="right") - 1
        area: Array = self.areas[step] + self.heights[step] * (latencies - self.latencies[step])
        return area


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Points that may be chosen, and what is held possible of them. Logarithms are natural."""

    log_height_mean: Array
    log_height_deviation: Array
    log_latency_mean: Array
    log_latency_deviation: Array
    #: Probability that a point meets every limit that is not on the latency axis and gives figures at all.
    likelihood: Array
    #: Which launch each needs; equal numbers share one.
    launches: Indices
    #: Gives, for some candidates, samples together: rows of log heights and of log latencies.
    sample: Callable[[Indices, Array, Array], tuple[Array, Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Device time in seconds."""

    launch_s: float
    window_s: float


def expected_gains(front: Staircase, candidates: Candidates, *, seed: int = 0) -> Array:
    """Return each candidate's expected gain by itself."""
    draws = _draws(NUM_SAMPLES, 2, seed)
    total = np.zeros(len(candidates.launches))
    for height, latency in draws:
        heights = np.exp(candidates.log_height_mean + height * candidates.log_height_deviation)
        total += front.gains(heights, np.exp(candidates.log_latency_mean + latency * candidates.log_latency_deviation))
    gains: Array = candidates.likelihood * total / len(draws)
    return gains


def best_block(
    front: Staircase, candidates: Candidates, costs: Costs, *, open_launch: int | None, seed: int = 0
) -> Indices:
    """Return the points to measure next, in order, all of one launch: those that gain most per second together."""
    gains = expected_gains(front, candidates, seed=seed)
    best: tuple[float, Indices] = (-1.0, np.array([int(np.argmax(gains))], dtype=np.intp))
    for launch in _promising(gains, candidates.launches, open_launch):
        members = np.nonzero(candidates.launches == launch)[0]
        members = members[np.argsort(-gains[members], kind="stable")[:NUM_POINTS]]
        chosen, totals = _block(front, candidates, members, seed)
        seconds = costs.window_s * np.arange(1, len(chosen) + 1)
        rates = totals / (seconds if launch == open_launch else seconds + costs.launch_s)
        length = int(np.argmax(rates)) + 1
        if rates[length - 1] > best[0]:
            best = (float(rates[length - 1]), chosen[:length])
    return best[1]


def _promising(gains: Array, launches: Indices, open_launch: int | None) -> Sequence[int]:
    """Return the launches whose best points promise most, and the open one."""
    names = np.unique(launches)
    promise = np.array([np.sort(gains[launches == name])[-3:].sum() for name in names])
    most = [int(name) for name in names[np.argsort(-promise, kind="stable")[:NUM_LAUNCHES]]]
    is_left_out = open_launch is not None and open_launch in names and open_launch not in most
    return [*most, open_launch] if open_launch is not None and is_left_out else most


def _block(front: Staircase, candidates: Candidates, members: Indices, seed: int) -> tuple[Indices, Array]:
    """Choose points of one launch one after the other; return them and the expected gain of the first 1, 2, 3 ..."""
    draws = _draws(NUM_JOINT_SAMPLES, 2 * len(members), seed)
    log_heights, log_latencies = candidates.sample(members, draws[:, : len(members)], draws[:, len(members) :])
    heights, latencies = np.exp(log_heights), np.minimum(np.exp(log_latencies), front.reference)
    is_sound = _sound(candidates.likelihood[members])
    heights = np.where(is_sound, heights, 0.0)
    edges = _cells(front, latencies)
    widths = np.diff(edges)
    levels = np.repeat(
        front.heights[np.searchsorted(front.latencies, edges[:-1], side="right") - 1][None], len(heights), 0
    )
    # The share of each cell that lies beyond a sample's latency: shape samples x points x cells.
    beyond = np.clip((edges[None, None, 1:] - latencies[:, :, None]) / widths, 0.0, 1.0)
    chosen: list[int] = []
    totals: list[float] = []
    total = 0.0
    for _ in range(min(LONGEST_BLOCK, len(members))):
        rises = np.maximum(heights[:, :, None] - levels[:, None, :], 0.0) * beyond
        gains = (rises @ widths).mean(axis=0)
        gains[chosen] = -1.0
        best = int(np.argmax(gains))
        total += max(float(gains[best]), 0.0)
        chosen.append(best)
        totals.append(total)
        levels = levels + rises[:, best]
    return members[np.array(chosen)], np.array(totals)


def _sound(likelihood: Array) -> NDArray[np.bool_]:
    """Return, for each sample and point, whether it is inside the limits: in as large a share as is likely."""
    ranks = (np.arange(NUM_JOINT_SAMPLES) + 0.5) / NUM_JOINT_SAMPLES
    order = np.random.default_rng(0).permutation(NUM_JOINT_SAMPLES)
    return ranks[order][:, None] < likelihood[None, :]


def _cells(front: Staircase, latencies: Array) -> Array:
    """Return edges of latency: those of the front, and more between the fastest sample and the reference."""
    lowest = min(float(latencies.min()), float(front.latencies[1]) if len(front.latencies) > 1 else np.inf)
    lowest = min(lowest, 0.999 * front.reference)
    spread = np.geomspace(max(lowest, 1e-9), front.reference, _NUM_CELLS + 1)
    return np.unique(np.concatenate([[0.0], front.latencies[1:], spread]))


@lru_cache(maxsize=64)
def _draws(count: int, dimension: int, seed: int) -> Array:
    """Return normal numbers that fill their space evenly, the same ones for a seed."""
    usable = min(dimension, qmc.Sobol.MAXDIM)
    uniform = qmc.Sobol(usable, scramble=True, rng=np.random.default_rng(seed)).random(count)
    draws: Array = ndtri(np.clip(uniform, 1e-6, 1 - 1e-6))
    return draws
