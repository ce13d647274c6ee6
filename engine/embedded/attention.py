"""Attention of a mixed batch over the paged cache.

Decodes are one batched product over gathered blocks, padded to the longest; each prefill chunk is a product of its
own. Query heads that share a key head are stacked along the query axis, so keys and values are never repeated.

A token sees itself and everything before it; in a local layer of window w, itself and the w - 1 tokens before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.embedded.kv_cache import KVCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Rows of a step that attend together, and what they attend to.

    Rows first_row .. first_row + num_sequences x num_queries: the decodes (num_queries 1), or one prefill chunk
    (num_sequences 1).
    """

    first_row: int
    num_sequences: int
    num_queries: int
    #: Blocks to gather, (num_sequences x width,); None when the rows' own keys are all there is.
    blocks: torch.Tensor | None
    #: Added to the scores: 0 or -inf, (num_sequences, 1, num_queries, keys).
    mask: torch.Tensor
    local_mask: torch.Tensor | None

    @property
    def num_rows(self) -> int:
        """Rows of the region."""
        return self.num_sequences * self.num_queries


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


def attend(
    queries: torch.Tensor,
    keys_values: torch.Tensor,
    cache: KVCache,
    layer: int,
    regions: list[Region],
    *,
    is_local: bool,
) -> torch.Tensor:
    """Return the attention output (rows, num_heads, head_dim).

    `queries` is (rows, num_heads, head_dim), `keys_values` (rows, 2, num_kv_heads, head_dim); the latter must have
    been written to the cache before.
    """
    output = torch.empty_like(queries)
    num_kv_heads = keys_values.shape[2]
    for region in regions:
        rows = slice(region.first_row, region.first_row + region.num_rows)
        if region.blocks is None:
            own = keys_values[rows].unsqueeze(0)
            keys, values = own[:, :, 0].transpose(1, 2), own[:, :, 1].transpose(1, 2)
        else:
            keys, values = cache.gather(layer, region.blocks, region.num_sequences)
        mask = region.local_mask if is_local else region.mask
        assert mask is not None  # local layers have a window, so the runner built the mask
        output[rows] = _grouped(queries[rows], keys, values, mask, region.num_sequences, num_kv_heads)
    return output


def _grouped(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    num_sequences: int,
    num_kv_heads: int,
) -> torch.Tensor:
    """Attend with query heads of one key head stacked along the query axis."""
    rows, num_heads, head_dim = queries.shape
    group = num_heads // num_kv_heads
    num_queries = rows // num_sequences
    stacked = (
        queries.view(num_sequences, num_queries, num_kv_heads, group, head_dim)
        .permute(0, 2, 3, 1, 4)
        .reshape(num_sequences, num_kv_heads, group * num_queries, head_dim)
    )
    if num_queries > 1:
        mask = mask.repeat(1, 1, group, 1)
    result = functional.scaled_dot_product_attention(stacked, keys, values, attn_mask=mask)
    return (
        result.view(num_sequences, num_kv_heads, group, num_queries, head_dim)
        .permute(0, 3, 1, 2, 4)
        .reshape(rows, num_heads, head_dim)
    )
