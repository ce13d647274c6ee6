"""The KV cache in each format: what is read is what was written, within the format's rounding, at its place alone."""

from __future__ import annotations

import pytest
import torch

from engine.embedded.config import model_config
from engine.embedded.kv_cache import KVCache
from engine.embedded.precision import KV_PRECISIONS, kv_bytes_per_token
from tests.tiny_model import tiny_config

CONFIG = model_config(tiny_config(), source="test")
BLOCK_SIZE = 4
#: Largest error of a value of magnitude `v` in a head whose largest is `m`, as rel x |v| + of_head x m + tiny.
ERRORS = {
    "auto": (0.0, 0.0, 0.0),
    "bf16": (2**-8, 0.0, 1e-30),
    "fp8": (2**-4, 0.0, 2**-10),
    "int8": (0.0, 1 / 254 + 1e-6, 0.0),
}


def make_cache(kv_precision: str, dtype: torch.dtype = torch.float32) -> KVCache:
    return KVCache(
        CONFIG, num_blocks=3, block_size=BLOCK_SIZE, dtype=dtype, device=torch.device("cpu"), kv_precision=kv_precision
    )


def some_tokens(num_tokens: int) -> torch.Tensor:
    size = (num_tokens, 2, CONFIG.num_kv_heads, CONFIG.head_dim)
    return torch.randn(size, generator=torch.Generator().manual_seed(0)) * 3


def read_all(cache: KVCache) -> torch.Tensor:
    """Return what layer 1 holds as (slots, 2, num_kv_heads, head_dim)."""
    keys, values = cache.gather(1, torch.arange(3), 1)
    return torch.stack([keys[0].transpose(0, 1), values[0].transpose(0, 1)], dim=1)


@pytest.mark.parametrize("kv_precision", KV_PRECISIONS)
def test_what_is_read_is_what_was_written(kv_precision: str) -> None:
    """Each value comes back within its format's rounding, and exactly as `write` said that it would."""
    cache, tokens = make_cache(kv_precision), some_tokens(5)
    slots = torch.tensor([1, 2, 6, 7, 11])
    told = cache.write(1, slots, tokens)
    found = read_all(cache)[slots]
    relative, of_head, tiny = ERRORS[kv_precision]
    allowed = relative * tokens.abs() + of_head * tokens.abs().amax(-1, keepdim=True) + tiny
    assert torch.equal(told, found)
    assert bool(((found - tokens).abs() <= allowed).all())


@pytest.mark.parametrize("kv_precision", KV_PRECISIONS)
def test_nothing_else_is_touched(kv_precision: str) -> None:
    """Other slots and other layers stay zero."""
    cache = make_cache(kv_precision)
    cache.write(1, torch.tensor([5]), some_tokens(1))
    others = [slot for slot in range(3 * BLOCK_SIZE) if slot != 5]
    assert not bool(read_all(cache)[others].any())
    assert not bool(cache.gather(0, torch.arange(3), 1)[0].any())


@pytest.mark.parametrize("kv_precision", KV_PRECISIONS)
def test_a_token_is_stored_alone(kv_precision: str) -> None:
    """A token's keys and values become the same, bit by bit, whichever others are written with them."""
    together, alone, tokens = make_cache(kv_precision), make_cache(kv_precision), some_tokens(4)
    together.write(1, torch.arange(4), tokens)
    for slot in range(4):
        alone.write(1, torch.tensor([slot]), tokens[slot : slot + 1])
    assert torch.equal(read_all(together), read_all(alone))


@pytest.mark.parametrize("kv_precision", KV_PRECISIONS)
def test_wiped_blocks_are_finite_again(kv_precision: str) -> None:
    """BUG-41: a NaN is kept as one, so that it is noticed, and is gone with its block's wipe, scales included."""
    cache, tokens = make_cache(kv_precision), some_tokens(2)
    tokens[0, 0, 0, 0] = torch.nan
    cache.write(1, torch.tensor([0, 9]), tokens)
    assert bool(read_all(cache).isnan().any())
    cache.wipe([0])
    assert bool(read_all(cache).isfinite().all())
    assert not bool(read_all(cache)[0].any())
    assert bool(read_all(cache)[9].any())


@pytest.mark.parametrize("kv_precision", KV_PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_are_read_in_the_models_own_dtype(kv_precision: str, dtype: torch.dtype) -> None:
    """Attention sees what the model computes in, whatever is stored."""
    cache = make_cache(kv_precision, dtype)
    told = cache.write(1, torch.tensor([0]), some_tokens(1).to(dtype))
    assert {told.dtype, read_all(cache).dtype, cache.dtype} == {dtype}


@pytest.mark.parametrize("kv_precision", KV_PRECISIONS)
def test_memory_is_what_is_predicted(kv_precision: str) -> None:
    """The cache takes the bytes that are counted before anything is allocated."""
    cache = make_cache(kv_precision)
    tensors = [tensor for layer in range(CONFIG.num_layers) for tensor in cache.stored(layer) if tensor is not None]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert num_bytes == 3 * BLOCK_SIZE * kv_bytes_per_token(CONFIG, kv_precision, 4)
