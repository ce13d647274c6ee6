"""Attention over the paged cache against a plain full-mask reference."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from engine.embedded.attention import visibility_mask
from tests.engine.conftest import OpenTiny
from tests.engine.logits import all_logits
from tests.engine.requests import make_request, serve
from tests.tiny_model import tiny_config, tiny_tensors, write_tiny_model

WINDOW = 8
KINDS = ["sliding_attention", "full_attention"]


def test_a_token_sees_itself_and_the_window_before_it() -> None:
    """BUG-43: the rule is itself plus the window - 1 tokens before it, no more, no less."""
    mask = visibility_mask(torch.tensor([9]), 12, window=WINDOW, dtype=torch.float32)

    assert torch.nonzero(mask[0] == 0)[:, 0].tolist() == list(range(2, 10))


def test_without_a_window_everything_before_is_seen() -> None:
    """A global layer's token sees itself and all before it."""
    mask = visibility_mask(torch.tensor([3]), 6, window=None, dtype=torch.float32)

    assert torch.nonzero(mask[0] == 0)[:, 0].tolist() == [0, 1, 2, 3]


@pytest.fixture(scope="module", name="windowed")
def _windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose layers alternate between a window of 8 and everything."""
    return write_tiny_model(
        tmp_path_factory.mktemp("windowed"),
        architectures=["Qwen2ForCausalLM"],
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=KINDS,
    )


def reference_logits(token_ids: tuple[int, ...]) -> torch.Tensor:
    """Compute the windowed model with full masks and no cache, in the plainest way."""
    config = tiny_config(architectures=["Qwen2ForCausalLM"])
    weights = tiny_tensors(config)
    hidden = weights["model.embed_tokens.weight"][list(token_ids)]
    positions = torch.arange(len(token_ids))
    for layer, kind in enumerate(KINDS):
        prefix = f"model.layers.{layer}."
        normed = rms_norm(hidden, weights[f"{prefix}input_layernorm.weight"])
        q, k, v = (
            (normed @ weights[f"{prefix}self_attn.{n}_proj.weight"].T + weights[f"{prefix}self_attn.{n}_proj.bias"])
            .view(len(token_ids), -1, 16)
            .transpose(0, 1)
            for n in "qkv"
        )
        q, k = rope(q, positions), rope(k, positions)
        k, v = k.repeat_interleave(2, dim=0), v.repeat_interleave(2, dim=0)
        scores = q @ k.transpose(1, 2) / math.sqrt(16)
        distance = positions[:, None] - positions[None, :]
        hidden_pairs = (distance < 0) | ((distance >= WINDOW) if kind == "sliding_attention" else False)
        attended = scores.masked_fill(hidden_pairs, float("-inf")).softmax(-1) @ v
        hidden = hidden + attended.transpose(0, 1).flatten(1) @ weights[f"{prefix}self_attn.o_proj.weight"].T
        normed = rms_norm(hidden, weights[f"{prefix}post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(normed @ weights[f"{prefix}mlp.gate_proj.weight"].T)
        up = normed @ weights[f"{prefix}mlp.up_proj.weight"].T
        hidden = hidden + (gate * up) @ weights[f"{prefix}mlp.down_proj.weight"].T
    return rms_norm(hidden, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def rope(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    angles = positions[:, None] * frequencies
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    rotated = torch.cat([-x[..., 8:], x[..., :8]], -1)
    return x * cos + rotated * sin


@pytest.mark.parametrize("num_prompt", [6, 7, 8, 9, 20])
@pytest.mark.parametrize("prefill_chunk", [3, 8, 16])
def test_beyond_the_window_every_step_equals_full_masks(
    open_tiny: OpenTiny, windowed: Path, num_prompt: int, prefill_chunk: int
) -> None:
    """BUG-43: 30 tokens past prompts around the window are those of a full-mask reference at every step."""
    prompt = [(11 * i + num_prompt) % 256 for i in range(num_prompt)]
    opened = open_tiny(folder=windowed, prefill_chunk=prefill_chunk)

    answer = serve(opened, [make_request(prompt, max_tokens=30)])[0].token_ids

    logits = reference_logits((*prompt, *answer))
    expected = logits[num_prompt - 1 : -1].argmax(dim=-1).tolist()
    assert list(answer) == expected


@pytest.mark.parametrize("chunk", [1, 5, 16, 17, 64, 200])
def test_chunks_give_the_logits_of_one_pass(open_tiny: OpenTiny, chunk: int) -> None:
    """A prompt computed in chunks, whatever rest they leave, has the logits of one computed at once."""
    prompt = tuple((5 * i) % 256 for i in range(66))
    opened = open_tiny()

    chunked = all_logits(opened, prompt, chunk=chunk)

    assert torch.allclose(chunked, all_logits(opened, prompt), atol=1e-5)
