"""Accelerators: figures that hang together, and that say where they come from."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest

from probes.simulated.accelerators import ACCELERATORS, Accelerator

EVERY = pytest.mark.parametrize("accelerator", ACCELERATORS.values(), ids=ACCELERATORS)


def test_the_promised_accelerators_are_there() -> None:
    """The table has every accelerator that the documentation names."""
    expected = {
        "a100-sxm-80", "h100-pcie", "h100-sxm", "h100-nvl", "h200-sxm", "b200", "b300", "gb200-nvl72", "gb300-nvl72",
        "vera-rubin-nvl72", "l40s", "rtx-4090", "rtx-pro-6000",
    }  # fmt: skip
    assert expected == set(ACCELERATORS)


@pytest.mark.parametrize(
    ("key", "tdp_w", "bf16_tflops", "bandwidth_tb_s", "highest_mhz"),
    [
        ("a100-sxm-80", 400, 312, 2.039, 1410),
        ("h100-sxm", 700, 989, 3.35, 1980),
        ("h200-sxm", 700, 989, 4.8, 1980),
        ("b200", 1000, 2250, 7.7, 1965),
        ("gb200-nvl72", 1200, 2500, 8.0, 2055),
    ],
)
def test_figures_are_those_of_the_data_sheets(
    key: str, tdp_w: float, bf16_tflops: float, bandwidth_tb_s: float, highest_mhz: int
) -> None:
    """Power limit, peak, bandwidth and clock of the common accelerators are the published ones."""
    one = ACCELERATORS[key]
    assert tdp_w == one.tdp_w
    assert bf16_tflops == pytest.approx(one.flops["bf16"] / 1e12)
    assert bandwidth_tb_s == pytest.approx(one.bandwidth_bytes_s / 1e12)
    assert highest_mhz == one.clocks_mhz[-1]


@EVERY
def test_figures_hang_together(accelerator: Accelerator) -> None:
    """Clocks rise in steps of 15 MHz, and watts rise from idle over idle with a model to the limits."""
    clocks = accelerator.clocks_mhz
    assert {15} == {later - earlier for earlier, later in pairwise(clocks)}
    lowest_w, highest_w = accelerator.power_limit_w
    assert lowest_w < accelerator.tdp_w <= highest_w
    watts = [accelerator.idle_w, accelerator.idle_loaded_w, lowest_w]
    assert watts == sorted(watts)
    assert accelerator.coefficients.static_w > 0.8 * accelerator.idle_loaded_w


@EVERY
def test_narrower_arithmetic_is_no_slower(accelerator: Accelerator) -> None:
    """Every accelerator has 16-bit arithmetic, and those of 8 and 4 bits that it has are at least as fast."""
    flops = accelerator.flops
    assert flops["bf16"] == flops["fp16"]
    ladder = [flops[name] for name in ("bf16", "fp8", "nvfp4") if name in flops]
    assert ladder == sorted(ladder)


@EVERY
def test_every_accelerator_says_what_it_rests_on(accelerator: Accelerator) -> None:
    """Sources name a data sheet or an announcement, and coefficients say whether they were fitted or assumed."""
    assert any(word in accelerator.sources for word in ("data sheet", "announcements", "architecture paper"))
    assert "assumption" in accelerator.coefficients_from


def test_only_what_is_not_sold_yet_is_preliminary() -> None:
    """Vera Rubin alone is marked preliminary."""
    assert {"vera-rubin-nvl72"} == {key for key, one in ACCELERATORS.items() if one.is_preliminary}


@EVERY
def test_every_coefficient_is_a_positive_number(accelerator: Accelerator) -> None:
    """No coefficient is zero or negative, and no factor promises more than the data sheet."""
    for field in fields(accelerator.coefficients):
        value = getattr(accelerator.coefficients, field.name)
        assert value >= 1 if field.name.endswith("_factor") else value > 0, field.name
