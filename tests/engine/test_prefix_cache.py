"""Prompts that begin alike share blocks: who holds which, on random streams and by example, and equal answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.embedded.loop import EmbeddedEngine
from engine.embedded.prefix_cache import PrefixCache
from engine.embedded.sequence import Sequence
from engine.errors import EngineError, OutOfBlocks
from engine.load import ClosedLoad
from engine.request import LOWEST_PRIORITY, FinishReason, RequestRecord
from engine.settings import POLICIES, PRIORITY
from tests.engine.conftest import OpenTiny
from tests.engine.requests import make_request, serve, tokens_of
from tests.engine.scheduled import BLOCK_SIZE, Run, make_scheduler, sequence_of

PROMPTS = [
    ("pass phrase is cobalt fig " + "123456789" * 30)[:length] + suffix
    for length, suffix in [(5, "12"), (17, "345"), (64, "6789"), (65, "10"), (200, "77")]
]


def make_pool(num_blocks: int = 10) -> PrefixCache:
    return PrefixCache(num_blocks, BLOCK_SIZE)


def held_by(pool: PrefixCache, prompt: list[int], name: str = "r") -> Sequence:
    """Let a sequence in whose prompt is computed and shared."""
    sequence = sequence_of(name, prompt, 5)
    pool.admit(sequence)
    pool.share(sequence, len(prompt))
    return sequence


def texts(seed: int, lengths: list[int]) -> list[list[int]]:
    """Return prompts of two kinds, each kind alike up to the shorter's end."""
    return [[(place * (1 + (seed + i) % 2)) % 200 for place in range(length)] for i, length in enumerate(lengths)]


