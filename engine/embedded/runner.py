"""A batch to logits: turns slices into tensors, runs the decoder, and keeps the cache. Decides nothing."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from engine.embedded.attention import visibility_mask
from engine.embedded.config import load_config
from engine.embedded.decoder import Decoder
from engine.embedded.free_memory import budget_of, trim_heap
from engine.embedded.kv_cache import KVCache
from engine.embedded.linears import capability_of, hidden_dtype, kept_dtype, prepare_device
from engine.embedded.memory import predict, require_room
from engine.embedded.precision import is_native, require_native
from engine.embedded.scheduler import Batch, Slice
from engine.embedded.sequence import Sequence
from engine.embedded.step_input import Region, StepInput, Tables
from engine.embedded.weights import Weights
from engine.errors import InvalidSettings
from engine.settings import EngineSettings


class ModelRunner:
    """A model with its cache on one torch device."""

    def __init__(self, folder: Path, settings: EngineSettings) -> None:
        self.config = load_config(folder)
        self.device = _torch_device(settings.device)
        torch.set_num_threads(settings.num_threads or len(os.sched_getaffinity(0)))
        self.max_context = _max_context(settings, self.config.usable_context)
        capability = capability_of(self.device)
        if not settings.can_emulate:
            require_native(settings.precision, capability)
        self.is_emulated = not is_native(settings.precision, capability)
        prepare_device(settings.precision, self.device)
        dtype = hidden_dtype(settings.precision, self.device)
        self.num_blocks = self._fitting_blocks(settings, dtype)
        with torch.inference_mode():
            self.cache = KVCache(
                self.config,
                num_blocks=self.num_blocks,
                block_size=settings.block_size,
                dtype=dtype,
                device=self.device,
                kv_precision=settings.kv_precision,
                kept=kept_dtype(settings.precision, self.device),
            )
            self.model = Decoder(
                self.config,
                Weights(folder),
                self.cache,
                precision=settings.precision,
                max_context=self.max_context,
                device=self.device,
            )
        trim_heap()

    @torch.inference_mode()
    def run(self, batch: Batch[Sequence], *, all_rows: bool = False) -> torch.Tensor:
        """Compute a batch and return fp32 logits: of the sampled slices in order, or of every row."""
        hidden = self.model.forward(self._step_input(batch))
        if not all_rows:
            hidden = hidden[_last_rows(batch)]
        return self.model.logits(hidden)

    def wipe(self, blocks: list[int]) -> None:
        """Zero blocks that may hold non-finite values."""
        with torch.inference_mode():
            self.cache.wipe(blocks)

    def _step_input(self, batch: Batch[Sequence]) -> StepInput:
        block_size = self.cache.block_size
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
            token_ids=self._tensor(token_ids),
            positions=self._tensor(positions),
            slots=self._tensor(slots),
            regions=self._regions(batch) if self.cache.kernels is None else (),
            tables=None if self.cache.kernels is None else self._tables(batch),
        )

    def _tables(self, batch: Batch[Sequence]) -> Tables:
        """Describe what each row attends to for the native kernel."""
        sequences: list[int] = []
        for line, piece in enumerate(batch.slices):
            sequences.extend([line] * piece.count)
        lines = [piece.sequence.block_table for piece in batch.slices]
        width = max(len(line) for line in lines)
        return Tables(
            sequences=self._tensor(sequences),
            blocks=self._tensor([line + [0] * (width - len(line)) for line in lines]),
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
        block_size = self.cache.block_size
        blocks, num_keys = None, num_queries
        if any(piece.start for piece in pieces):
            width = -(-max(ends) // block_size)
            num_keys = width * block_size
            # Padding repeats block 0: masked, but it must be finite, which the cache guarantees.
            tables = (piece.sequence.block_table[:width] for piece in pieces)
            blocks = self._tensor([block for table in tables for block in table + [0] * (width - len(table))])
        queries = self._tensor([[end - num_queries + i for i in range(num_queries)] for end in ends])[:, None]
        dtype, window = self.cache.dtype, self.config.sliding_window
        return Region(
            first_row=first_row,
            num_sequences=len(pieces),
            num_queries=num_queries,
            blocks=blocks,
            mask=visibility_mask(queries, num_keys, window=None, dtype=dtype),
            local_mask=None if window is None else visibility_mask(queries, num_keys, window=window, dtype=dtype),
        )

    def _tensor(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _fitting_blocks(self, settings: EngineSettings, dtype: torch.dtype) -> int:
        """Return how many KV-cache blocks there will be; raise NotEnoughMemory before anything is allocated."""
        budget = budget_of(self.device, settings.gpu_memory_fraction)
        need = predict(
            self.config,
            settings,
            max_context=self.max_context,
            hidden_bytes=dtype.itemsize,
            kept_bytes=kept_dtype(settings.precision, self.device).itemsize,
            budget=budget,
        )
        require_room(need, budget, settings)
        return need.num_blocks


def _torch_device(name: str) -> torch.device:
    """Return the torch device for `cpu` or a GPU's UUID, which must be the only GPU this process sees."""
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InvalidSettings(
            f"device is {name}, but this torch ({torch.__version__}) sees no CUDA device; install a CUDA build "
            "of torch that fits the driver, or choose the device cpu"
        )
    found = str(torch.cuda.get_device_properties(0).uuid)
    if found.lower() not in name.lower():
        raise InvalidSettings(f"device is {name}, but the first GPU that torch sees is GPU-{found}")
    return torch.device("cuda:0")


def _last_rows(batch: Batch[Sequence]) -> list[int]:
    rows = []
    row = -1
    for piece in batch.slices:
        row += piece.count
        if piece.is_sampled:
            rows.append(row)
    return rows


def _max_context(settings: EngineSettings, limit: int) -> int:
    if settings.max_context is not None and settings.max_context > limit:
        raise InvalidSettings(f"max_context is {settings.max_context}; {settings.model} goes up to {limit} tokens")
    return settings.max_context or limit
