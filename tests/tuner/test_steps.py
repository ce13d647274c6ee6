"""What one knob changed, from pairs of points and from a model."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.influence import Effect
from tuner.point import OperatingPoint
from tuner.request import KnobValue
from tuner.steps import Ratio, pairs_of, steps


def point(**knobs: KnobValue) -> OperatingPoint:
    return OperatingPoint.of(knobs)


#: Two pairs of clocks, one of precisions; the batch never changes alone.
POINTS = [
    point(clock=2000, precision="bf16", batch=8),
    point(clock=1000, precision="bf16", batch=8),
    point(clock=2000, precision="fp8", batch=16),
    point(clock=1000, precision="fp8", batch=16),
    point(clock=1500, precision="fp8", batch=16),
    point(clock=1000, precision="int8", batch=16),
]
TOK_PER_J = np.log([1.0, 1.2, 2.0, 2.8, 2.5, 2.8])
LATENCY = np.log([10.0, 20.0, 5.0, 10.0, 8.0, 12.0])


def effect(levels: dict[KnobValue, float], in_all: float) -> Effect:
    return Effect(alone=in_all, in_all=in_all, levels=levels)


def test_pairs_differ_in_one_knob_only() -> None:
    """Each pair is there in both directions, and points that differ in another knob too are none."""
    pairs = pairs_of(POINTS, "clock")
    assert pairs[2000, 1000] == [(0, 1), (2, 3)]
    assert pairs[1000, 2000] == [(1, 0), (3, 2)]
    assert pairs[1500, 1000] == [(4, 3)]
    assert pairs_of(POINTS, "batch") == {}


def test_a_step_leads_from_the_start_as_far_as_pairs_do() -> None:
    """From the default's clock to the one furthest from it: the geometric mean of both pairs, with their extremes."""
    found = {step.knob: step for step in steps(POINTS, (TOK_PER_J, LATENCY), ({}, {}), start=POINTS[0])}
    clock = found["clock"]
    assert (clock.from_value, clock.to_value, clock.num_pairs) == (2000, 1000, 2)
    assert (clock.tok_per_j.mean, clock.tok_per_j.lowest, clock.tok_per_j.highest) == pytest.approx(
        ((1.2 * 1.4) ** 0.5, 1.2, 1.4)
    )
    assert clock.latency.mean == pytest.approx(2.0)


def test_without_a_pair_from_the_start_another_is_told() -> None:
    """The default's precision was never changed alone, so that the step is between two others."""
    found = {step.knob: step for step in steps(POINTS, (TOK_PER_J, LATENCY), ({}, {}), start=POINTS[0])}
    assert (found["precision"].from_value, found["precision"].to_value) == ("fp8", "int8")
    assert found["precision"].latency.mean == pytest.approx(1.2)
    assert "batch" not in found


def test_without_any_pair_the_model_tells() -> None:
    """A knob that never changed alone has the ratios of the model's means, without extremes and without pairs."""
    batch = effect({8: 0.0, 16: 0.5}, 0.9)
    effects = ({"batch": batch}, {"batch": batch})
    first = steps(POINTS, (TOK_PER_J, LATENCY), effects, start=POINTS[2])[0]
    assert (first.knob, first.from_value, first.to_value, first.num_pairs) == ("batch", 16, 8, 0)
    assert first.tok_per_j == Ratio(pytest.approx(np.exp(-0.5)))  # type: ignore[arg-type] # compares as a float


def test_the_knob_that_moved_most_comes_first() -> None:
    """Knobs stand by their share of the first figure's variance; where no model tells, by how far they moved it."""
    effects = {"clock": effect({}, 0.2), "precision": effect({}, 0.7)}
    assert [step.knob for step in steps(POINTS, (TOK_PER_J, LATENCY), (effects, {}), start=None)] == [
        "precision",
        "clock",
    ]
    assert [step.knob for step in steps(POINTS, (TOK_PER_J, LATENCY), ({}, {}), start=None)] == ["clock", "precision"]


def test_one_point_has_no_steps() -> None:
    """Where nothing was changed there is nothing to tell."""
    assert steps(POINTS[:1], (TOK_PER_J[:1], LATENCY[:1]), ({}, {}), start=None) == ()
