"""How weights and cached values spread over GPUs, and which layouts are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidSettings
from tests.engine.simulated.layouts import decode, make_model


def test_latent_vectors_are_held_by_every_gpu_of_a_replica() -> None:
    """DeepSeek keeps 576 16-bit values per layer and token on each tensor-parallel GPU; replicas divide sequences."""
    layouts: list[dict[str, Any]] = [{}, {"tensor_parallel": 8}, {"data_parallel": 8, "expert_parallel": True}]
    for layout in layouts:
        model = make_model("deepseek-r1", precision="fp8", **layout)
        assert model.kv_bytes_per_token == 61 * 576 * 2
    tensor = make_model("deepseek-r1", precision="fp8", tensor_parallel=8)
    data = make_model("deepseek-r1", precision="fp8", data_parallel=8, expert_parallel=True)
    assert decode(tensor, 8, 100).kv_bytes == 8 * decode(data, 8, 100).kv_bytes


def test_local_layers_stop_growing_at_the_window() -> None:
    """A sequence within the window takes what it needs; beyond it only global layers grow."""
    model = make_model("gemma-3-12b")
    token = 2 * 8 * 256 * 2
    assert (model.kv_bytes_per_token, model.kv_bytes_per_local_token) == (8 * token, 40 * token)
    assert model.kv_bytes_fixed_per_sequence == 1024 * 40 * token
    assert model.sequence_bytes(100) == 100 * 48 * token
    assert model.sequence_bytes(2000) == 2000 * 8 * token + 1024 * 40 * token
    assert model.handover_bytes(2000) == model.sequence_bytes(2000)


def test_stages_of_unequal_depth_are_sized_by_the_fullest() -> None:
    """126 layers in four stages leave 32 on the fullest, which holds the output matrix or the embedding besides."""
    model = make_model("llama-3.1-405b", tensor_parallel=8, pipeline_parallel=4)
    assert model.kv_bytes_per_token == pytest.approx(32 * 2 * 128 * 2)
    layer = 2 * 16384 * 128 * 128 + 2 * 16384 * 8 * 128 + 3 * 16384 * 53248
    norms = 2 * 2 * 16384
    expected = 32 * (2 * layer / 8 + norms) + 2 * 128256 * 16384 / 8
    assert model.weight_bytes_resident == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        ("llama-3.1-8b", {"tensor_parallel": 3}, "tensor_parallel is 3, which does not divide the 32 heads"),
        ("qwen3-14b", {"tensor_parallel": 5}, "tensor_parallel is 5, which neither divides the 8 key-value heads"),
        ("smollm2-135m", {"pipeline_parallel": 31}, "pipeline_parallel is 31, but smollm2-135m has 30 layers"),
        ("llama-3.1-8b", {"expert_parallel": True}, "expert_parallel is on, but llama-3.1-8b has no experts"),
        ("mixtral-8x7b", {"expert_parallel": True, "data_parallel": 16}, "expert_parallel spreads 8 experts over"),
        ("llama-3.1-8b", {"data_parallel": 65}, "data_parallel \\+ prefill_gpus is 65, but the machine has 64"),
        ("llama-3.1-8b", {"precision": "nvfp4"}, "precision is 'nvfp4'.*choose one of bf16, fp16, fp8, int4, int8"),
        ("llama-3.1-8b", {"precision": "fp32"}, "precision is 'fp32'"),
        ("llama-3.1-8b", {"kv_precision": "nvfp4"}, "kv_precision is 'nvfp4', which this machine lacks"),
    ],
)
def test_impossible_layouts_are_refused_with_a_remedy(shape: str, settings: dict[str, Any], message: str) -> None:
    """A layout that cannot be is refused naming field and value, before anything is simulated."""
    with pytest.raises(InvalidSettings, match=message):
        make_model(shape, **settings)


@given(tensor=st.sampled_from([2, 4, 8]), num=st.integers(1, 256))
def test_tensor_parallelism_divides_weights_while_there_are_heads(tensor: int, num: int) -> None:
    """Up to one GPU per key-value head, weights, keys and values of each GPU shrink in proportion, norms aside."""
    one, many = make_model("llama-3.1-8b"), make_model("llama-3.1-8b", tensor_parallel=tensor)
    assert many.weight_bytes_resident == pytest.approx(one.weight_bytes_resident / tensor, rel=0.001)
    assert decode(many, num, 500).kv_bytes == pytest.approx(decode(one, num, 500).kv_bytes / tensor)
    assert decode(many, num, 500).gemm_flops == pytest.approx(decode(one, num, 500).gemm_flops / tensor)
