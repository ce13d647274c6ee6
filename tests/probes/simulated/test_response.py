"""The response: rooflines, clocks, power caps, and what publications say of saving energy by lower clocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.simulated.accelerators import ACCELERATORS, Accelerator
from probes.simulated.response import GRAPH_TOKENS, Response
from tests.probes.simulated.step_works import StepWork, make_decode, make_prefill

EVERY = pytest.mark.parametrize("accelerator", ACCELERATORS.values(), ids=ACCELERATORS)
H100 = ACCELERATORS["h100-sxm"]
BATCHES = (8, 64, 256)


def cheapest_clock(response: Response, work: StepWork) -> int:
    """Return the clock at which a step takes the least energy."""
    return min(response.accelerator.clocks_mhz, key=lambda clock: joules(response, work, clock))


def joules(response: Response, work: StepWork, clock_mhz: float) -> float:
    """Return the energy of a step at a clock."""
    seconds, watts = response.cost(work, clock_mhz)
    return seconds * watts


def at_most(response: Response, work: StepWork, cap_w: float, clock_mhz: float = 1e9) -> tuple[float, float, float]:
    """Settle a step under a power cap alone."""
    return response.settle(work, clock_cap_mhz=1e9, power_cap_w=cap_w, from_clock_mhz=clock_mhz)


def savings(key: str, batch: int) -> tuple[float, int]:
    """Return what decoding at the cheapest clock saves against the highest that the power limit allows, and it."""
    response = Response(ACCELERATORS[key])
    work = make_decode(batch)
    seconds, watts, _ = at_most(response, work, response.accelerator.tdp_w)
    best = cheapest_clock(response, work)
    return 1 - joules(response, work, best) / (seconds * watts), best


@EVERY
@pytest.mark.parametrize("batch", BATCHES)
def test_decode_has_an_interior_energy_optimum(accelerator: Accelerator, batch: int) -> None:
    """The cheapest clock of decoding is neither the lowest nor the highest, and lies between 25 and 75 % of it."""
    best = cheapest_clock(Response(accelerator), make_decode(batch))
    assert 0.25 <= best / accelerator.clocks_mhz[-1] <= 0.75


@pytest.mark.parametrize("batch", BATCHES)
def test_h200_decode_saves_up_to_a_third(batch: int) -> None:
    """H200 saves 15 to 32 % of decoding's energy at its best clock (arXiv 2605.11999: up to 32 %)."""
    saved, _ = savings("h200-sxm", batch)
    assert 0.15 <= saved <= 0.32


@pytest.mark.parametrize("batch", BATCHES)
def test_a100_decode_saves_where_it_is_published(batch: int) -> None:
    """A100 saves 26 to 37 % at 810 to 1005 MHz (VoltanaLLM: 36 % at 1005; public sweeps: 37 % at 810 MHz)."""
    saved, best = savings("a100-sxm-80", batch)
    assert 0.26 <= saved <= 0.37
    assert 810 <= best <= 1005


def test_h100_nvl_decode_saves_about_a_fifth() -> None:
    """H100 NVL saves 17 to 23 % of small batches within 60 MHz of 840 MHz (public sweep: 19 % at 840 MHz)."""
    saved, best = savings("h100-nvl", 8)
    assert 0.17 <= saved <= 0.23
    assert best == pytest.approx(840, abs=60)


@EVERY
def test_power_caps_above_the_draw_change_nothing(accelerator: Accelerator) -> None:
    """Decoding of a small batch is the same under the default limit and under one a little above its draw."""
    response = Response(accelerator)
    work = make_decode(8)
    free = at_most(response, work, 1e9)
    assert free == at_most(response, work, accelerator.tdp_w)
    assert free == at_most(response, work, free[1] / accelerator.coefficients.regulated_share + 0.1)


def test_a_long_prompt_is_power_capped() -> None:
    """8192 tokens of prompt run below H100's highest clock, near its limit; decoding of 8 sequences at the highest."""
    response = Response(H100)
    _, watts, clock = at_most(response, make_prefill(8192), H100.tdp_w)
    _, _, free_clock = at_most(response, make_decode(8), H100.tdp_w)
    assert 1700 <= clock < 1980
    assert 0.95 * H100.tdp_w <= watts <= H100.tdp_w
    assert free_clock == H100.clocks_mhz[-1]


def test_published_points_of_one_h100() -> None:
    """Llama 3.1 8B on one H100 is within 15 % of ML.ENERGY's 486 W and 7.3 ms at batch 8."""
    seconds, watts = Response(H100).cost(make_decode(8), 1980)
    assert seconds == pytest.approx(0.0073, rel=0.15)
    assert watts == pytest.approx(486, rel=0.15)


@given(batch=st.integers(1, 2000), cap_w=st.floats(150.0, 700.0), from_mhz=st.sampled_from(H100.clocks_mhz))
def test_settle_finds_the_highest_clock_allowed(batch: int, cap_w: float, from_mhz: int) -> None:
    """From any clock, the answer is that of trying every clock from the top."""
    response = Response(H100)
    work = make_decode(batch)
    limit_w = cap_w * H100.coefficients.regulated_share
    expected = next(
        (clock for clock in reversed(H100.clocks_mhz) if response.cost(work, clock)[1] <= limit_w), H100.clocks_mhz[0]
    )
    seconds, watts, clock = at_most(response, work, cap_w, from_mhz)
    assert expected == clock
    assert response.cost(work, clock) == (seconds, watts)


