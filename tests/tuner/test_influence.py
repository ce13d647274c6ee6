"""Shares of variance that are known beforehand, and what is told of them from points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from tuner.influence import MIN_POINTS, Predict, effects_of, influence, left_out_r2, values_seen
from tuner.measurement import Floats
from tuner.point import OperatingPoint
from tuner.request import KnobValue

VALUES: dict[str, tuple[KnobValue, ...]] = {
    "max_batch": (8, 16, 32, 64),
    "precision": ("bf16", "fp8"),
    "prefill_chunk": (1024, 2048),
    "sm_clock_cap_mhz": (1000, 1500, 2000),
}


def all_points() -> list[OperatingPoint]:
    return [OperatingPoint.of(dict(zip(VALUES, chosen, strict=True))) for chosen in itertools.product(*VALUES.values())]


def additive(points: Sequence[OperatingPoint]) -> Floats:
    """Batch with variance 5, precision with 4, clock and chunk with none."""
    return np.array(
        [2 * math.log2(float(point["max_batch"])) + (4 if point["precision"] == "fp8" else 0) for point in points]
    )


def both_or_nothing(points: Sequence[OperatingPoint]) -> Floats:
    """Precision and chunk matter only together: 1 where both are changed or none, else -1."""
    return np.array(
        [1.0 if (point["precision"] == "fp8") == (point["prefill_chunk"] == 2048) else -1.0 for point in points]
    )


def memorised(points: Sequence[OperatingPoint], log_figures: Floats) -> Predict:
    """A model that knows what it was given, and nothing else."""
    known = dict(zip(points, log_figures.tolist(), strict=True))
    return lambda asked: np.array([known.get(point, 0.0) for point in asked])


class TestEffects:
    """The functional analysis of variance of a given model."""

    def test_of_a_sum_each_term_has_its_share_of_the_variance(self) -> None:
        """Where knobs only add up, what one explains alone is what it explains in all, and all of it adds up to 1."""
        effects = effects_of(additive, VALUES)
        shares = {name: (effect.alone, effect.in_all) for name, effect in effects.items()}
        assert shares == {
            "max_batch": pytest.approx((5 / 9, 5 / 9)),
            "precision": pytest.approx((4 / 9, 4 / 9)),
            "prefill_chunk": pytest.approx((0.0, 0.0)),
            "sm_clock_cap_mhz": pytest.approx((0.0, 0.0)),
        }

    def test_what_knobs_do_together_is_in_no_share_alone(self) -> None:
        """Two knobs that matter only together explain nothing alone, and each everything in all."""
        effects = effects_of(both_or_nothing, VALUES)
        assert [effects[name].alone for name in ("precision", "prefill_chunk")] == pytest.approx([0.0, 0.0])
        assert [effects[name].in_all for name in ("precision", "prefill_chunk")] == pytest.approx([1.0, 1.0])
        assert effects["max_batch"].in_all == pytest.approx(0.0)

    def test_levels_are_means_over_all_others(self) -> None:
        """A value's level is the mean of the figure's logarithm over every combination of the other knobs."""
        levels = effects_of(additive, VALUES)["precision"].levels
        assert levels == pytest.approx({"bf16": 9.0, "fp8": 13.0})

    def test_a_knob_with_one_value_has_no_effect_to_tell(self) -> None:
        """What never changed is left out, and nothing varies where the model says the same everywhere."""
        assert "precision" not in effects_of(additive, VALUES | {"precision": ("fp8",)})
        assert effects_of(lambda points: np.ones(len(points)), VALUES) == {}

    def test_a_large_space_is_sampled_to_the_same_shares(self) -> None:
        """With more combinations than can be predicted at once, drawn ones give the shares to a few hundredths."""
        large: dict[str, tuple[KnobValue, ...]] = {**VALUES, "sm_clock_cap_mhz": tuple(range(1000, 1600, 2))}
        effects = effects_of(additive, large)
        assert [effects["max_batch"].in_all, effects["precision"].alone] == pytest.approx([5 / 9, 4 / 9], abs=0.03)
        assert effects["sm_clock_cap_mhz"].in_all == pytest.approx(0.0)


class TestInfluence:
    """What is told from points, and when nothing is."""

    def test_a_smooth_figure_is_found_from_a_few_points(self) -> None:
        """Sixteen of 48 points are enough for the Gaussian process to give both shares to a tenth."""
        points = all_points()[::3]
        found = influence(points, additive(points) / 4)
        assert found.num_points == 16
        assert found.r2 is not None
        assert found.r2 > 0.9
        assert found.effects["max_batch"].in_all == pytest.approx(5 / 9, abs=0.1)
        assert found.effects["precision"].in_all == pytest.approx(4 / 9, abs=0.1)

    def test_from_too_few_points_nothing_is_told(self) -> None:
        """One point short of the least, no model is fitted at all."""
        points = all_points()[: MIN_POINTS - 1]
        found = influence(points, additive(points), memorised)
        assert (found.effects, found.r2, found.num_points) == ({}, None, MIN_POINTS - 1)

    def test_a_model_that_cannot_predict_tells_nothing(self) -> None:
        """A model that only repeats what it was given predicts no left-out point, so that its shares are not told."""
        points = all_points()
        figures = additive(points) - additive(points).mean()
        found = influence(points, figures, memorised)
        assert found.effects == {}
        assert found.r2 == pytest.approx(0.0)

    def test_r2_is_one_of_a_model_that_knows_the_truth(self) -> None:
        """Left-out points that are predicted exactly leave no variance, and a figure that never varies has none."""
        points = all_points()
        assert left_out_r2(points, additive(points), lambda _, __: additive) == pytest.approx(1.0)
        assert left_out_r2(points, np.ones(len(points)), memorised) == 0.0


def test_values_are_seen_in_rising_order() -> None:
    """Numbers stand by size and not as text, words by the alphabet."""
    points = [OperatingPoint.of({"max_batch": n, "precision": w}) for n, w in ((16, "fp8"), (8, "fp8"), (128, "bf16"))]
    assert values_seen(points) == {"max_batch": (8, 16, 128), "precision": ("bf16", "fp8")}
