"""Temperature and leakage."""

from __future__ import annotations

import math

import pytest

from probes.simulated.thermal import Thermal


def test_a_gpu_warms_up_by_a_time_constant() -> None:
    """After one time constant 1 - 1/e of the way is gone; after many, all of it."""
    thermal = Thermal(tau_s=40.0, ambient_c=30.0, rise_at_tdp_c=40.0)
    assert thermal.after(30.0, 0.5, 40.0) == pytest.approx(50 - 20 / math.e)
    assert thermal.after(30.0, 0.5, 4000.0) == pytest.approx(50.0)
    assert thermal.after(70.0, 0.5, 40.0) == pytest.approx(50 + 20 / math.e)


def test_without_a_time_constant_it_is_warm_at_once() -> None:
    """The settled temperature comes with the load."""
    assert Thermal().after(12.0, 1.0, 0.0) == 70.0


def test_leakage_counts_from_the_settled_temperature() -> None:
    """A GPU draws its settled power when it is settled, and 0.2 % less for each degree below."""
    thermal = Thermal(tau_s=40.0)
    assert thermal.power_gain(50.0, 0.5) == 1.0
    assert thermal.power_gain(40.0, 0.5) == pytest.approx(0.98)


@pytest.mark.parametrize("name", ["tau_s", "rise_at_tdp_c", "leakage_per_c"])
def test_what_cannot_be_is_refused(name: str) -> None:
    """Figures below zero, or that are none, are refused by name."""
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=name):
            Thermal(**{name: value})
