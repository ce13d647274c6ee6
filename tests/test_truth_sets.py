"""The stored truth sets: complete, consistent with themselves, and still what the simulation says."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks import truth_sets
from tuner.pareto import ObjectivePair, hypervolume

NAMES = [landscape.name for landscape in truth_sets.landscapes()]


@pytest.mark.parametrize("name", NAMES)
def test_a_truth_set_knows_every_point_and_the_best_of_them(name: str) -> None:
    """It has 5,000 points or more, its front dominates every other feasible point, and its area is the stored one."""
    truth = truth_sets.load(name)
    points = truth.points()
    complete = [i for i, state in enumerate(truth.states) if state == "complete"]
    gains, latencies = truth.figures["tok_per_j"], truth.figures[truth.latency_metric]

    assert len(points) == len(set(points)) == len(truth.states) >= 5000
    assert set(truth.front) <= set(complete)
    for i in complete:
        best = max((gains[j] for j in truth.front if latencies[j] <= latencies[i]), default=-np.inf)
        assert gains[i] <= best
    places = [ObjectivePair(float(gains[i]), float(latencies[i])) for i in truth.front]
    assert truth.hypervolume == pytest.approx(hypervolume(places, truth.latency_reference_ms))


@pytest.mark.parametrize("name", NAMES)
def test_a_truth_set_is_what_the_simulation_says_today(name: str) -> None:
    """Points measured anew have the stored state and figures: same seed, same result, here as where they were made."""
    truth = truth_sets.load(name)
    points = truth.points()
    chosen = random.Random("anew").sample(range(len(points)), 3)

    for i, (state, values) in zip(chosen, truth_sets.measure_all(name, [points[i] for i in chosen]), strict=True):
        stored = [truth.figures[figure][i] for figure in truth_sets.FIGURES]
        assert state == truth.states[i]
        np.testing.assert_allclose(values, stored, rtol=1e-5)
