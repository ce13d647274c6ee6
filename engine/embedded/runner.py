"""A batch to logits: turns slices into tensors, runs the decoder, and keeps the cache. Decides nothing."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch

from engine.embedded.attention import Region, visibility_mask
from engine.embedded.config import ModelConfig, load_config
from engine.embedded.kv_cache import KVCache
from engine.embedded.llama import Llama, StepInput
from engine.embedded.quantize import hidden_dtype
from engine.embedded.scheduler import Batch, Slice
from engine.embedded.sequence import Sequence
from engine.embedded.weights import Weights
from engine.errors import InvalidSettings, NotEnoughMemory
from engine.settings import EngineSettings

#: Share of free memory that a KV cache of unstated size may take.
_KV_SHARE_OF_FREE = 0.4


class ModelRunner:
    """A model with its cache on one torch device."""

    def __init__(self, folder: Path, settings: EngineSettings) -> None:
        self.config = load_config(folder)
        self.device = _torch_device(settings.device)
        torch.set_num_threads(settings.num_threads or len(os.sched_getaffinity(0)))
        self.max_context = _max_context(settings, self.config.usable_context)
        self.num_blocks = _num_blocks(self.config, settings, self.max_context, self.device)
        dtype = hidden_dtype(settings.precision)
        self._require_memory(settings, dtype)
        with torch.inference_mode():
            self.model = Llama(
                self.config,
                Weights(folder),
                precision=settings.precision,
                max_context=self.max_context,
                device=self.device,
            )
            self.cache = KVCache(
                self.config,
                num_blocks=self.num_blocks,
                block_size=settings.block_size,
                dtype=dtype,
                device=self.device,
            )

    @torch.inference_mode()
    def run(self, batch: Batch[Sequence], *, all_rows: bool = False) -> torch.Tensor:
        """Compute a batch and return fp32 logits: of the sampled slices in order, or of every row."""
        hidden = self.model.forward(self._step_input(batch), self.cache)
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
            regions=self._regions(batch),
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
        dtype, window = self.cache.layers[0].dtype, self.config.sliding_window
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

    def _require_memory(self, settings: EngineSettings, dtype: torch.dtype) -> None:
        """Refuse before allocating what would drive the machine into swap."""
        per_weight = 1 if settings.precision == "int8" else dtype.itemsize
        # One layer's fp32 weights and its packed copy exist side by side while loading.
        weights = self.config.num_parameters * per_weight + 4 * self.config.vocab_size * self.config.hidden_size
        cache = self.num_blocks * settings.block_size * self.config.kv_bytes_per_token(dtype.itemsize)
        free = _free_bytes(self.device)
        if weights + cache > free:
            raise NotEnoughMemory(
                f"{settings.model} in {settings.precision} needs {weights / 2**30:.2f} GiB for weights and "
                f"{cache / 2**30:.2f} GiB for {self.num_blocks} KV-cache blocks; {free / 2**30:.2f} GiB are free"
            )


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


def _num_blocks(config: ModelConfig, settings: EngineSettings, max_context: int, device: torch.device) -> int:
    per_sequence = -(-max_context // settings.block_size)
    if settings.num_kv_blocks is not None:
        return settings.num_kv_blocks
    block_bytes = settings.block_size * config.kv_bytes_per_token(hidden_dtype(settings.precision).itemsize)
    affordable = int(_KV_SHARE_OF_FREE * _free_bytes(device)) // block_bytes
    return max(per_sequence, min(settings.max_batch * per_sequence, affordable))


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
