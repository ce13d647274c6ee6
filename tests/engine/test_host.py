"""An engine in a child process: same answers, and a death that is named and costs nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from engine.errors import CheckpointError, EngineDied, InvalidSettings, NumericsError, RequestTooLong
from engine.host import EngineHost
from engine.load import ClosedLoad, LiveLoad, LoadReport, OpenLoad, Progress, TimedRequest
from engine.request import FinishReason, Request
from engine.settings import EngineSettings
from tests.engine.conftest import OpenTiny
from tests.engine.requests import make_request, serve, tokens_of
from tests.tiny_model import tiny_config, tiny_tensors, write_tiny_model


def open_host(folder: Path, *, silence_s: float = 60.0, **settings: Any) -> EngineHost:
    chosen: dict[str, Any] = {"max_batch": 4, "prefill_chunk": 64, "num_threads": 1, "max_context": 256}
    return EngineHost(EngineSettings(model="tiny", **chosen | settings), folder, model_hash="abc", silence_s=silence_s)


@pytest.fixture(name="host")
def _host(tiny_folder: Path) -> Iterator[EngineHost]:
    """A host on the tiny model, for whoever ends its child."""
    opened = open_host(tiny_folder)
    yield opened
    opened.close()


@pytest.fixture(name="lasting", scope="module")
def _lasting(tiny_folder: Path) -> Iterator[EngineHost]:
    """A host on the tiny model that serves one test after another: a child takes seconds to start."""
    opened = open_host(tiny_folder)
    yield opened
    opened.close()


def endless(**changes: Any) -> Iterator[Request]:
    return (make_request(f"prompt {i}", request_id=f"r{i}", **changes) for i in count())


def test_a_host_tells_what_its_engine_reports(lasting: EngineHost, tiny_folder: Path) -> None:
    """How much of a load's prompts was found comes over from the child; without a cache there is nothing to tell."""
    with contextlib.closing(open_host(tiny_folder, prefix_caching=True)) as cached:
        requests = [make_request([1] * 40, request_id=f"r{i}") for i in range(2)]
        cached.run(ClosedLoad(requests=iter(requests), concurrency=1), lambda _: True)
        report = cached.report()

    assert report == LoadReport(prefix_hit_share=32 / 80)
    assert lasting.report() is None


def test_a_host_answers_like_the_engine_itself(lasting: EngineHost, open_tiny: OpenTiny) -> None:
    """Tokens, texts, scores and encodings are those of the engine in this process."""
    requests = [make_request(f"prompt {i}", request_id=f"r{i}", max_tokens=5 + i) for i in range(40)]
    own = open_tiny()

    records = {r.request_id: r for r in lasting.run(ClosedLoad(requests=iter(requests), concurrency=4), lambda _: True)}

    assert tokens_of([records[r.request_id] for r in requests]) == tokens_of(serve(own, requests, concurrency=4))
    assert lasting.encode("some text") == own.encode("some text")
    assert lasting.score((1, 2, 3)).logprobs == pytest.approx(own.score((1, 2, 3)).logprobs, abs=1e-6)
    assert (lasting.info.model_hash, lasting.info.pids) == ("abc", (lasting.pid,))


def test_passes_are_compared_inside_the_child(lasting: EngineHost, open_tiny: OpenTiny, tmp_path: Path) -> None:
    """A host's child reads what an engine in this process kept, and only divergences come back over the pipe."""
    text, kept = tuple(b"kept by one, read by the other"), str(tmp_path / "kept.npy")
    open_tiny(precision="bf16").score(text, num_last=8, keep=kept)

    found = lasting.score(text, num_last=8, against=kept).divergences

    assert found == pytest.approx(open_tiny().score(text, num_last=8, against=kept).divergences, abs=1e-6)
    assert found is not None
    assert len(found) == 8
    assert max(found) > 0.0


def test_an_observer_ends_an_endless_load(lasting: EngineHost) -> None:
    """A load without end stops when the observer says so; the next load finds an empty engine."""
    seen: list[Progress] = []

    def observe(progress: Progress) -> bool:
        seen.append(progress)
        return len(seen) < 50

    # Three of the first four last as long as each other, the fourth does not: at no step is there nothing to cancel.
    requests = chain([make_request(request_id="short", max_tokens=10)], endless(max_tokens=100))
    first = lasting.run(ClosedLoad(requests=requests, concurrency=4), observe)
    second = lasting.run(ClosedLoad(requests=iter([make_request(max_tokens=3)]), concurrency=4), lambda _: True)

    assert {r.finish_reason for r in first} == {FinishReason.LENGTH, FinishReason.CANCELLED}
    assert max(progress.num_running for progress in seen) == 4
    assert [len(record.token_ids) for record in second] == [3]


def test_open_loads_keep_their_times_in_the_child(lasting: EngineHost) -> None:
    """Requests of an open load are due on the host's clock by their offsets, and none is let in before that."""
    offsets = [0.0, 0.02, 0.3, 0.31]
    timed = [
        TimedRequest(offset_s=offset, request=make_request(request_id=f"r{i}", max_tokens=3))
        for i, offset in enumerate(offsets)
    ]
    earliest_s = time.monotonic()

    records = sorted(lasting.run(OpenLoad(requests=iter(timed)), lambda _: True), key=lambda one: one.request_id)

    start_s = records[0].arrival_s
    assert start_s >= earliest_s
    assert [record.arrival_s - start_s for record in records] == pytest.approx(offsets, abs=1e-6)
    assert all(record.token_times_s[0] > record.arrival_s for record in records)
    assert [len(record.token_ids) for record in records] == [3] * 4


