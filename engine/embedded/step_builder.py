"""Slices to tensors: what a step's rows are and what each attends to. Knows nothing of layers or weights."""

from __future__ import annotations

import torch

from engine.embedded.attention import visibility_mask
from engine.embedded.kv_cache import KVCache
from engine.embedded.scheduler import Batch, Slice
from engine.embedded.sequence import Sequence
from engine.embedded.step_input import Region, StepInput, Tables


class StepBuilder:
    """Describes steps of any shape over one cache."""

    def __init__(self, cache: KVCache, *, window: int | None, device: torch.device) -> None:
        """`window` is that of the model's local layers, if it has any."""
        self._cache = cache
        self._window = window
        self._device = device

    def build(self, batch: Batch[Sequence]) -> StepInput:
        """Return a batch as tensors on the device; on a GPU they may still be on their way there."""
        block_size = self._cache.block_size
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for piece in batch.slices:
            table = piece.sequence.block_table
            places = range(piece.start, piece.start + piece.count)
            token_ids.extend(piece.sequence.token_ids[piece.start : piece.start + piece.count])
            positions.extend(places)
            slots.extend(table[p // block_size] * block_size + p % block_size for p in places)
        return StepInput(
            token_ids=to_device(token_ids, self._device),
            positions=to_device(positions, self._device),
            slots=to_device(slots, self._device),
            regions=self._regions(batch) if self._cache.kernels is None else (),
            tables=None if self._cache.kernels is None else self._tables(batch),
        )

    def _tables(self, batch: Batch[Sequence]) -> Tables:
        """Describe what each row attends to for the native kernel."""
        sequences: list[int] = []
        for line, piece in enumerate(batch.slices):
            sequences.extend([line] * piece.count)
        lines = [piece.sequence.block_table for piece in batch.slices]
        width = max(len(line) for line in lines)
        return Tables(
            sequences=to_device(sequences, self._device),
            blocks=to_device([line + [0] * (width - len(line)) for line in lines], self._device),
        )

    def _regions(self, batch: Batch[Sequence]) -> list[Region]:
        regions = []
        if batch.decoding:
            regions.append(self._region(batch.decodes, first_row=0))
        first_row = len(batch.decoding)
        for chunk in batch.prefills:
            regions.append(self._region((chunk,), first_row=first_row))
            first_row += chunk.count
        return regions

    def _region(self, pieces: tuple[Slice[Sequence], ...], *, first_row: int) -> Region:
        """Describe decodes (one token each) or one prefill chunk."""
        num_queries = pieces[0].count
        ends = [piece.start + piece.count for piece in pieces]
        blocks, num_keys = None, num_queries
        if any(piece.start for piece in pieces):
            width = -(-max(ends) // self._cache.block_size)
            num_keys = width * self._cache.block_size
            # Padding repeats block 0: masked, but it must be finite, which the cache guarantees.
            tables = (piece.sequence.block_table[:width] for piece in pieces)
            flat = [block for table in tables for block in table + [0] * (width - len(table))]
            blocks = to_device(flat, self._device)
        queries = to_device([[end - num_queries + i for i in range(num_queries)] for end in ends], self._device)
        return make_region(queries, blocks, num_keys, first_row=first_row, window=self._window, dtype=self._cache.dtype)


def make_region(
    queries: torch.Tensor,
    blocks: torch.Tensor | None,
    num_keys: int,
    *,
    first_row: int,
    window: int | None,
    dtype: torch.dtype,
) -> Region:
    """Describe rows whose positions are `queries` (sequences, queries of each); masks are computed where those lie."""
    positions = queries[:, None]
    return Region(
        first_row=first_row,
        num_sequences=queries.shape[0],
        num_queries=queries.shape[1],
        blocks=blocks,
        mask=visibility_mask(positions, num_keys, window=None, dtype=dtype),
        local_mask=None if window is None else visibility_mask(positions, num_keys, window=window, dtype=dtype),
    )


def to_device(values: list[int] | list[list[int]], device: torch.device) -> torch.Tensor:
    """Return whole numbers as int64 on a device; on a GPU they may still be on their way there."""
    return on_host(values, device).to(device, non_blocking=True)


def on_host(values: list[int] | list[list[int]], device: torch.device) -> torch.Tensor:
    """Return whole numbers as int64 on the host, for a copy to a device; pinned for a GPU, so that nobody waits for it.

    torch gives pinned memory to nobody else before its copies are done, so a step need not wait for the one before.
    """
    return torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