@given(
    stream=st.lists(
        st.tuples(st.integers(1, 100), st.integers(1, 60), st.integers(0, LOWEST_PRIORITY)), min_size=1, max_size=14
    ),
    num_blocks=st.integers(10, 40),
    max_batch=st.integers(1, 6),
    prefill_chunk=st.integers(1, 100),
    policy=st.sampled_from((*POLICIES, PRIORITY)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_random_streams_read_only_what_they_would_have_computed(
    stream: list[tuple[int, int, int]], num_blocks: int, max_batch: int, prefill_chunk: int, policy: str, seed: int
) -> None:
    """In any order of arrivals, ends, cancels and preemptions blocks hold their readers' own tokens; none is lost."""
    prompts = texts(seed, [length for length, _, _ in stream])
    coming = [
        sequence_of(f"r{i}", prompt, most, priority=rank)
        for i, (prompt, (_, most, rank)) in enumerate(zip(prompts, stream, strict=True))
    ]
    run = Run(
        make_scheduler(
            num_blocks=num_blocks, is_shared=True, max_batch=max_batch, prefill_chunk=prefill_chunk, policy=policy
        )
    )

    run.drive(coming, seed)

    pool = run.scheduler.pool
    assert (pool.num_used, pool.num_free) == (0, num_blocks)
    assert {*run.finished, *run.cancelled} == {*run.arrived}
    whole = sequence_of("whole", list(range(16 * num_blocks)), 1)
    pool.admit(whole)
    assert sorted(whole.block_table) == list(range(num_blocks))


def test_whole_blocks_are_found_but_not_the_last_token() -> None:
    """A second prompt takes the first's whole blocks; of the very same prompt the last token is computed once more."""
    pool = make_pool()
    first = held_by(pool, list(range(64)))

    same, longer, other = (
        held_by(pool, prompt)
        for prompt in (list(range(64)), [*range(40), 9, 9, 9, 9, 9, 9, 9, 9, 9], [1, *range(1, 20)])
    )

    assert (same.num_prefilled, same.block_table[:3]) == (48, first.block_table[:3])
    assert (longer.num_prefilled, longer.block_table[:2]) == (32, first.block_table[:2])
    assert other.num_prefilled == 0
    assert pool.hit_share == 80 / (64 + 64 + 49 + 20)


def test_the_same_tokens_after_others_are_not_the_same() -> None:
    """A block's key stands for all that came before it, so that equal tokens at another place are not found."""
    pool = make_pool()
    held_by(pool, [1] * 16 + [2] * 16)

    assert held_by(pool, [3] * 16 + [2] * 17).num_prefilled == 0


def test_nothing_is_shared_before_it_is_known_to_be_finite() -> None:
    """Blocks that are computed but of which nothing was sampled are nobody else's to read."""
    pool = make_pool()
    sequence = sequence_of("a", [1] * 40, 5)
    pool.admit(sequence)
    own = pool.own_blocks(sequence)
    second = sequence_of("b", [1] * 40, 5)
    pool.admit(second)
    pool.share(sequence, 40)

    assert own == sequence.block_table
    assert second.num_prefilled == 0
    assert pool.own_blocks(sequence) == sequence.block_table[2:]


def test_cached_blocks_are_free_and_overwritten_last() -> None:
    """Blocks without a holder are free; those let go first are overwritten first, a prompt's end before its start."""
    pool = make_pool(6)
    for tokens in ([1] * 32, [2] * 32):
        pool.release(held_by(pool, tokens))
    free = pool.num_free
    held_by(pool, [3] * 48)  # the two that hold nothing, and one more

    assert free == 6
    assert held_by(pool, [1] * 33).num_prefilled == 16


def test_what_others_hold_needs_no_room() -> None:
    """A prompt that is cached and held is let in where one of its length is not."""
    pool = make_pool(4)
    held_by(pool, [1] * 48)

    assert pool.can_admit(sequence_of("alike", [1] * 50, 5))
    assert not pool.can_admit(sequence_of("other", [2] * 50, 5))


def test_a_refused_sequence_changes_nothing() -> None:
    """Where there is no room the found blocks are let go again, and stay found."""
    pool = make_pool(4)
    pool.release(held_by(pool, [1] * 32))
    long = sequence_of("long", [1] * 32 + [2] * 60, 5)

    with pytest.raises(OutOfBlocks, match="4 KV-cache blocks needed, 2 free"):
        pool.admit(long)

    assert (long.block_table, long.num_prefilled, pool.num_free) == ([], 0, 4)
    assert held_by(pool, [1] * 33).num_prefilled == 32


def test_a_block_let_go_twice_is_noticed() -> None:
    """A double release is an error, not a block that is free and held."""
    pool = make_pool()
    sequence = held_by(pool, [1] * 20)
    stolen = list(sequence.block_table)
    pool.release(sequence)
    sequence.block_table.extend(stolen)

    with pytest.raises(EngineError, match="released twice"):
        pool.release(sequence)


def test_a_forgetful_pool_is_as_new() -> None:
    """After `forget` nothing is found, all is free, and the share of hits begins anew."""
    pool = make_pool()
    held_by(pool, [1] * 40)
    pool.release(held_by(pool, [1] * 40))
    holder = held_by(pool, [1] * 40)

    pool.forget()

    assert pool.hit_share is None
    assert held_by(pool, [1] * 40).num_prefilled == 0
    pool.release(holder)


@pytest.fixture(scope="module", name="expected")
def _expected(open_tiny: OpenTiny) -> list[tuple[int, ...]]:
    """What each prompt is answered alone, unchunked, without a cache."""
    lonely = open_tiny(max_batch=1, prefill_chunk=1000)
    return [serve(lonely, [request])[0].token_ids for request in make_requests(max_tokens=12)]


def make_requests(*, name: str = "r", **changes: Any) -> list[Any]:
    return [make_request(text, request_id=f"{name}{i}", **changes) for i, text in enumerate(PROMPTS)]


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("prefill_chunk", [1, 16, 64, 1000])
def test_answers_do_not_depend_on_the_cache(
    open_tiny: OpenTiny, expected: list[tuple[int, ...]], prefill_chunk: int, is_cached: bool
) -> None:
    """BUG-33: alone and together, found or computed, in chunks of any size, in fp32 the tokens are the same."""
    opened = open_tiny(max_batch=5, prefill_chunk=prefill_chunk, prefix_caching=is_cached)
    requests = [*make_requests(max_tokens=12), *make_requests(name="again", max_tokens=12)]

    one_by_one = serve(opened, requests, concurrency=1)
    found = opened.report()
    together = serve(opened, requests, concurrency=5)

    assert tokens_of(one_by_one) == tokens_of(together) == 2 * expected
    assert (found is not None) == is_cached
    assert found is None or (found.prefix_hit_share or 0.0) > 0.4
    assert opened.pool.num_used == 0


@pytest.mark.parametrize("num_requests", [2, 3])
def test_preempted_requests_lose_nothing(open_tiny: OpenTiny, num_requests: int) -> None:
    """BUG-34: one that is put back gives the same tokens with the cache, and finds what it computed before."""
    requests = [make_request(f"req{i}", request_id=f"r{i}", max_tokens=101) for i in range(num_requests)]
    roomy = serve(open_tiny(max_batch=3), requests)
    opened = open_tiny(max_batch=3, num_kv_blocks=10, prefix_caching=True)

    tight = serve(opened, requests)

    assert tokens_of(tight) == tokens_of(roomy)
    assert sum(record.num_preemptions for record in tight) >= num_requests - 1
    assert [len(record.token_times_s) for record in tight] == [101] * num_requests
    assert [record.text for record in tight] == [record.text for record in roomy]
    assert opened.pool.num_used == 0


def test_no_block_is_lost_over_many_ends(open_tiny: OpenTiny) -> None:
    """BUG-35: after 300 requests that ended in every way, the pool with its cached blocks is as free as when idle."""
    opened = open_tiny(num_kv_blocks=40, prefix_caching=True)
    pending = [
        make_request(
            f"one of {i % 7} beginnings that are long, number {i}",
            request_id=f"r{i}",
            max_tokens=3 + i % 9,
            stop=("e",) if i % 5 == 0 else (),
        )
        for i in range(300)
    ]
    for request in pending[:100]:
        opened.add(request)
        opened.cancel(request.request_id)  # while it waits
    for i, request in enumerate(pending[100:]):
        opened.add(request)
        opened.step()
        if i % 2:
            opened.cancel(request.request_id)  # during prefill or mid-stream
    while opened.scheduler.has_work:
        opened.step()

    assert (opened.pool.num_used, opened.pool.num_free) == (0, 40)


def test_no_load_finds_what_an_earlier_one_left(open_tiny: OpenTiny) -> None:
    """BUG-11: the second of two equal loads computes as many prompt tokens as the first, and finds as few."""
    opened = open_tiny(prefix_caching=True)
    seen = []
    for name in ("first", "second"):
        computed: list[int] = []

        def observe(progress: Any, computed: list[int] = computed) -> bool:
            computed.append(progress.num_prompt_tokens)
            return True

        load = ClosedLoad(requests=iter(make_requests(name=name, max_tokens=4)), concurrency=1)
        opened.run(load, observe)
        seen.append((sum(computed), opened.report()))

    assert seen[0] == seen[1]
    assert seen[0][0] < sum(map(len, PROMPTS))


@given(
    spec=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 30)), min_size=1, max_size=6),
    num_kv_blocks=st.integers(9, 16),
    prefill_chunk=st.integers(1, 80),
    max_batch=st.integers(1, 4),
)
@settings(max_examples=15, deadline=None)
def test_any_schedule_gives_the_same_tokens(
    open_tiny: OpenTiny, spec: list[tuple[int, int]], num_kv_blocks: int, prefill_chunk: int, max_batch: int
) -> None:
    """BUG-33, BUG-34: whatever batch, chunk and cache size, each greedy answer is the one given without a cache."""
    prompts = texts(0, [length for length, _ in spec])
    requests = [
        make_request(prompt, request_id=f"r{i}", max_tokens=most)
        for i, (prompt, (_, most)) in enumerate(zip(prompts, spec, strict=True))
    ]
    plain = open_tiny(max_batch=1, prefill_chunk=1000)
    crowded = open_tiny(
        num_kv_blocks=num_kv_blocks, prefill_chunk=prefill_chunk, max_batch=max_batch, prefix_caching=True
    )

    assert tokens_of(serve(crowded, requests)) == tokens_of(serve(plain, requests))
    assert crowded.pool.num_used == 0


