"""Attention of a mixed batch over the paged cache.

Decodes are one batched product over gathered blocks, padded to the longest; each prefill chunk is a product of its
own. Query heads that share a key head are stacked along the query axis, so keys and values are never repeated.

A token sees itself and everything before it; in a local layer of window w, itself and the w - 1 tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.embedded.kv_cache import KVCache
from engine.embedded.rope import rotate
from engine.embedded.step_input import Region, StepInput

#: cos and sin.
Angles = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """What a layer's attention computes besides the plain product."""

    #: What scores are multiplied by.
    scale: float
    #: Scores s become cap x tanh(s / cap) before the mask (Gemma 2); None leaves them.
    softcap: float | None = None
    #: A token sees itself and the window - 1 before it; None means all before it.
    window: int | None = None


def visibility_mask(
    query_positions: torch.Tensor, num_keys: int, *, window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return 0 where a query may see a key and -inf elsewhere, (..., num_keys), for query positions (...)."""
    keys = torch.arange(num_keys, device=query_positions.device)
    positions = query_positions[..., None]
    visible = keys <= positions
    if window is not None:
        visible &= keys > positions - window
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


class PagedAttention:
    """Attention of one layer over its part of the cache, computed by torch."""

    def __init__(self, cache: KVCache, layer: int, spec: AttentionSpec, num_heads: int) -> None:
        self._cache = cache
        self._layer = layer
        self._spec = spec
        self._num_heads = num_heads

    def __call__(self, qkv: torch.Tensor, angles: Angles, step: StepInput) -> torch.Tensor:
        """Return the attention output (rows, num_heads x head_dim) and put the rows' keys and values into the cache.

        `qkv` is (rows, num_heads + 2 num_kv_heads, head_dim), `angles` the rows' cos and sin, (rows, 1, head_dim) each.
        """
        num_rotated = (qkv.shape[1] + self._num_heads) // 2
        rotated = rotate(qkv[:, :num_rotated], *angles)
        own = torch.stack([rotated[:, self._num_heads :], qkv[:, num_rotated:]], dim=1)
        own = self._cache.write(self._layer, step.slots, own)
        queries = rotated[:, : self._num_heads]
        return attend(queries, own, self._cache, self._layer, step.regions, self._spec).flatten(1)


def attend(
    queries: torch.Tensor,
    keys_values: torch.Tensor,
    cache: KVCache,
    layer: int,
    regions: Sequence[Region],
    spec: AttentionSpec,
) -> torch.Tensor:
    """Return the attention output (rows, num_heads, head_dim).

    `queries` is (rows, num_heads, head_dim), `keys_values` (rows, 2, num_kv_heads, head_dim); the latter must have
    been written to the cache before.
    """
    output = torch.empty_like(queries)
    for region in regions:
        rows = slice(region.first_row, region.first_row + region.num_rows)
        if region.blocks is None:
            own = keys_values[rows].unsqueeze(0)
            keys, values = own[:, :, 0].transpose(1, 2), own[:, :, 1].transpose(1, 2)
        else:
            keys, values = cache.gather(layer, region.blocks, region.num_sequences)
        mask = region.mask if spec.window is None else region.local_mask
        assert mask is not None  # the runner builds it for a model with a window
        output[rows] = _grouped(queries[rows], keys, values, mask, region.num_sequences, spec)
    return output


def _grouped(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    num_sequences: int,
    spec: AttentionSpec,
) -> torch.Tensor:
    """Attend with query heads of one key head stacked along the query axis."""
    rows, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    num_queries = rows // num_sequences
    stacked = (
        queries.view(num_sequences, num_queries, num_kv_heads, group, head_dim)
        .permute(0, 2, 3, 1, 4)
        .reshape(num_sequences, num_kv_heads, group * num_queries, head_dim)
    )
    if num_queries > 1:
        mask = mask.repeat(1, 1, group, 1)
    result = _product(stacked, keys, values, mask, spec)
    return (
        result.view(num_sequences, num_kv_heads, group, num_queries, head_dim)
        .permute(0, 3, 1, 2, 4)
        .reshape(rows, num_heads, head_dim)
    )


def _product(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, spec: AttentionSpec
) -> torch.Tensor:
    """Weigh values by softmax(scores + mask), all (sequences, num_kv_heads, queries or keys, head_dim)."""
    if spec.softcap is None:
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=spec.scale)
    scores = (queries * spec.scale) @ keys.transpose(-1, -2)
    capped = softcap(scores, spec.softcap)
    return torch.softmax((capped + mask).float(), dim=-1).to(values.dtype) @ values


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Bend values smoothly to stay within plus and minus cap."""
    return torch.tanh(x / cap) * cap
