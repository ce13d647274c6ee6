"""The engine's step on the tiny model: batching, chunks, preemption, stopping, cancelling, numerics."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.embedded import loop
from engine.embedded.loop import EmbeddedEngine, version_on
from engine.errors import NumericsError, RequestRefused, RequestTooLong
from engine.load import ClosedLoad, LiveLoad, Progress
from engine.request import FinishReason, Request
from tests.engine.conftest import OpenTiny
from tests.engine.logits import all_logits
from tests.engine.reference import load_reference, reference_tokens
from tests.engine.requests import make_request, serve, tokens_of
from tests.tiny_model import tiny_config, tiny_tensors, write_tiny_model

PROMPTS = [
    ("pass phrase is cobalt fig " + "123456789" * 30)[:length] + suffix
    for length, suffix in [(5, "12"), (17, "345"), (64, "6789"), (65, "10"), (200, "77")]
]


def make_requests(**changes: Any) -> list[Any]:
    return [make_request(text, request_id=f"r{i}", **changes) for i, text in enumerate(PROMPTS)]


@pytest.fixture(scope="module", name="lonely")
def _lonely(open_tiny: OpenTiny) -> EmbeddedEngine:
    """An engine that serves one request at a time, unchunked."""
    return open_tiny(max_batch=1, prefill_chunk=1000)


@pytest.mark.parametrize("prefill_chunk", [1, 16, 64, 65, 1000])
def test_answers_do_not_depend_on_the_batch(open_tiny: OpenTiny, lonely: EmbeddedEngine, prefill_chunk: int) -> None:
    """BUG-33: in fp32 a greedy answer is the same alone and in company, whatever the prefill chunk."""
    alone = [serve(lonely, [request])[0] for request in make_requests(max_tokens=12)]

    together = serve(open_tiny(max_batch=5, prefill_chunk=prefill_chunk), make_requests(max_tokens=12))

    assert tokens_of(together) == tokens_of(alone)


def test_answers_equal_the_reference(open_tiny: OpenTiny, tiny_folder: Path) -> None:
    """Greedy answers are those of transformers, token by token."""
    model = load_reference(tiny_folder)
    requests = make_requests(max_tokens=20)

    answers = tokens_of(serve(open_tiny(prefill_chunk=16), requests))

    assert answers == [reference_tokens(model, request.prompt_token_ids, 20) for request in requests]


@pytest.mark.parametrize("num_requests", [2, 3])
def test_preempted_requests_lose_nothing(open_tiny: OpenTiny, num_requests: int) -> None:
    """BUG-34: a request that is put back and recomputed gives the same tokens, each counted and delivered once."""
    requests = [make_request(f"req{i}", request_id=f"r{i}", max_tokens=101) for i in range(num_requests)]
    roomy = serve(open_tiny(max_batch=3), requests)

    tight = serve(open_tiny(max_batch=3, num_kv_blocks=10), requests)

    assert tokens_of(tight) == tokens_of(roomy)
    assert sum(record.num_preemptions for record in tight) >= num_requests - 1
    assert [len(record.token_times_s) for record in tight] == [101] * num_requests
    assert [record.text for record in tight] == [record.text for record in roomy]


def test_delivered_pieces_are_the_text(open_tiny: OpenTiny) -> None:
    """BUG-34: text streamed step by step, preemptions included, is the record's text: nothing twice."""
    opened = open_tiny(max_batch=3, num_kv_blocks=10)
    pieces = {"a": "", "b": ""}
    finished = {}
    for name in pieces:
        opened.add(make_request(f"req {name}", request_id=name, max_tokens=100))
    while opened.scheduler.has_work:
        result = opened.step()
        for name, text in result.texts:
            pieces[name] += text
        finished.update({record.request_id: record.text for record in result.progress.finished})

    assert pieces == finished


