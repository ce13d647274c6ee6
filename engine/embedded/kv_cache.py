"""Keys and values of running sequences, in blocks. Knows nothing of who owns a block.

One tensor per layer, (num_blocks, block_size, 2, num_kv_heads, head_dim): a token's key and value lie side by side, so
that one gather brings both, and a whole block is one contiguous copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.embedded.config import ModelConfig


class KVCache:
    """The cache of all layers."""

    def __init__(
        self, config: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks, block_size, 2, config.num_kv_heads, config.head_dim)
        # Zeros, not empty: a masked position still meets a weight of 0, and 0 x NaN would be NaN.
        self.layers = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]

    def write(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Put keys and values (tokens, 2, num_kv_heads, head_dim) at slots (tokens,): block x block_size + offset."""
        self.layers[layer].flatten(0, 1).index_copy_(0, slots, keys_values)

    def gather(self, layer: int, blocks: torch.Tensor, num_sequences: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of sequences' blocks.

        `blocks` (num_sequences x width,) lists each sequence's blocks, padded to the same width. Both results are
        (num_sequences, num_kv_heads, width x block_size, head_dim) views of one copy.
        """
        cache = self.layers[layer]
        copied = cache.index_select(0, blocks).view(num_sequences, -1, *cache.shape[2:])
        return copied[:, :, 0].transpose(1, 2), copied[:, :, 1].transpose(1, 2)

    def wipe(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold non-finite values, before somebody else gets them."""
        for layer in self.layers:
            layer[list(blocks)] = 0
