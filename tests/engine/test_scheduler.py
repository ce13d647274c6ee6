"""The scheduler's laws, on random request streams and by example. No tensors."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.embedded.blocks import BlockPool
from engine.embedded.scheduler import Batch, Scheduler
from engine.embedded.sequence import Sequence
from engine.errors import RequestRefused, RequestTooLong
from engine.request import FinishReason
from tests.engine.requests import make_request

MAX_CONTEXT = 200


def make_scheduler(*, num_blocks: int = 64, max_batch: int = 4, prefill_chunk: int = 32) -> Scheduler[Sequence]:
    return Scheduler(
        BlockPool(num_blocks, 16), max_batch=max_batch, prefill_chunk=prefill_chunk, max_context=MAX_CONTEXT
    )


def make_sequence(name: str, num_prompt: int, max_tokens: int) -> Sequence:
    request = make_request([1] * num_prompt, request_id=name, max_tokens=max_tokens)
    return Sequence.of(request, 0.0)


@dataclass
class Run:
    """Drives a scheduler as the engine does, checking its laws at every step."""

    scheduler: Scheduler[Sequence]
    arrived: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)
        self.arrived.append(sequence.request.request_id)

    def step(self) -> None:
        batch = self.scheduler.schedule()
        self.check(batch)
        sampled = [piece.sequence for piece in batch.slices if piece.is_sampled]
        self.scheduler.computed(batch)
        for piece in batch.slices:
            sequence = piece.sequence
            if sequence.request.request_id not in self.admitted:
                self.admitted.append(sequence.request.request_id)
            if sequence in sampled:
                sequence.token_ids.append(7)
                if sequence.num_output_tokens == sequence.request.max_tokens:
                    self.scheduler.finish(sequence, FinishReason.LENGTH)
                    self.finished.append(sequence.request.request_id)

    def check(self, batch: Batch[Sequence]) -> None:
        scheduler = self.scheduler
        assert batch.num_tokens > 0, "a step with work must advance something"
        assert len(batch.decodes) <= scheduler.max_batch
        assert sum(chunk.count for chunk in batch.prefills) <= scheduler.prefill_chunk
        assert len(scheduler.running) <= scheduler.max_batch
        sequences = [piece.sequence for piece in batch.slices]
        assert len({id(sequence) for sequence in sequences}) == len(sequences)
        assert all(chunk.start == chunk.sequence.num_prefilled for chunk in batch.prefills)
        for piece in batch.slices:
            assert len(piece.sequence.block_table) * 16 >= piece.start + piece.count
        held = [block for sequence in scheduler.running for block in sequence.block_table]
        assert len(set(held)) == len(held) == scheduler.pool.num_used, "no block is shared, none is lost"
        assert all(not sequence.block_table for sequence in scheduler.waiting)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 60)), min_size=1, max_size=14),
    num_blocks=st.integers(10, 40),
    max_batch=st.integers(1, 6),
    prefill_chunk=st.integers(1, 100),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_random_streams_keep_every_law(
    lengths: list[tuple[int, int]], num_blocks: int, max_batch: int, prefill_chunk: int, seed: int
) -> None:
    """No KV block is lost or shared, no budget exceeded, arrival order kept, and every request finishes."""
    run = Run(make_scheduler(num_blocks=num_blocks, max_batch=max_batch, prefill_chunk=prefill_chunk))
    draw = random.Random(seed)
    coming = [make_sequence(f"r{i}", *length) for i, length in enumerate(lengths)]
    cancelled: set[str] = set()
    num_steps = 0
    while coming or run.scheduler.has_work:
        while coming and (draw.random() < 0.4 or not run.scheduler.has_work):
            run.add(coming.pop(0))
        if draw.random() < 0.05:
            victim = draw.choice([*run.scheduler.running, *run.scheduler.waiting])
            run.scheduler.finish(victim, FinishReason.CANCELLED)
            cancelled.add(victim.request.request_id)
        if run.scheduler.has_work:
            run.step()
        num_steps += 1
        assert num_steps < 20_000, "no endless loop"

    assert run.scheduler.pool.num_used == 0
    assert set(run.finished) | cancelled == set(run.arrived)
    assert run.admitted == [name for name in run.arrived if name in run.admitted]


def test_decodes_go_before_prefill_chunks() -> None:
    """A step carries one token of every decode and then prompt tokens up to the chunk."""
    run = Run(make_scheduler(prefill_chunk=16))
    run.add(make_sequence("a", 10, 5))
    run.step()
    run.add(make_sequence("b", 40, 5))

    batch = run.scheduler.schedule()

    assert [piece.sequence.request.request_id for piece in batch.decodes] == ["a"]
    assert [(piece.start, piece.count) for piece in batch.prefills] == [(0, 16)]


def test_the_newest_gives_way_when_blocks_run_out() -> None:
    """A decode without a free block takes the newest sequence's blocks; that one waits at the front of the queue."""
    scheduler = make_scheduler(num_blocks=4, prefill_chunk=100)
    run = Run(scheduler)
    old, new, later = (make_sequence(name, 31, 20) for name in ("old", "new", "later"))
    for sequence in (old, new, later):
        run.add(sequence)

    for _ in range(3):
        run.step()

    assert scheduler.running == [old]
    assert list(scheduler.waiting) == [new, later]
    assert (old.num_preemptions, new.num_preemptions, new.num_prefilled) == (0, 1, 0)


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    """BUG-38: the refusal has both numbers, and nothing is queued or truncated."""
    scheduler = make_scheduler()

    with pytest.raises(RequestTooLong, match=r"190 prompt tokens \+ max_tokens 20 = 210, but the context is 200"):
        scheduler.add(make_sequence("long", 190, 20))

    assert not scheduler.has_work


