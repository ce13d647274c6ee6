"""Keys and values of running sequences, in blocks. Knows nothing of who owns a block.

One tensor per layer, (num_blocks, block_size, 2, num_kv_heads, head_dim): a token's key and value lie side by side, so
that one gather brings both, and a whole block is one contiguous copy.

| stored as | what is kept                                          | worst error of a value                         |
|-----------|-------------------------------------------------------|------------------------------------------------|
| `auto`    | what embedding and head are in                        | none but that of the format                    |
| `bf16`    | bf16                                                  | 2^-8 of itself                                 |
| `int8`    | int8, and an fp32 scale for each token, head and kind | 1/254 of the largest in its head               |
| `fp8`     | e4m3 as it is, saturating at 448                      | 2^-4 of itself, but 2^-10 where it is tiny     |

Whatever is stored, attention computes in the model's own dtype: a narrow cache saves memory and traffic, no arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.embedded.config import ModelConfig
from engine.embedded.formats import Int8Rows, as_e4m3, to_int8
from engine.embedded.native.library import kernels_for, reads

#: Stored as other than the model computes in.
_STORED = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


class KVCache:
    """The cache of all layers."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        kv_precision: str = "auto",
        kept: torch.dtype | None = None,
    ) -> None:
        """Make an empty cache; `dtype` is what keys and values come in and are read in, `kept` what `auto` stores."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        stored = _STORED.get(kv_precision, kept or dtype)
        shape = (num_blocks, block_size, 2, config.num_kv_heads, config.head_dim)
        # Zeros, not empty: a masked position still meets a weight of 0, and 0 x NaN would be NaN.
        self.layers = [torch.zeros(shape, dtype=stored, device=device) for _ in range(config.num_layers)]
        num_scales = config.num_layers if stored is torch.int8 else 0
        self._scales = [torch.zeros(shape[:-1], device=device) for _ in range(num_scales)]

        kernels = kernels_for(device) if dtype is torch.float32 else None
        #: The kernels, where they read this cache; its user takes them or `write` and `gather`, not both.
        self.kernels = kernels if kernels is not None and reads(kernels, stored, config.head_dim) else None

    def stored(self, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a layer's keys and values as they lie there, and their scales (.., num_kv_heads) if they have any."""
        return self.layers[layer], self._scales[layer] if self._scales else None

    def write(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> torch.Tensor:
        """Put keys and values (tokens, 2, num_kv_heads, head_dim) at slots (tokens,): block x block_size + offset.

        Returns them as they will be read: who attends to its own keys without reading them must see no others.
        """
        stored, scales = self._as_stored(keys_values)
        _bytes(self.layers[layer]).flatten(0, 1).index_copy_(0, slots, _bytes(stored))
        if scales is not None:
            self._scales[layer].flatten(0, 1).index_copy_(0, slots, scales)
        return keys_values if stored is keys_values else self._read(stored, scales)

    def gather(self, layer: int, blocks: torch.Tensor, num_sequences: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of sequences' blocks.

        `blocks` (num_sequences x width,) lists each sequence's blocks, padded to the same width. Both results are
        (num_sequences, num_kv_heads, width x block_size, head_dim) views of one copy.
        """
        cache = self.layers[layer]
        scales = self._scales[layer].index_select(0, blocks) if self._scales else None
        copied = self._read(cache.index_select(0, blocks), scales).view(num_sequences, -1, *cache.shape[2:])
        return copied[:, :, 0].transpose(1, 2), copied[:, :, 1].transpose(1, 2)

    def wipe(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold non-finite values, before somebody else gets them."""
        for layer in (*self.layers, *self._scales):
            _bytes(layer)[list(blocks)] = 0

    def _as_stored(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return values (..., head_dim) as they are kept, with their scales (...) if they have any."""
        dtype = self.layers[0].dtype
        if dtype is torch.float8_e4m3fn:
            return as_e4m3(values), None
        if dtype is not torch.int8:
            return values.to(dtype), None
        rows = to_int8(values.float().flatten(0, -2))
        return rows.data.view(values.shape), rows.scales.view(values.shape[:-1])

    def _read(self, stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        """Undo `_as_stored`, up to its rounding."""
        if scales is None:
            return stored.to(self.dtype)
        rows = Int8Rows(data=stored.flatten(0, -2), scales=scales.flatten())
        return rows.dequantise().view(stored.shape).to(self.dtype)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """Return 8-bit floats as bytes: torch copies those on every device."""
    return values.view(torch.uint8) if values.dtype is torch.float8_e4m3fn else values
