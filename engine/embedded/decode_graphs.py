"""Decode steps of a few fixed shapes, each recorded once as a CUDA graph and replayed: one launch for a whole step.

A step of n decodes is run as one of `bucket_of(n)` rows over block tables of a bucketed width. A padding row is token 0
at position 0 of a block of its own, the cache's last, which no sequence is given; a padding entry of a table repeats
block 0, which the mask hides. What a graph reads and writes (inputs, cache, logits) lies outside the memory that graphs
share, so that they may be replayed in any order.

Steps with prompts in them have no fixed shape and are not for here. Knows nothing of scheduling. It never ran on a GPU
yet: tests replay by calling the function again (docs/log.md, 2026-12-01).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Sequence as Rows

import torch

from engine.embedded.config import ModelConfig
from engine.embedded.decoder import Decoder
from engine.embedded.kv_cache import KVCache
from engine.embedded.precision import mode_of
from engine.embedded.scheduler import Slice
from engine.embedded.sequence import Sequence
from engine.embedded.step_builder import make_region, on_host
from engine.embedded.step_input import StepInput
from engine.errors import InvalidSettings

#: Rounding to these makes tables from Python's numbers in the midst of a step, which no capture allows.
_UNRECORDABLE_INPUTS = ("nvfp4", "mxfp4")
#: Of each row: token id, position, slot. Its blocks come after those of all rows.
_ROW_FIELDS = 3
#: Blocks of the narrowest table: below that, another graph saves nothing.
_MIN_WIDTH = 8

#: Makes a function's work repeatable: what it returns does that work again, on the same tensors.
Record = Callable[[Callable[[], None]], Callable[[], None]]


def can_record(config: ModelConfig, *, precision: str, device: torch.device) -> bool:
    """Tell whether decode steps can be graphs: on a GPU, where the host need not see a value in the midst of a step."""
    return (
        device.type == "cuda"
        and are_wanted()
        and not config.has_experts
        and mode_of(precision).inputs not in _UNRECORDABLE_INPUTS
    )


def are_wanted() -> bool:
    """Tell whether decode steps are to be graphs where they can be; WATTFRONT_CUDA_GRAPHS=off says no.

    Raises InvalidSettings for another word than `auto` and `off`.
    """
    wish = os.environ.get("WATTFRONT_CUDA_GRAPHS", "auto")
    if wish not in ("auto", "off"):
        raise InvalidSettings(f"WATTFRONT_CUDA_GRAPHS is {wish!r}; choose auto or off")
    return wish == "auto"


def bucket_of(count: int, limit: int) -> int:
    """Return the smallest of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, ... that holds `count`, but at most `limit`."""
    power = 1 << (count - 1).bit_length()
    between = power * 3 // 4
    return min(limit, between if power >= 32 and count <= between else power)


class DecodeGraphs:
    """Runs decodes as graphs, recording each shape when it is first met."""

    def __init__(self, model: Decoder, cache: KVCache, *, max_batch: int, max_context: int, record: Record) -> None:
        """Make room for the largest step; the last block of `cache` must be nobody's."""
        self._model = model
        self._cache = cache
        self._record = record
        self._max_batch = max_batch
        self._max_width = -(-max_context // cache.block_size)
        self._device = cache.layers[0].device
        self._inputs = torch.zeros(max_batch * (_ROW_FIELDS + self._max_width), dtype=torch.int64, device=self._device)
        self._logits = torch.zeros(max_batch, model.config.vocab_size, device=self._device)
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}

    def run(self, decodes: Rows[Slice[Sequence]]) -> torch.Tensor:
        """Compute decodes and return their fp32 logits (rows, vocab_size), which the next call overwrites."""
        num_blocks = max(piece.start // self._cache.block_size + 1 for piece in decodes)
        rows = bucket_of(len(decodes), self._max_batch)
        width = bucket_of(max(num_blocks, _MIN_WIDTH), self._max_width)
        inputs = on_host(self._padded(decodes, rows, width), self._device)
        self._inputs[: len(inputs)].copy_(inputs, non_blocking=True)
        if (rows, width) not in self._replays:
            self._replays[rows, width] = self._record(lambda: self._compute(rows, width))
        self._replays[rows, width]()
        return self._logits[: len(decodes)]

    def _padded(self, decodes: Rows[Slice[Sequence]], rows: int, width: int) -> list[int]:
        """Return token ids, positions and slots of all rows, then each row's blocks, one after the other."""
        block_size, scratch = self._cache.block_size, self._cache.num_blocks - 1
        num_padding = rows - len(decodes)
        token_ids = [piece.sequence.token_ids[piece.start] for piece in decodes]
        positions = [piece.start for piece in decodes]
        slots: list[int] = []
        blocks: list[int] = []
        for piece in decodes:
            table = piece.sequence.block_table[:width]
            slots.append(table[piece.start // block_size] * block_size + piece.start % block_size)
            blocks += table
            blocks += [0] * (width - len(table))
        return [
            *token_ids, *[0] * num_padding,
            *positions, *[0] * num_padding,
            *slots, *[scratch * block_size] * num_padding,
            *blocks, *[scratch] * (num_padding * width),
        ]  # fmt: skip

    def _compute(self, rows: int, width: int) -> None:
        """Run a step of that shape: from the inputs' tensor to that of the logits, with no value seen by the host."""
        used = self._inputs[: rows * (_ROW_FIELDS + width)]
        token_ids, positions, slots, blocks = torch.split(used, [rows, rows, rows, rows * width])
        region = make_region(
            positions[:, None],
            blocks,
            width * self._cache.block_size,
            first_row=0,
            window=self._model.config.sliding_window,
            dtype=self._cache.dtype,
        )
        step = StepInput(token_ids=token_ids, positions=positions, slots=slots, regions=(region,))
        self._logits[:rows].copy_(self._model.logits(self._model.forward(step)))


class CudaRecorder:
    """Records on one GPU; a `Record`. All its graphs share memory for what lives only within a replay."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own lacks types
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a replay of `function`, which is run once before: what libraries set up at first use is in no graph.

        https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs: warmed up, and captured, on a side stream.
        """
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            function()
        return graph.replay
