"""Which tokens run in a step: one of every decode first, then prefill chunks inside the step's budget.

Who goes first is `engine.embedded.order`'s: by arrival, or by class under the policy `priority`. When a decode finds no
free block, the last in that order gives its blocks back and is recomputed later (preemption by recompute). A sequence
is let in only when there are blocks for all its known tokens, so the first one always gets to its end. Under the policy
`prefill_first` decodes pause while there are prompts to compute.

A step costs as much as what changes in it, not as much as what runs: every decode gains one token a step, so it is
known beforehand at which step it needs its next block. Knows nothing of tensors or time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Generic

from engine.embedded.blocks import BlockPool
from engine.embedded.order import ArrivalOrder, PriorityOrder, S
from engine.errors import RequestRefused, RequestTooLong
from engine.request import FinishReason
from engine.settings import PRIORITY, prompt_budget


@dataclass(frozen=True, slots=True)
class Slice(Generic[S]):
    """Tokens [start, start + count) of a sequence, to be computed in this step."""

    sequence: S
    start: int
    count: int
    #: Whether it reaches the last known token, so that the next one is sampled.
    is_sampled: bool


@dataclass(frozen=True)
class Batch(Generic[S]):
    """What one step computes: one token of each decoding sequence, then prefill chunks."""

    #: In order of arrival, as they are until the batch is computed.
    decoding: Collection[S]
    prefills: tuple[Slice[S], ...]
    #: Sequences that had to give up their blocks for this step.
    preempted: tuple[S, ...] = ()

    @cached_property
    def decodes(self) -> tuple[Slice[S], ...]:
        """The decodes as slices; to be asked before anything was sampled."""
        return tuple(Slice(sequence, sequence.num_tokens - 1, 1, True) for sequence in self.decoding)

    @property
    def slices(self) -> tuple[Slice[S], ...]:
        """All slices in the order of the step's rows."""
        return self.decodes + self.prefills

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of the step; those computed once more after a preemption count again."""
        total = 0
        for piece in self.prefills:
            num_prompt = len(piece.sequence.request.prompt_token_ids)
            if piece.start < num_prompt:
                total += min(piece.count, num_prompt - piece.start)
        return total

    @property
    def num_tokens(self) -> int:
        """Rows of the step."""
        return len(self.decoding) + sum(chunk.count for chunk in self.prefills)


class Scheduler(Generic[S]):
    """Holds the waiting and the running sequences."""

    def __init__(
        self,
        pool: BlockPool[S],
        *,
        max_batch: int,
        prefill_chunk: int,
        max_context: int,
        policy: str = "decode_first",
        max_prefill_fraction: float = 1.0,
        longest_chunk: int | None = None,
        on_half_computed: Callable[[S], None] = lambda sequence: None,
    ) -> None:
        """Begin empty; `longest_chunk` is what one sequence may have of a step's `prefill_chunk`, else all of it.

        `on_half_computed` is told of a sequence that gives its blocks back before its prompt is computed.
        """
        self.pool = pool
        self.max_batch = max_batch
        self.prefill_chunk = prefill_chunk
        self.max_context = max_context
        self.policy = policy
        self.max_prefill_fraction = max_prefill_fraction
        self.longest_chunk = longest_chunk
        self._on_half_computed = on_half_computed
        self.waiting: ArrivalOrder[S] | PriorityOrder[S] = PriorityOrder() if policy == PRIORITY else ArrivalOrder()
        # In the order in which their prompts are computed: by arrival, without a longest chunk after all that decode.
        self._prefilling: list[S] = []
        # A decode needs a block every block_size steps: each with its turn, and the turns with theirs.
        self._decoding: dict[S, int] = {}
        self._turns: list[list[S]] = [[] for _ in range(pool.block_size)]
        self._decode_step = 0

    @property
    def running(self) -> list[S]:
        """The sequences that hold blocks, those that decode first."""
        return [*self._decoding, *self._prefilling]

    @property
    def decoding(self) -> Collection[S]:
        """Those of them that decode, as they are now."""
        return self._decoding.keys()

    @property
    def num_running(self) -> int:
        """How many those are."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self._decoding or self._prefilling or self.waiting)

    def add(self, sequence: S) -> None:
        """Queue a new sequence; raise what `require_room` does."""
        self.require_room(sequence)
        self.waiting.add(sequence)

    def require_room(self, sequence: S) -> None:
        """Refuse a sequence that could never be served.

        Raises RequestTooLong when prompt plus output exceed the context, RequestRefused when the whole KV cache
        could not hold it. Nothing is truncated.
        """
        request = sequence.request
        num_prompt = len(request.prompt_token_ids)
        total = num_prompt + request.max_tokens
        if total > self.max_context:
            raise RequestTooLong(
                f"request {request.request_id}: {num_prompt} prompt tokens + max_tokens "
                f"{request.max_tokens} = {total}, but the context is {self.max_context} tokens"
            )
        # The last token sampled is never computed, so it needs no place.
        needed = self.pool.blocks_for(total - 1)
        if needed > self.pool.num_blocks:
            raise RequestRefused(
                f"request {request.request_id}: needs {needed} KV-cache blocks of {self.pool.block_size} tokens, "
                f"but num_kv_blocks is {self.pool.num_blocks}"
            )

    def schedule(self) -> Batch[S]:
        """Choose the step's tokens and give their sequences the blocks to hold them."""
        preempted: list[S] = []
        if self.policy == "prefill_first" and (prefills := self._schedule_prefills(num_decodes=0)):
            return Batch((), prefills)
        decoding = self._schedule_decodes(preempted)
        return Batch(decoding, self._schedule_prefills(num_decodes=len(decoding)), tuple(preempted))

    def computed(self, batch: Batch[S]) -> None:
        """Note that a batch's keys and values are in the cache; to be called before what it sampled is noted.

        A sequence whose known tokens are all computed decodes from the next step on.
        """
        for piece in batch.prefills:
            piece.sequence.num_prefilled += piece.count
            if piece.is_sampled:
                self._prefilling.remove(piece.sequence)
                self._begin_decoding(piece.sequence)

    def finish(self, sequence: S, reason: FinishReason, error: str | None = None) -> None:
        """End a running or waiting sequence and take its blocks back."""
        sequence.finish_reason = reason
        sequence.error = error
        self.remove(sequence)

    def remove(self, sequence: S) -> None:
        """Take a sequence out, with its blocks, that has not ended: it goes on elsewhere."""
        if sequence in self._decoding or sequence in self._prefilling:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
        self.pool.release(sequence)
        self.waiting.forget(sequence)

    def steady_steps(self, limit: int) -> int:
        """Return how many of the next `limit` steps only run the decodes there are, unless one of them ends.

        Looks at most one block ahead.
        """
        if not self._decoding or self._prefilling or self._can_admit():
            return 0
        free = self.pool.num_free
        limit = min(limit, self.pool.block_size)
        for ahead in range(1, limit + 1):
            free -= len(self._due(self._decode_step + ahead))
            if free < 0:
                return ahead - 1
        return limit

    def skip(self, num_steps: int) -> None:
        """Take so many steady steps at once, as `schedule` and `computed` would one by one."""
        for _ in range(num_steps):
            self._schedule_decodes([])

    def _schedule_decodes(self, preempted: list[S]) -> Collection[S]:
        if not self._decoding:
            return ()
        self._decode_step += 1
        due = self._due(self._decode_step)
        if len(due) <= self.pool.num_free:
            self.pool.extend(due)
        else:
            self._make_room(due, preempted)
        return self._decoding.keys()

    def _due(self, step: int) -> list[S]:
        """Return the decodes that need a block at that decode step."""
        return self._turns[step % self.pool.block_size]

    def _make_room(self, due: list[S], preempted: list[S]) -> None:
        """Give a block to each that is due, the first in order first, preempting from the last."""
        for sequence in self.waiting.oldest_first(due, self._decoding):
            while sequence in self._decoding and not self.pool.num_free:
                preempted.append(self._preempt())
            if sequence in self._decoding:
                self.pool.extend((sequence,))

    def _preempt(self) -> S:
        victim = self.waiting.newest(self._decoding, self._prefilling)
        self._stop(victim)
        self.pool.release(victim)
        victim.num_preemptions += 1
        self.waiting.put_back(victim)
        return victim

    def _stop(self, sequence: S) -> None:
        """Take a sequence out of those that run; its blocks are to be released next."""
        if sequence in self._decoding:
            self._end_decoding(sequence)
        else:
            self._prefilling.remove(sequence)
            self._on_half_computed(sequence)

    def _begin_decoding(self, sequence: S) -> None:
        """Note when it needs its next block; its newest token, just sampled, has to fit in the next step."""
        room = len(sequence.block_table) * self.pool.block_size - (sequence.num_tokens + 1)
        turn = (self._decode_step + room + 2) % self.pool.block_size
        self._decoding[sequence] = turn
        self._turns[turn].append(sequence)

    def _end_decoding(self, sequence: S) -> None:
        self._turns[self._decoding.pop(sequence)].remove(sequence)

    def _schedule_prefills(self, *, num_decodes: int) -> tuple[Slice[S], ...]:
        """Share the budget of prompt tokens out: chunks that were begun go on first, if their order has it so."""
        budget = prompt_budget(self.prefill_chunk, self.max_prefill_fraction, num_decodes=num_decodes)
        prefills: list[Slice[S]] = []
        place = 0
        while budget:
            if self._goes_next(place):
                self._admit(place)
            elif place == len(self._prefilling):
                break
            budget -= self._take_chunk(self._prefilling[place], budget, prefills)
            place += 1
        return tuple(prefills)

    def _goes_next(self, place: int) -> bool:
        """Tell whether one that waits is let in, to compute its prompt before the one that has that place."""
        if not self.waiting:
            return False
        if place < len(self._prefilling) and not self.waiting.is_first_before(self._prefilling[place]):
            return False
        return self._can_admit()

    def _can_admit(self) -> bool:
        """Tell whether there is a place, and blocks for all its known tokens, for the first that waits."""
        return bool(self.waiting) and self.num_running < self.max_batch and self.pool.can_admit(self.waiting.first)

    def _admit(self, place: int) -> None:
        sequence = self.waiting.take(overtaken=self._prefilling[place:])
        self.pool.admit(sequence)
        self._prefilling.insert(place, sequence)

    def _take_chunk(self, sequence: S, budget: int, prefills: list[Slice[S]]) -> int:
        pending = sequence.num_tokens - sequence.num_prefilled
        count = min(budget, pending, self.longest_chunk or pending)
        prefills.append(Slice(sequence, sequence.num_prefilled, count, count == pending))
        return count
