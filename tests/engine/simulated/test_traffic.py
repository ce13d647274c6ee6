"""What GPUs send one another, inside a scale-up domain and beyond."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.simulated.layouts import TINY_MIXTURE, decode, make_model


def test_expert_parallel_in_one_replica_needs_no_journey() -> None:
    """Where tensor-parallel GPUs have all tokens anyway, experts spread over them add no message."""
    cut = decode(make_model(TINY_MIXTURE, tensor_parallel=2), 4, 10)
    spread = decode(make_model(TINY_MIXTURE, tensor_parallel=2, expert_parallel=True), 4, 10)
    assert (spread.num_scale_up, spread.scale_up_bytes) == (cut.num_scale_up, cut.scale_up_bytes)
    assert spread.weight_bytes == pytest.approx(cut.weight_bytes)


def test_dispatch_is_narrower_in_fp8() -> None:
    """Tokens travel to the experts in 8 bit when the experts compute in it, and come back in 16."""
    layout: dict[str, Any] = {"data_parallel": 8, "expert_parallel": True}
    wide = decode(make_model("qwen3-30b-a3b", **layout), 64, 100)
    narrow = decode(make_model("qwen3-30b-a3b", precision="fp8", **layout), 64, 100)
    assert narrow.scale_up_bytes == pytest.approx(0.75 * wide.scale_up_bytes)


def test_group_wider_than_a_domain_sends_the_rest_outside() -> None:
    """Eight GPUs in domains of four sum inside first, and send a quarter of each block's output to the other domain."""
    model = make_model("llama-3.1-8b", tensor_parallel=8, domain_size=4)
    work = model.step(num_decodes=1, decode_context=1, num_sampled=0)
    hidden_bytes = 2 * 4096
    assert work.scale_up_bytes == 65 * hidden_bytes * 2 * 3 / 4
    assert work.scale_out_bytes == 65 * hidden_bytes / 4 * 2 * 1 / 2
    assert (work.num_scale_up, work.num_scale_out) == (65, 65)


def test_experts_in_many_domains_send_by_share_of_peers() -> None:
    """Of sixteen GPUs with experts, eight in the sender's domain, eight of fifteen peers are outside."""
    model = make_model("deepseek-r1", precision="fp8", data_parallel=16, expert_parallel=True)
    work = model.step(num_decodes=16, decode_context=16, num_sampled=0)
    assert work.scale_out_bytes / (work.scale_up_bytes + work.scale_out_bytes) == pytest.approx(8 / 15)
    assert (work.num_scale_up, work.num_scale_out) == (2 * 58, 2 * 58)


def test_stages_in_different_domains_hand_on_outside() -> None:
    """Where a stage fills a domain, the activations of the one border leave it, cut over the tensor group."""
    work = decode(make_model("llama-3.1-405b", tensor_parallel=8, pipeline_parallel=2), 4, 100)
    assert (work.scale_out_bytes, work.num_scale_out) == (4 * 16384 * 2 / 8 / 2, 1 / 2)


def test_one_gpu_sends_nothing() -> None:
    """Alone, a GPU has nobody to send to."""
    work = decode(make_model("mixtral-8x7b"), 4, 100)
    assert (work.scale_up_bytes, work.num_scale_up, work.scale_out_bytes, work.num_scale_out) == (0, 0, 0, 0)