def test_live_requests_come_cancelled_refused_and_served(lasting: EngineHost, open_tiny: OpenTiny) -> None:
    """A live load tells every token by its id; what is cancelled or refused ends alone; None ends the load."""
    inbox: SimpleQueue[Request | None] = SimpleQueue()
    good, endless_one = make_request(request_id="good"), make_request(request_id="endless", max_tokens=200)
    too_long = make_request(request_id="long", max_tokens=1000)
    named: dict[str, list[int]] = defaultdict(list)
    has_cancelled = False

    def observe(progress: Progress) -> bool:
        nonlocal has_cancelled
        for request_id, token_id in progress.token_ids:
            named[request_id].append(token_id)
        if named["endless"] and not has_cancelled:
            has_cancelled = True
            lasting.cancel("endless")
            inbox.put(good)
        if any(record.request_id == "good" for record in progress.finished):
            inbox.put(None)
        return True

    inbox.put(endless_one)
    inbox.put(too_long)
    records = {record.request_id: record for record in lasting.run(LiveLoad(inbox=inbox), observe)}

    assert records["good"].token_ids == tuple(named["good"]) == serve(open_tiny(), [good])[0].token_ids
    assert records["endless"].finish_reason is FinishReason.CANCELLED
    assert 1 <= len(records["endless"].token_ids) < 200
    assert records["endless"].token_ids == tuple(named["endless"])
    assert (records["long"].error or "").startswith("request_too_long: request long")
    assert len(records) == 3


def test_a_live_load_can_be_stopped_with_nothing_to_do(lasting: EngineHost) -> None:
    """An observer is asked while the child waits for input, and what comes after the end waits for the next load."""
    inbox: SimpleQueue[Request | None] = SimpleQueue()

    assert lasting.run(LiveLoad(inbox=inbox), lambda progress: progress.num_steps > 0) == []

    inbox.put(make_request())
    inbox.put(None)
    seen: list[Progress] = []

    def observe(progress: Progress) -> bool:
        seen.append(progress)
        return True

    records = lasting.run(ClosedLoad(requests=iter([make_request()]), concurrency=1), observe)
    assert [len(record.token_ids) for record in records] == [8]
    assert not any(progress.token_ids for progress in seen)
    assert inbox.qsize() == 2


def test_the_live_knob_reaches_the_child(lasting: EngineHost) -> None:
    """After set_prefill_chunk no step computes more prompt tokens than that."""
    lasting.set_prefill_chunk(3)
    seen: list[Progress] = []

    def observe(progress: Progress) -> bool:
        seen.append(progress)
        return True

    lasting.run(ClosedLoad(requests=iter([make_request("a prompt of some length")]), concurrency=1), observe)
    lasting.set_prefill_chunk(64)

    assert max(progress.num_prompt_tokens for progress in seen) == 3


def test_kill_9_is_a_named_death(host: EngineHost) -> None:
    """A child killed in the middle of a load raises EngineDied with the signal, and closing still works."""

    def kill(progress: Progress) -> bool:
        if progress.finished:
            os.kill(host.pid, signal.SIGKILL)
        return True

    with pytest.raises(EngineDied, match="SIGKILL"):
        host.run(ClosedLoad(requests=endless(), concurrency=2), kill)

    host.close()
    assert not psutil.pid_exists(host.pid)


def test_a_silent_child_is_a_named_death(tiny_folder: Path) -> None:
    """A child that is alive but says nothing (stopped, hung) is given up after the silence limit and killed."""
    opened = open_host(tiny_folder, silence_s=30.0)
    opened.set_silence_limit(0.5)
    os.kill(opened.pid, signal.SIGSTOP)

    with pytest.raises(EngineDied, match=r"gave no sign of life for 0\.5 s"):
        opened.encode("text")
    opened.close()

    assert not psutil.pid_exists(opened.pid)


def test_errors_keep_their_class_over_the_border(tiny_folder: Path, tmp_path: Path, lasting: EngineHost) -> None:
    """A damaged checkpoint, a senseless setting and a refused request arrive as the errors they are."""
    tensors = tiny_tensors(tiny_config())
    del tensors["model.norm.weight"]
    broken = write_tiny_model(tmp_path / "broken", tensors=tensors)

    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        open_host(broken)
    with pytest.raises(InvalidSettings, match="max_context is 1000; tiny goes up to 512 tokens"):
        open_host(tiny_folder, max_context=1000)
    with pytest.raises(RequestTooLong, match="the context is 256"):
        lasting.run(ClosedLoad(requests=endless(max_tokens=1000), concurrency=1), lambda _: True)
    assert len(lasting.run(ClosedLoad(requests=iter([make_request()]), concurrency=1), lambda _: True)) == 1


def test_a_host_outlives_numerics_errors_and_closes_once(tmp_path: Path) -> None:
    """BUG-39: a precision that overflows raises NumericsError through the host as well; the child lives until closed.

    Closing twice does nothing the second time.
    """
    tensors = tiny_tensors(tiny_config())
    tensors["model.layers.0.mlp.up_proj.weight"] *= 3000.0
    tensors["model.layers.0.mlp.down_proj.weight"] *= 300.0
    opened = open_host(write_tiny_model(tmp_path, tensors=tensors), precision="fp16")
    try:
        with pytest.raises(NumericsError):
            opened.score((1, 2, 3))
        assert psutil.pid_exists(opened.pid)
    finally:
        opened.close()
        opened.close()

    assert not psutil.pid_exists(opened.pid)
