"""The scheduler's laws, on random request streams and by example. No tensors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.embedded.order import PATIENCE
from engine.embedded.sequence import Sequence
from engine.errors import RequestRefused, RequestTooLong
from engine.request import LOWEST_PRIORITY
from engine.settings import POLICIES, PRIORITY, prompt_budget
from tests.engine.scheduled import Run, make_scheduler, make_sequence, names_of

#: Prompt, output and class of each request.
streams = st.lists(
    st.tuples(st.integers(1, 90), st.integers(1, 60), st.integers(0, LOWEST_PRIORITY)), min_size=1, max_size=14
)
#: How a scheduler may be made, roomy or not.
shapes = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(10, 40),
        "max_batch": st.integers(1, 6),
        "prefill_chunk": st.integers(1, 100),
        "max_prefill_fraction": st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    }
)


def made(stream: list[tuple[int, int, int]]) -> list[Sequence]:
    return [make_sequence(f"r{i}", num, most, priority=rank) for i, (num, most, rank) in enumerate(stream)]


@given(stream=streams, shape=shapes, policy=st.sampled_from(POLICIES), seed=st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_random_streams_keep_every_law(
    stream: list[tuple[int, int, int]], shape: dict[str, Any], policy: str, seed: int
) -> None:
    """No KV block is lost or shared, no budget exceeded, arrival order kept, and every request finishes."""
    run = Run(make_scheduler(policy=policy, **shape))

    run.drive(made(stream), seed)

    assert run.scheduler.pool.num_used == 0
    assert {*run.finished, *run.cancelled} == {*run.arrived}
    assert run.admitted == [sequence for sequence in run.arrived if sequence in run.admitted]


@given(stream=streams, shape=shapes, seed=st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_classes_keep_every_law(stream: list[tuple[int, int, int]], shape: dict[str, Any], seed: int) -> None:
    """Under `priority` no block is lost, no budget exceeded, order kept within a class, and every request finishes."""
    run = Run(make_scheduler(policy=PRIORITY, **shape))

    run.drive(made(stream), seed)

    assert run.scheduler.pool.num_used == 0
    assert {*run.finished, *run.cancelled} == {*run.arrived}
    for rank in range(LOWEST_PRIORITY + 1):
        let_in = [sequence for sequence in run.admitted if sequence.request.priority == rank]
        assert let_in == [sequence for sequence in run.arrived if sequence in let_in]


@given(num_decodes=st.integers(0, 300), fraction=st.floats(0.01, 1.0), chunk=st.integers(1, 500))
def test_the_budget_is_the_largest_that_keeps_the_fraction(num_decodes: int, fraction: float, chunk: int) -> None:
    """One prompt token more would be above the chunk or the fraction; without decodes a step has the whole chunk."""
    budget = prompt_budget(chunk, fraction, num_decodes=num_decodes)

    def is_allowed(num_prompt: int) -> bool:
        is_within = num_prompt <= fraction * (num_decodes + num_prompt) * (1 + 1e-9) + 1e-9
        return num_prompt <= chunk and (is_within or not num_decodes or num_prompt == 1)

    assert is_allowed(budget)
    assert not is_allowed(budget + 1)


@pytest.mark.parametrize(("fraction", "num_prompt"), [(1.0, 32), (0.5, 2), (0.8, 8), (0.9, 18), (0.1, 1), (0.001, 1)])
def test_prompts_take_their_fraction_of_a_step(fraction: float, num_prompt: int) -> None:
    """Beside two decodes a step of fraction f has 2 f / (1 - f) prompt tokens, but at least one."""
    run = Run(make_scheduler(max_prefill_fraction=fraction))
    for name in ("a", "b"):
        run.add(make_sequence(name, 10, 5))
    run.step()
    run.add(make_sequence("c", 60, 5))

    batch = run.scheduler.schedule()

    assert (len(batch.decodes), sum(chunk.count for chunk in batch.prefills)) == (2, num_prompt)


def test_the_first_class_goes_first() -> None:
    """A request of a higher class is let in, and its prompt computed, before older ones, begun prompts included."""
    run = Run(make_scheduler(policy=PRIORITY, prefill_chunk=16, max_batch=3))
    for name, rank in (("low", 5), ("lower", 6)):
        run.add(make_sequence(name, 40, 5, priority=rank))
    run.step()
    for name, rank in (("low2", 5), ("high", 0), ("high2", 0)):
        run.add(make_sequence(name, 20, 5, priority=rank))

    batches = []
    for _ in range(3):
        batches.append(
            [(piece.sequence.request.request_id, piece.count) for piece in run.scheduler.schedule().prefills]
        )
        run.step()

    assert batches[0] == [("high", 16)]
    assert names_of(run.admitted)[:3] == ["low", "high", "high2"]
    assert names_of(list(run.scheduler.waiting)) == ["low2", "lower"]


def test_the_lowest_class_gives_way() -> None:
    """Without a free block the newest of the lowest class is preempted; it comes back as of the first class."""
    scheduler = make_scheduler(policy=PRIORITY, num_blocks=6, prefill_chunk=100)
    run = Run(scheduler)
    low, lower, high = (
        make_sequence(name, 31, 30, priority=rank) for name, rank in (("low", 1), ("lower", 2), ("high", 0))
    )
    for sequence in (low, lower, high):
        run.add(sequence)
    for _ in range(3):
        run.step()
    preempted = [sequence.num_preemptions for sequence in (low, lower, high)]
    while lower not in scheduler.running:
        run.step()
    newer = make_sequence("newer", 31, 30, priority=0)
    run.add(newer)
    while scheduler.has_work:
        run.step()

    assert preempted == [0, 1, 0]
    assert lower.num_preemptions == 1
    assert {*run.finished} == {low, lower, high, newer}


def test_nobody_waits_for_ever() -> None:
    """While requests of the first class come without end, one of the last class is let in after PATIENCE of them."""
    run = Run(make_scheduler(policy=PRIORITY, max_batch=1, prefill_chunk=100))
    run.add(make_sequence("running", 10, 1))
    run.step()
    run.add(make_sequence("last", 10, 3, priority=LOWEST_PRIORITY))
    for i in range(2 * PATIENCE):
        run.add(make_sequence(f"first{i}", 10, 3))

    while run.scheduler.has_work:
        run.step()

    assert names_of(run.finished).index("last") == 1 + PATIENCE


def test_a_begun_prompt_is_not_overtaken_for_ever() -> None:
    """A prompt of the last class that was begun goes on though the first class fills every step's budget."""
    run = Run(make_scheduler(policy=PRIORITY, max_batch=3, prefill_chunk=16))
    begun = make_sequence("begun", 64, 1, priority=LOWEST_PRIORITY)
    run.add(begun)
    run.step()
    for i in range(PATIENCE + 3):
        run.add(make_sequence(f"first{i}", 16, 1))
        run.step()

    assert begun.finish_reason is not None
    assert names_of(run.finished).index("begun") == PATIENCE


@given(stream=streams, shape=shapes, most=st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_a_crowd_of_the_first_class_starves_nobody(
    stream: list[tuple[int, int, int]], shape: dict[str, Any], most: int
) -> None:
    """Whatever is asked of lower classes is served while the first class never ceases to wait."""
    run = Run(make_scheduler(policy=PRIORITY, **shape))
    asked = made(stream)
    for sequence in asked:
        run.add(sequence)
    num_steps = 0
    while not {*asked} <= {*run.finished}:
        while sum(not sequence.request.priority for sequence in run.scheduler.waiting) < most:
            run.add(make_sequence(f"more{len(run.arrived)}", 20, 20))
        run.step()
        num_steps += 1
        assert num_steps < 20_000

    assert run.cancelled == []


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

    assert names_of(run.finished) == ["exact"]


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
