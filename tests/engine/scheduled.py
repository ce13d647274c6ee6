"""Sequences without tensors, and a driver that takes a scheduler's steps as the engine does, checking its laws."""

from __future__ import annotations

import random
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

from engine.embedded.blocks import BlockPool
from engine.embedded.prefix_cache import PrefixCache
from engine.embedded.scheduler import Batch, Scheduler
from engine.embedded.sequence import Sequence
from engine.request import FinishReason
from tests.engine.requests import make_request

MAX_CONTEXT = 200
BLOCK_SIZE = 16


def make_scheduler(*, num_blocks: int = 64, is_shared: bool = False, **changes: Any) -> Scheduler[Sequence]:
    """Build a scheduler; `is_shared` gives it a prefix cache."""
    pool = PrefixCache(num_blocks, BLOCK_SIZE) if is_shared else BlockPool[Sequence](num_blocks, BLOCK_SIZE)
    fields: dict[str, Any] = {"max_batch": 4, "prefill_chunk": 32, "max_context": MAX_CONTEXT}
    return Scheduler(pool, **fields | changes)


def make_sequence(name: str, num_prompt: int, max_tokens: int, *, priority: int = 0) -> Sequence:
    return sequence_of(name, [1] * num_prompt, max_tokens, priority=priority)


def sequence_of(name: str, prompt: Items[int], max_tokens: int, *, priority: int = 0) -> Sequence:
    return Sequence.of(make_request(prompt, request_id=name, max_tokens=max_tokens, priority=priority), 0.0)


@dataclass
class Run:
    """Drives a scheduler as the engine does, checking its laws at every step."""

    scheduler: Scheduler[Sequence]
    arrived: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    cancelled: list[Sequence] = field(default_factory=list)
    #: What each block holds: all tokens up to each of its places.
    contents: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)
        self.arrived.append(sequence)

    def step(self) -> None:
        batch = self.scheduler.schedule()
        self.check(batch)
        self.compute(batch)
        sampled = [piece for piece in batch.slices if piece.is_sampled]
        self.admitted.extend(piece.sequence for piece in batch.prefills if piece.sequence not in self.admitted)
        self.scheduler.computed(batch)
        for piece in sampled:
            sequence, pool = piece.sequence, self.scheduler.pool
            if isinstance(pool, PrefixCache):
                pool.share(sequence, piece.start + piece.count)
            sequence.token_ids.append(7)
            if sequence.num_output_tokens == sequence.request.max_tokens:
                self.scheduler.finish(sequence, FinishReason.LENGTH)
                self.finished.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence, FinishReason.CANCELLED)
        self.cancelled.append(sequence)

    def drive(self, coming: list[Sequence], seed: int) -> None:
        """Let sequences arrive and be cancelled at random until none is left."""
        draw = random.Random(seed)
        num_steps = 0
        while coming or self.scheduler.has_work:
            while coming and (draw.random() < 0.4 or not self.scheduler.has_work):
                self.add(coming.pop(0))
            if draw.random() < 0.05:
                self.cancel(draw.choice([*self.scheduler.running, *self.scheduler.waiting]))
            if self.scheduler.has_work:
                self.step()
            num_steps += 1
            assert num_steps < 20_000, "no endless loop"

    def check(self, batch: Batch[Sequence]) -> None:
        scheduler = self.scheduler
        num_prompt = sum(chunk.count for chunk in batch.prefills)
        num_decodes, fraction = len(batch.decodes), scheduler.max_prefill_fraction
        assert batch.num_tokens > 0, "a step with work must advance something"
        assert num_decodes <= scheduler.max_batch
        assert num_prompt <= scheduler.prefill_chunk
        assert not num_decodes or num_prompt <= max(1, fraction * (num_decodes + num_prompt) + 1e-6)
        assert len(scheduler.running) <= scheduler.max_batch
        sequences = [piece.sequence for piece in batch.slices]
        assert len({id(sequence) for sequence in sequences}) == len(sequences)
        assert all(chunk.start == chunk.sequence.num_prefilled for chunk in batch.prefills)
        for piece in batch.slices:
            assert len(piece.sequence.block_table) * BLOCK_SIZE >= piece.start + piece.count
        assert all(not sequence.block_table for sequence in scheduler.waiting)
        self.check_blocks()

    def check_blocks(self) -> None:
        """No block is lost, and none is shared but by a prefix cache."""
        pool = self.scheduler.pool
        held = [block for sequence in self.scheduler.running for block in sequence.block_table]
        assert len(set(held)) == pool.num_used == pool.num_blocks - pool.num_free
        assert isinstance(pool, PrefixCache) or len(set(held)) == len(held)
        assert all(len(set(sequence.block_table)) == len(sequence.block_table) for sequence in self.scheduler.running)

    def compute(self, batch: Batch[Sequence]) -> None:
        """Write what a step computes into its blocks, after looking whether they hold what it builds on."""
        written = [self.place_of(piece.sequence, at) for piece in batch.slices for at in span(piece.start, piece.count)]
        assert len(set(written)) == len(written)
        for piece in batch.slices:
            sequence = piece.sequence
            for at in range(piece.start):
                assert self.contents[self.place_of(sequence, at)] == tuple(sequence.token_ids[: at + 1])
            assert self.readers_of(sequence, piece.start) == 1
        for piece in batch.slices:
            for at in span(piece.start, piece.count):
                self.contents[self.place_of(piece.sequence, at)] = tuple(piece.sequence.token_ids[: at + 1])

    def place_of(self, sequence: Sequence, at: int) -> tuple[int, int]:
        return sequence.block_table[at // BLOCK_SIZE], at % BLOCK_SIZE

    def readers_of(self, sequence: Sequence, at: int) -> int:
        """Count the sequences that hold the block of a token and those after it."""
        blocks = set(sequence.block_table[at // BLOCK_SIZE :])
        return sum(bool(blocks & set(other.block_table)) for other in self.scheduler.running)


def span(start: int, count: int) -> range:
    return range(start, start + count)


def names_of(sequences: Items[Sequence]) -> list[str]:
    return [sequence.request.request_id for sequence in sequences]
