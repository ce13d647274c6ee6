"""Which tokens run in a step: one of every decode first, then prefill chunks inside the step's budget.

First come, first served: a request is never let in before one that arrived earlier. When a decode finds no free
block, the newest running sequence gives its blocks back and is recomputed later (preemption by recompute). A
sequence is let in only when blocks for all its known tokens are free, so the oldest one always gets to its end.
Knows nothing of tensors or time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.embedded.blocks import BlockPool
from engine.embedded.sequence import Sequence
from engine.errors import RequestRefused, RequestTooLong
from engine.request import FinishReason


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens [start, start + count) of a sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    count: int

    @property
    def is_sampled(self) -> bool:
        """Whether the slice reaches the last known token, so that the next one can be sampled."""
        return self.start + self.count == len(self.sequence.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes: decodes (one token each), then prefill chunks."""

    decodes: tuple[Slice, ...]
    prefills: tuple[Slice, ...]

    @property
    def slices(self) -> tuple[Slice, ...]:
        """All slices in the order of the step's rows."""
        return self.decodes + self.prefills

    @property
    def num_tokens(self) -> int:
        """Rows of the step."""
        return len(self.decodes) + sum(chunk.count for chunk in self.prefills)


class Scheduler:
    """Holds the waiting and the running sequences, both in order of arrival."""

    def __init__(self, pool: BlockPool, *, max_batch: int, prefill_chunk: int, max_context: int) -> None:
        self.pool = pool
        self.max_batch = max_batch
        self.prefill_chunk = prefill_chunk
        self.max_context = max_context
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        Raises RequestTooLong when prompt plus output exceed the context, RequestRefused when the whole KV cache
        could not hold it. Nothing is truncated.
        """
        request = sequence.request
        total = sequence.num_prompt_tokens + request.max_tokens
        if total > self.max_context:
            raise RequestTooLong(
                f"request {request.request_id}: {sequence.num_prompt_tokens} prompt tokens + max_tokens "
                f"{request.max_tokens} = {total}, but the context is {self.max_context} tokens"
            )
        # The last token sampled is never computed, so it needs no place.
        needed = self.pool.blocks_for(total - 1)
        if needed > self.pool.num_blocks:
            raise RequestRefused(
                f"request {request.request_id}: needs {needed} KV-cache blocks of {self.pool.block_size} tokens, "
                f"but num_kv_blocks is {self.pool.num_blocks}"
            )
        self.waiting.append(sequence)

    def schedule(self) -> Batch:
        """Choose the step's tokens and give their sequences the blocks to hold them."""
        decodes = self._schedule_decodes()
        budget = self.prefill_chunk
        prefills: list[Slice] = []
        for sequence in self.running:  # chunks that were begun go on first, oldest first
            if budget and not sequence.is_decoding:
                budget -= self._take_chunk(sequence, budget, prefills)
        while budget and (admitted := self._admit()) is not None:
            budget -= self._take_chunk(admitted, budget, prefills)
        return Batch(tuple(decodes), tuple(prefills))

    def computed(self, batch: Batch) -> None:
        """Note that a batch's keys and values are in the cache."""
        for piece in batch.slices:
            piece.sequence.num_computed += piece.count

    def finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a running or waiting sequence and take its blocks back."""
        sequence.finish_reason = reason
        sequence.error = error
        self.pool.release(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def _schedule_decodes(self) -> list[Slice]:
        decodes: list[Slice] = []
        for sequence in list(self.running):
            if sequence.is_decoding and self._make_room(sequence):
                decodes.append(Slice(sequence, sequence.num_computed, 1))
        return decodes

    def _make_room(self, sequence: Sequence) -> bool:
        """Give a decode its next block, preempting from the newest; False when it was itself preempted."""
        if sequence not in self.running:  # preempted for an older one in this very step
            return False
        while self.pool.missing_for(sequence, len(sequence.token_ids)) > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self.pool.grow(sequence, len(sequence.token_ids))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.pool.release(sequence)
        sequence.num_preemptions += 1
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)  # it arrived before everything that waits

    def _admit(self) -> Sequence | None:
        """Let the oldest waiting sequence in, if a place and blocks for its known tokens are free."""
        if not self.waiting or len(self.running) >= self.max_batch:
            return None
        sequence = self.waiting[0]
        if self.pool.blocks_for(len(sequence.token_ids)) > self.pool.num_free:
            return None
        self.waiting.popleft()
        self.pool.grow(sequence, len(sequence.token_ids))
        self.running.append(sequence)
        return sequence

    def _take_chunk(self, sequence: Sequence, budget: int, prefills: list[Slice]) -> int:
        count = min(budget, sequence.num_pending)
        prefills.append(Slice(sequence, sequence.num_computed, count))
        return count