def test_a_clock_cap_between_two_clocks_takes_the_lower() -> None:
    """A cap of 1000 MHz runs at 990; one below the lowest clock runs at the lowest."""
    response = Response(H100)
    for cap_mhz, expected in ((1000.0, 990), (990.0, 990), (1.0, 345)):
        assert (
            expected
            == response.settle(make_decode(1), clock_cap_mhz=cap_mhz, power_cap_w=700.0, from_clock_mhz=1980)[2]
        )


@given(batch=st.integers(1, 512), factor=st.floats(1.01, 4.0), name=st.sampled_from(
    ["gemm_flops", "attention_flops", "weight_bytes", "kv_bytes"]))  # fmt: skip
def test_more_work_takes_longer(batch: int, factor: float, name: str) -> None:
    """More of any of FLOPs and bytes never makes a step shorter or cheaper."""
    response = Response(H100)
    work = make_decode(batch)
    more = work._replace(**{name: factor * getattr(work, name)})
    assert response.cost(work, 1980)[0] <= response.cost(more, 1980)[0]
    assert joules(response, work, 1980) <= joules(response, more, 1980)


@EVERY
def test_time_falls_and_power_rises_with_the_clock(accelerator: Accelerator) -> None:
    """Over the whole clock list, a step gets no slower and draws no less as the clock rises."""
    response = Response(accelerator)
    for work in (make_decode(64), make_prefill(2048)):
        answers = [response.cost(work, clock) for clock in accelerator.clocks_mhz]
        assert sorted((seconds for seconds, _ in answers), reverse=True) == [seconds for seconds, _ in answers]
        assert sorted(watts for _, watts in answers) == [watts for _, watts in answers]


def test_decode_hardly_slows_where_prefill_does() -> None:
    """At half the clock decoding of 8 takes at most a quarter longer, a long prompt at least three quarters."""
    response = Response(H100)
    slower = {
        name: response.cost(work, 990)[0] / response.cost(work, 1980)[0]
        for name, work in (("decode", make_decode(8)), ("prefill", make_prefill(8192)))
    }
    assert slower["decode"] < 1.25
    assert slower["prefill"] > 1.75


def test_nothing_is_faster_than_the_data_sheet() -> None:
    """No step takes less than its bytes at full bandwidth, or its FLOPs at the peak."""
    response = Response(H100)
    assert response.cost(make_decode(8), 1980)[0] > make_decode(8).weight_bytes / H100.bandwidth_bytes_s
    assert response.cost(make_prefill(8192), 1980)[0] > make_prefill(8192).gemm_flops / H100.flops["bf16"]


def test_launching_singly_counts_only_where_it_is_slower() -> None:
    """Beyond captured graphs a slow host holds small steps up and not large ones."""
    slow = Response(H100, replace(H100.coefficients, eager_layer_s=1e-3))
    quick = Response(H100, replace(H100.coefficients, eager_layer_s=1e-9))
    small = make_decode(1)._replace(num_tokens=GRAPH_TOKENS + 1)
    assert slow.cost(small, 1980)[0] > 2 * quick.cost(small, 1980)[0]
    within = small._replace(num_tokens=GRAPH_TOKENS)
    assert slow.cost(within, 1980) == pytest.approx(quick.cost(within, 1980))
    large = make_prefill(8192)
    assert slow.cost(large, 1980)[0] == pytest.approx(quick.cost(large, 1980)[0], rel=0.01)


def test_stages_wait_for_one_another() -> None:
    """Two stages of half the layers take about as long as one GPU with all, each drawing less."""
    response = Response(H100)
    whole = make_decode(8)
    half = whole._replace(
        num_gpus=2, num_stages=2, num_layers=16, weight_bytes=whole.weight_bytes / 2,
        gemm_flops=whole.gemm_flops / 2, attention_flops=whole.attention_flops / 2, kv_bytes=whole.kv_bytes / 2,
    )  # fmt: skip
    whole_s, whole_w = response.cost(whole, 1980)
    half_s, half_w = response.cost(half, 1980)
    assert whole_s == pytest.approx(half_s)
    assert half_w < whole_w


def test_messages_cost_time_and_more_of_it_between_domains() -> None:
    """A message takes longer than none, and beyond the domain longer than within."""
    response = Response(H100)
    alone = make_decode(8)
    inside = alone._replace(scale_up_bytes=1e7, num_scale_up=64.0)
    outside = alone._replace(scale_out_bytes=1e7, num_scale_out=64.0)
    seconds = [response.cost(work, 1980)[0] for work in (alone, inside, outside)]
    assert seconds == sorted(set(seconds))


def test_measured_kernels_are_believed() -> None:
    """Kernels measured to take 20 ms take so long beside the host's part, and go with the clock as others do."""
    response = Response(H100)
    own = make_decode(8)
    measured = own._replace(kernel_s=0.020)
    host_s = H100.coefficients.step_s + 8 * H100.coefficients.sequence_s
    seconds, watts = response.cost(measured, 1980)
    assert seconds == pytest.approx(0.020 + host_s)
    assert watts < response.cost(own, 1980)[1]
    slower = response.cost(own, 990)[0] - host_s
    assert response.cost(measured, 990)[0] - host_s == pytest.approx(
        0.020 * slower / (response.cost(own, 1980)[0] - host_s)
    )


def test_an_arithmetic_that_is_not_there_is_an_error() -> None:
    """A100 has no FP8."""
    with pytest.raises(KeyError, match="fp8"):
        Response(ACCELERATORS["a100-sxm-80"]).cost(make_decode(1)._replace(arithmetic="fp8"), 1410)
