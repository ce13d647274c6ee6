"""Attention in place against a full-mask reference."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import pytest
import torch

from engine.embedded.attention import AttentionSpec
from engine.embedded.config import model_config
from engine.embedded.formats import to_int8
from engine.embedded.kv_cache import KVCache
from engine.embedded.native.attention import NativeAttention
from engine.embedded.step_input import StepInput, Tables
from tests.tiny_model import tiny_config

NUM_TOKENS = 77


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Shapes of one layer's attention."""

    kv_precision: str = "auto"
    head_dim: int = 64
    num_heads: int = 6
    num_kv_heads: int = 2
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None


CASES = [
    Case(kv_precision=stored, **shape)
    for stored in ("auto", "bf16", "int8")
    for shape in (
        {},
        {"window": 9},
        {"softcap": 5.0},
        {"head_dim": 128},
        {"block_size": 5},
        {"head_dim": 16, "num_heads": 7, "num_kv_heads": 7},
    )
]


def spec_of(case: Case) -> AttentionSpec:
    return AttentionSpec(scale=case.head_dim**-0.5, softcap=case.softcap, window=case.window)


def inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values in one, and cos and sin of every position."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(NUM_TOKENS, case.num_heads + 2 * case.num_kv_heads, case.head_dim, generator=generator)
    angles = torch.rand(NUM_TOKENS, 1, case.head_dim // 2, generator=generator)
    return qkv, torch.cat([angles.cos()] * 2, dim=-1), torch.cat([-angles.sin(), angles.sin()], dim=-1)


def served(kernels: ctypes.CDLL, case: Case, chunk: int, qkv: torch.Tensor | None = None) -> torch.Tensor:
    """Attend `chunk` tokens at a time, their blocks scattered over the cache."""
    num_blocks = NUM_TOKENS // case.block_size + 1
    shape = {"num_key_value_heads": case.num_kv_heads, "head_dim": case.head_dim, "num_attention_heads": case.num_heads}
    config = model_config(tiny_config() | shape, source="test")
    cache = KVCache(
        config,
        num_blocks=num_blocks,
        block_size=case.block_size,
        dtype=torch.float32,
        device=torch.device("cpu"),
        kv_precision=case.kv_precision,
    )
    attention = NativeAttention(kernels, cache, 0, spec_of(case), case.num_heads)
    blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
    given, cos, sin = inputs(case)
    qkv = given if qkv is None else qkv
    outputs = []
    for start in range(0, NUM_TOKENS, chunk):
        positions = torch.arange(start, min(start + chunk, NUM_TOKENS))
        step = StepInput(
            token_ids=positions,
            positions=positions,
            slots=blocks[positions // case.block_size] * case.block_size + positions % case.block_size,
            tables=Tables(sequences=torch.zeros(len(positions), dtype=torch.int64), blocks=blocks[None]),
        )
        outputs.append(attention(qkv[start : start + chunk].clone(), (cos, sin), step))
    return torch.cat(outputs)


def reference(case: Case) -> torch.Tensor:
    """Attend by one product with a full mask, of keys and values as the cache keeps them."""
    qkv, cos, sin = inputs(case)
    num_rotated = case.num_heads + case.num_kv_heads
    rotated = qkv * cos + qkv.roll(case.head_dim // 2, dims=-1) * sin
    group = case.num_heads // case.num_kv_heads
    keys = kept(rotated[:, case.num_heads : num_rotated], case).repeat_interleave(group, dim=1)
    values = kept(qkv[:, num_rotated:], case).repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", rotated[:, : case.num_heads], keys) * case.head_dim**-0.5
    if case.softcap is not None:
        scores = torch.tanh(scores / case.softcap) * case.softcap
    ones = torch.ones(NUM_TOKENS, NUM_TOKENS, dtype=torch.bool)
    visible = ones.tril() if case.window is None else ones.tril() & ~ones.tril(-case.window)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


def kept(heads: torch.Tensor, case: Case) -> torch.Tensor:
    if case.kv_precision == "bf16":
        return heads.bfloat16().float()
    if case.kv_precision == "int8":
        return to_int8(heads.flatten(0, 1)).dequantise().view(heads.shape)
    return heads


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_that_of_a_full_mask(kernels: ctypes.CDLL, case: Case) -> None:
    """BUG-43: attention in place, of scattered blocks and any stored format, is that of one product with a mask."""
    assert (served(kernels, case, NUM_TOKENS) - reference(case)).abs().max() < 5e-6


@pytest.mark.parametrize("case", CASES, ids=str)
def test_chunks_change_nothing(kernels: ctypes.CDLL, case: Case) -> None:
    """BUG-33: a prompt cut into chunks of 1, 10 or 16 tokens attends as it does in one, bit by bit."""
    whole = served(kernels, case, NUM_TOKENS)

    assert [torch.equal(whole, served(kernels, case, chunk)) for chunk in (1, 10, 16)] == [True] * 3


@pytest.mark.parametrize("place", [0, 5, 63])
@pytest.mark.parametrize("head", [6, 8], ids=["key", "value"])
@pytest.mark.parametrize("kv_precision", ["auto", "bf16", "int8"])
def test_what_is_not_finite_stays_so(kernels: ctypes.CDLL, kv_precision: str, head: int, place: int) -> None:
    """BUG-39: a NaN anywhere in a key or value reaches every row from its own on, and none before, however stored."""
    case = Case(kv_precision=kv_precision)
    qkv = inputs(case)[0]
    qkv[10, head, place] = float("nan")
    finite = served(kernels, case, NUM_TOKENS, qkv).isfinite().all(dim=1).tolist()

    assert finite == [row < 10 for row in range(NUM_TOKENS)]