def test_a_request_that_can_never_fit_is_refused() -> None:
    """BUG-34: a request larger than the whole KV cache is refused instead of being preempted for ever."""
    scheduler = make_scheduler(num_blocks=4)

    with pytest.raises(RequestRefused, match="needs 5 KV-cache blocks of 16 tokens, but num_kv_blocks is 4"):
        scheduler.add(make_sequence("huge", 50, 16))


def test_the_last_token_needs_no_place() -> None:
    """A request that fills the cache exactly, its last token never being computed, is let in and finishes."""
    run = Run(make_scheduler(num_blocks=4, prefill_chunk=100))
    run.add(make_sequence("exact", 50, 15))

    while run.scheduler.has_work:
        run.step()

    assert run.finished == ["exact"]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(2, 60)), min_size=1, max_size=8),
    num_blocks=st.integers(8, 30),
    limit=st.integers(1, 20),
)
@settings(max_examples=100, deadline=None)
def test_steady_steps_are_what_single_steps_would_do(
    lengths: list[tuple[int, int]], num_blocks: int, limit: int
) -> None:
    """As many steps as are called steady run all decodes and nothing else, and skipping them ends in the same place."""
    one_by_one, at_once = (Run(make_scheduler(num_blocks=num_blocks)) for _ in range(2))
    for run in (one_by_one, at_once):
        for i, length in enumerate(lengths):
            run.add(make_sequence(f"r{i}", *length))
        for _ in range(6):
            if run.scheduler.has_work:
                run.step()

    steady = at_once.scheduler.steady_steps(limit)
    ends = min((s.request.max_tokens - s.num_output_tokens for s in at_once.scheduler.decoding), default=0)
    num_steps = min(steady, ends - 1)
    for _ in range(num_steps):
        before = list(one_by_one.scheduler.running)
        batch = one_by_one.scheduler.schedule()
        assert (list(batch.decoding), batch.prefills, batch.preempted) == (before, (), ())
        for sequence in batch.decoding:
            sequence.token_ids.append(7)
    if num_steps > 0:
        at_once.scheduler.skip(num_steps)

    tables = [[s.block_table for s in run.scheduler.running] for run in (one_by_one, at_once)]
    assert tables[0] == tables[1]
