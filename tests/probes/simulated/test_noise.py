"""Chance that depends on seed and label alone."""

from __future__ import annotations

from itertools import islice
from statistics import fmean, stdev

import pytest

from probes.simulated.noise import RUN_POWER_SD, RUN_TIME_SD, STEP_TIME_SD, Chance, of_many


def drawn(seed: int, label: str) -> tuple[float, ...]:
    chance = Chance(seed, label)
    return (chance.time_gain, chance.power_gain, *islice(chance.step_gains, 10))


def test_seed_and_label_say_it_all() -> None:
    """The same seed and label draw the same; another seed or label draws something else."""
    assert drawn(1, "a") == drawn(1, "a")
    assert len({drawn(1, "a"), drawn(2, "a"), drawn(1, "b"), drawn(11, "a")}) == 4


def test_draws_are_the_same_on_every_machine() -> None:
    """The figures of one seed and label are these."""
    assert drawn(7, "label")[:3] == (0.9969616516937225, 1.004503207333346, 1.0054682640993697)


def test_factors_scatter_as_stated() -> None:
    """Over many runs and many steps, means are 1 and standard deviations those that the module states."""
    runs = [Chance(seed, "run") for seed in range(2000)]
    steps = list(islice(Chance(0, "steps").step_gains, 20_000))
    for gains, sd in (
        ([run.time_gain for run in runs], RUN_TIME_SD),
        ([run.power_gain for run in runs], RUN_POWER_SD),
        (steps, STEP_TIME_SD),
    ):
        assert fmean(gains) == pytest.approx(1, abs=4 * sd / len(gains) ** 0.5)
        assert stdev(gains) == pytest.approx(sd, rel=0.07)


def test_zero_switches_chance_off() -> None:
    """Without noise every factor is exactly 1."""
    chance = Chance(3, "quiet", scale=0)
    assert [chance.time_gain, chance.power_gain, *islice(chance.step_gains, 5000)] == [1.0] * 5002


def test_steps_together_scatter_less() -> None:
    """The mean of a hundred independent factors has a tenth of one's deviation."""
    assert of_many(1.02, 100) == pytest.approx(1.002)