def test_no_block_is_lost_over_many_ends(open_tiny: OpenTiny) -> None:
    """BUG-35: after 300 requests that ended in every way, the pool is as free as when idle."""
    opened = open_tiny(num_kv_blocks=40)
    pending = [
        make_request(f"number {i}", request_id=f"r{i}", max_tokens=3 + i % 9, stop=("e",) if i % 5 == 0 else ())
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

    assert opened.pool.num_used == 0
    assert opened.cancel("r299") is None


def test_cancelled_requests_keep_what_they_had(open_tiny: OpenTiny) -> None:
    """A load that is stopped returns its requests in flight as cancelled, with their tokens, and leaves no block."""
    opened = open_tiny(max_batch=2)
    seen: list[Progress] = []

    def stop_after_five(progress: Progress) -> bool:
        seen.append(progress)
        return len(seen) < 5

    load = ClosedLoad(requests=iter(make_requests(max_tokens=100)), concurrency=2)
    records = opened.run(load, stop_after_five)

    assert {record.finish_reason for record in records} == {FinishReason.CANCELLED}
    assert sum(len(record.token_ids) for record in records) == sum(progress.num_tokens for progress in seen)
    assert opened.pool.num_used == 0


def test_tokens_are_named_of_live_loads_only(open_tiny: OpenTiny) -> None:
    """In this process, too, a live load tells each token's id as it comes, and the next closed load tells none."""
    opened = open_tiny()
    inbox: SimpleQueue[Request | None] = SimpleQueue()
    requests = make_requests(max_tokens=6)
    for item in (*requests, None):
        inbox.put(item)
    named: list[tuple[str, int]] = []

    def observe(progress: Progress) -> bool:
        named.extend(progress.token_ids)
        return True

    records = opened.run(LiveLoad(inbox=inbox), observe)
    told = {name: tuple(token for other, token in named if other == name) for name, _ in named}
    named.clear()
    opened.run(ClosedLoad(requests=iter(requests), concurrency=2), observe)

    assert told == {record.request_id: record.token_ids for record in records}
    assert len(told) == len(requests)
    assert named == []


@pytest.mark.parametrize("num_prompt", [127, 128, 129, 500])
def test_overlong_prompts_are_refused_and_the_engine_goes_on(open_tiny: OpenTiny, num_prompt: int) -> None:
    """BUG-38: what does not fit a window of 128 is refused with both numbers; the next one is served."""
    opened = open_tiny(max_context=128)
    request = make_request([65] * num_prompt, max_tokens=1)
    if num_prompt == 127:
        assert len(serve(opened, [request])[0].token_ids) == 1
    else:
        with pytest.raises(RequestTooLong, match=f"{num_prompt} prompt tokens .* the context is 128 tokens"):
            serve(opened, [request])

    assert len(serve(opened, [make_request("next", max_tokens=3)])[0].token_ids) == 3


def test_unknown_tokens_and_repeated_ids_are_refused(open_tiny: OpenTiny) -> None:
    """A token outside the vocabulary or an id that is in use is refused by name; nothing is queued."""
    opened = open_tiny()
    opened.add(make_request(request_id="a"))

    for token_id in (256, -1):
        with pytest.raises(RequestRefused, match=f"token id {token_id} is not in the vocabulary of 256"):
            opened.add(make_request([3, token_id], request_id="b"))
    with pytest.raises(RequestRefused, match="request a: a request of that id is already in the engine"):
        opened.add(make_request(request_id="a"))

    assert len(opened.scheduler.waiting) == 1


def test_stop_strings_end_the_text_before_them(open_tiny: OpenTiny) -> None:
    """BUG-37: the record ends before the stop string, with reason `stop`, wherever token borders fall."""
    plain = serve(open_tiny(), [make_request(max_tokens=60)])[0]
    middle = plain.text[len(plain.text) // 2 :][:3]
    expected = plain.text[: plain.text.index(middle)]

    stopped = serve(open_tiny(), [make_request(max_tokens=60, stop=(middle,))])[0]

    assert (stopped.text, stopped.finish_reason) == (expected, FinishReason.STOP)


def test_end_of_sequence_ends_unless_ignored(tmp_path: Path, open_tiny: OpenTiny) -> None:
    """The end token stops a request and is counted but not shown; ignore_eos goes on to max_tokens."""
    answer = serve(open_tiny(), [make_request(max_tokens=20)])[0].token_ids
    eos = answer[5]
    folder = write_tiny_model(tmp_path, eos_token_id=eos)

    stopped = serve(open_tiny(folder=folder), [make_request(max_tokens=20, ignore_eos=False)])[0]
    ignored = serve(open_tiny(folder=folder), [make_request(max_tokens=20)])[0]

    assert stopped.token_ids == answer[: answer.index(eos) + 1]
    assert stopped.finish_reason is FinishReason.STOP
    assert ignored.token_ids == answer


def test_sampling_depends_on_the_seed_alone(open_tiny: OpenTiny) -> None:
    """A sampled answer is the same alone, in company and after preemption, and another for another seed."""
    fields: dict[str, Any] = {"max_tokens": 101, "temperature": 1.5, "top_p": 0.9}
    alone = serve(open_tiny(), [make_request("abc", request_id="a", seed=1, **fields)])[0]
    company = [
        make_request("xyz", request_id="b", seed=2, **fields),
        make_request("abc", request_id="a", seed=1, **fields),
    ]
    tight = serve(open_tiny(num_kv_blocks=10), company)[1]
    other = serve(open_tiny(), [make_request("abc", request_id="a", seed=3, **fields)])[0]

    assert tight.num_preemptions > 0
    assert tight.token_ids == alone.token_ids
    assert other.token_ids != alone.token_ids


@given(
    spec=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=6),
    num_kv_blocks=st.integers(8, 16),
    prefill_chunk=st.integers(1, 80),
    max_batch=st.integers(1, 4),
)
@settings(max_examples=15, deadline=None)
def test_any_schedule_gives_the_same_tokens(
    open_tiny: OpenTiny,
    lonely: EmbeddedEngine,
    spec: list[tuple[int, int]],
    num_kv_blocks: int,
    prefill_chunk: int,
    max_batch: int,
) -> None:
    """BUG-33, BUG-34: whatever batch, chunk and cache size, each greedy answer is the one given alone."""
    requests = [
        make_request([(7 * i + j) % 256 for j in range(n)], request_id=f"r{i}", max_tokens=m)
        for i, (n, m) in enumerate(spec)
    ]
    alone = [serve(lonely, [request])[0] for request in requests]
    crowded = open_tiny(num_kv_blocks=num_kv_blocks, prefill_chunk=prefill_chunk, max_batch=max_batch)

    assert tokens_of(serve(crowded, requests)) == tokens_of(alone)
    assert crowded.pool.num_used == 0


@pytest.fixture(scope="module", name="overflowing")
def _overflowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose hidden values pass fp16's 65504 and stay inside fp32 and bf16."""
    tensors = tiny_tensors(tiny_config())
    tensors["model.layers.0.mlp.up_proj.weight"] *= 3000.0
    tensors["model.layers.0.mlp.down_proj.weight"] *= 300.0
    return write_tiny_model(tmp_path_factory.mktemp("overflow"), tensors=tensors)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_wide_precisions_survive_large_values(open_tiny: OpenTiny, overflowing: Path, precision: str) -> None:
    """BUG-39: what overflows fp16 is served as usual in fp32 and bf16."""
    record = serve(open_tiny(folder=overflowing, precision=precision), [make_request()])[0]

    assert record.finish_reason is FinishReason.LENGTH


def test_overflow_is_a_named_error_not_an_answer(open_tiny: OpenTiny, overflowing: Path) -> None:
    """BUG-39: non-finite logits end the request with a named error and no token, and `score` raises NumericsError."""
    opened = open_tiny(folder=overflowing, precision="fp16")

    record = serve(opened, [make_request()])[0]

    assert (record.finish_reason, record.token_ids) == (FinishReason.ERROR, ())
    assert record.error == "numerics: logits are not finite"
    with pytest.raises(NumericsError):
        opened.score(tuple(b"some text"))


def test_an_overflow_does_not_reach_the_next_owner_of_its_blocks(open_tiny: OpenTiny) -> None:
    """BUG-39: keys and values of a failed request are wiped, so that padding never meets a NaN."""
    opened = open_tiny(max_batch=2, num_kv_blocks=16)
    expected = tokens_of(serve(opened, make_requests(max_tokens=6)[:3]))
    with torch.inference_mode():
        for layer in opened.runner.cache.layers:
            layer[:] = float("nan")
    poisoned = opened.add(make_request(request_id="poisoned", max_tokens=4))
    opened.pool.grow(poisoned, 16 * 16)
    opened.runner.wipe(poisoned.block_table)
    opened.cancel("poisoned")

    assert tokens_of(serve(opened, make_requests(max_tokens=6)[:3])) == expected


def test_scores_are_log_probabilities_of_the_text(open_tiny: OpenTiny) -> None:
    """`score` gives, per position, the log-probability of the token that follows and the likeliest one."""
    opened = open_tiny(prefill_chunk=7)
    text = tuple(b"a text to be scored")

    scores = opened.score(text)

    expected = torch.log_softmax(all_logits(opened, text)[:-1], dim=-1)
    assert scores.logprobs == pytest.approx([float(row[token]) for row, token in zip(expected, text[1:], strict=True)],
                                            abs=1e-4)  # fmt: skip
    assert scores.top_token_ids == tuple(expected.argmax(dim=-1).tolist())
    assert opened.pool.num_used == 0


def test_scoring_more_than_the_context_is_refused(open_tiny: OpenTiny) -> None:
    """A text longer than the context is refused by its numbers, not cut."""
    with pytest.raises(RequestTooLong, match="300 tokens to score, but the context is 256"):
        open_tiny().score((1,) * 300)


def test_every_token_has_a_time(open_tiny: OpenTiny) -> None:
    """Token times are one per token, never before arrival, never falling."""
    for record in serve(open_tiny(), make_requests(max_tokens=9)):
        times = record.token_times_s

        assert len(times) == len(record.token_ids) == 9
        assert record.arrival_s <= times[0]
        assert list(times) == sorted(times)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8"])
def test_narrow_precisions_stay_close(open_tiny: OpenTiny, precision: str) -> None:
    """Each precision gives fp32's logits within what its rounding allows."""
    text = tuple(b"the quick brown fox jumps")
    exact, narrow = all_logits(open_tiny(), text), all_logits(open_tiny(precision=precision), text)

    relative = (narrow - exact).norm() / exact.norm()
    assert relative < {"bf16": 0.05, "fp16": 0.01, "int8": 0.05}[precision]


def test_the_version_tells_what_computes(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures with and without kernels, or graphs of a GPU, never share a fingerprint, as their versions differ."""
    told = []
    for kernels in (object(), None):
        monkeypatch.setattr(loop, "kernels_for", lambda device, found=kernels: found)
        told.append(version_on("cpu"))
        assert open_tiny().info.version == told[-1]

    assert told[0] == told[1] + "+kernels"
    assert version_on("GPU-1") == told[1] + "+graphs"
    monkeypatch.setenv("WATTFRONT_CUDA_GRAPHS", "off")
    assert version_on("GPU-1") == told[1]


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("ends", ["cancelled", "preempted"])
def test_a_half_computed_prompt_leaves_nothing_that_is_not_finite(
    open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch, ends: str, is_shared: bool
) -> None:
    """BUG-39: the blocks of a prompt that overflowed and was cancelled or put back harm nobody who gets them."""
    monkeypatch.setattr("engine.embedded.kv_cache.kernels_for", lambda device: None)
    opened = open_tiny(prefill_chunk=16, num_kv_blocks=8, prefix_caching=is_shared)
    decoding = opened.add(make_request("decodes", request_id="decodes", max_tokens=100))
    opened.step()
    ill = opened.add(make_request("x" * 90, request_id="ill", max_tokens=2))
    opened.step()
    with torch.inference_mode():
        for layer in opened.runner.cache.layers:
            layer[ill.block_table] = float("nan")
    blocks = list(ill.block_table)
    if ends == "cancelled":
        opened.cancel("ill")
    else:
        opened.set_prefill_chunk(1)
        while not ill.num_preemptions:
            opened.step()

    assert not [layer for layer in opened.runner.cache.layers if not layer[blocks].isfinite().all()]
    assert decoding.finish_reason is None