def poison(opened: EmbeddedEngine, blocks: list[int]) -> None:
    """Make what the blocks hold not finite, as an overflow would."""
    with torch.inference_mode():
        for layer in opened.runner.cache.layers:
            layer[blocks] = float("nan")


def run_out(opened: EmbeddedEngine) -> dict[str, RequestRecord]:
    """Step until nothing is left; return what ended meanwhile."""
    records = {}
    while opened.scheduler.has_work:
        records.update({record.request_id: record for record in opened.step().progress.finished})
    return records


def test_what_is_not_finite_is_never_shared(open_tiny: OpenTiny) -> None:
    """BUG-39: a request that ends in non-finite logits leaves neither keys nor a hit, and others' blocks alone."""
    opened = open_tiny(max_batch=2, prefill_chunk=16, prefix_caching=True)
    text = "a beginning that two of them share, and then " + "some more " * 5
    expected = serve(open_tiny(), [make_request(text, max_tokens=20)])[0].token_ids
    healthy = opened.add(make_request(text, request_id="healthy", max_tokens=20))
    while healthy.num_output_tokens < 2:
        opened.step()
    ill = opened.add(make_request(text + "but not this", request_id="ill", max_tokens=20))
    opened.step()
    poison(opened, opened.pool.own_blocks(ill))
    own = opened.pool.own_blocks(ill)

    records = run_out(opened)

    assert ill.num_preemptions == 0
    assert records["ill"].finish_reason is FinishReason.ERROR
    assert records["healthy"].token_ids == expected
    assert all(bool(layer[own].isfinite().all()) for layer in opened.runner.cache.layers)
    opened.add(make_request(text + "but not this", request_id="after", max_tokens=20))
    assert run_out(opened)["after"].finish_reason is FinishReason.LENGTH


def test_scores_are_not_cached(open_tiny: OpenTiny, tiny_folder: Path) -> None:
    """A text that is scored twice has the same scores with the cache as without, and leaves no block held."""
    plain, cached = open_tiny(folder=tiny_folder), open_tiny(folder=tiny_folder, prefix_caching=True)
    tokens = tuple(b"a text of more than two whole blocks of tokens")
    serve(cached, [make_request(tokens)])

    assert [cached.score(tokens), cached.score(tokens)] == [plain.score(tokens)] * 2
    assert cached.pool.num_used == 0
