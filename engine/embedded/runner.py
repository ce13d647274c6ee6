"""A batch to logits: runs the decoder over the cache, decodes by themselves as graphs. Decides nothing."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from engine.embedded.config import load_config
from engine.embedded.decode_graphs import CudaRecorder, DecodeGraphs, can_record
from engine.embedded.decoder import Decoder
from engine.embedded.free_memory import budget_of, trim_heap
from engine.embedded.kv_cache import KVCache
from engine.embedded.linears import capability_of, hidden_dtype, kept_dtype, prepare_device
from engine.embedded.memory import predict, require_room
from engine.embedded.precision import is_native, require_native
from engine.embedded.scheduler import Batch
from engine.embedded.sequence import Sequence
from engine.embedded.step_builder import StepBuilder, to_device
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
        self._has_graphs = can_record(self.config, precision=settings.precision, device=self.device)
        self.num_blocks = self._fitting_blocks(settings, dtype)
        with torch.inference_mode():
            self.cache = KVCache(
                self.config,
                num_blocks=self.num_blocks + self._has_graphs,  # one that no sequence is given, for padding
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
            self._graphs = self._decode_graphs(settings.max_batch)
        self._steps = StepBuilder(self.cache, window=self.config.sliding_window, device=self.device)
        trim_heap()

    @torch.inference_mode()
    def run(self, batch: Batch[Sequence], *, all_rows: bool = False) -> torch.Tensor:
        """Compute a batch and return fp32 logits: of the sampled slices in order, or of every row.

        They hold until the next call.
        """
        if self._graphs is not None and not batch.prefills:
            return self._graphs.run(batch.decodes)
        hidden = self.model.forward(self._steps.build(batch))
        if not all_rows:
            hidden = hidden[to_device(_last_rows(batch), self.device)]
        return self.model.logits(hidden)

    def wipe(self, blocks: list[int]) -> None:
        """Zero blocks that may hold non-finite values."""
        with torch.inference_mode():
            self.cache.wipe(blocks)

    def _decode_graphs(self, max_batch: int) -> DecodeGraphs | None:
        if not self._has_graphs:
            return None
        return DecodeGraphs(
            self.model,
            self.cache,
            max_batch=max_batch,
            max_context=self.max_context,
            record=CudaRecorder(self.device),
        )

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
            has_graphs=self._has_graphs,
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
