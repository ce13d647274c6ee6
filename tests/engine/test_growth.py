"""An engine that serves for months: nothing is left of a request once it has ended."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.embedded.loop import EmbeddedEngine
from engine.errors import RequestRefused
from engine.request import FinishReason, Request, RequestRecord
from tests.engine.conftest import OpenTiny
from tests.engine.requests import make_request
from tests.tiny_model import write_tiny_model

ROUND = 100
#: What Python's own caches and free lists come and go by; ten bytes a request would be 100 kB.
TRACED_BYTES = 48 * 1024
#: Likewise of the whole process, for what tensors take; one kept tensor of 4 kB a request would be 40 MB.
RESIDENT_BYTES = 32 * 2**20


@pytest.fixture(name="small")
def _small(tmp_path: Path, open_tiny: OpenTiny) -> EmbeddedEngine:
    """One narrow layer, and blocks for fewer sequences than run at once, so that some are preempted."""
    folder = write_tiny_model(
        tmp_path, num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=1,
        num_key_value_heads=1,
    )  # fmt: skip
    return open_tiny(folder=folder, max_batch=64, prefill_chunk=256, block_size=1, num_kv_blocks=24, max_context=16)


def requests_of(number: int) -> Iterator[Request]:
    """A round of requests of many kinds: one to three tokens, greedy or sampled, some with stop strings."""
    for i in range(ROUND):
        yield make_request(
            [1 + i % 7, 2 + number % 250, 3][: 1 + i // 3 % 3],
            request_id=f"{number}-{i}",
            max_tokens=3 if number % 2 else 1 + i % 3,
            temperature=0.8 if i % 4 == 0 else 0.0,
            seed=i,
            stop=tuple("abcdefghijklmno") if i % 5 == 0 else (),
            ignore_eos=i % 2 == 0,
        )


def serve_round(opened: EmbeddedEngine, number: int) -> list[RequestRecord]:
    """Serve a round in which some requests are cancelled and one is refused; return the records of the others."""
    for request in requests_of(number):
        opened.add(request)
    with pytest.raises(RequestRefused):
        opened.add(make_request([1], request_id=f"{number}-long", max_tokens=100))
    ended = [record for i in range(0, ROUND, 9) if (record := opened.cancel(f"{number}-{i}")) is not None]
    ended.extend(opened.step().progress.finished)
    ended.extend(record for i in range(2, ROUND, 9) if (record := opened.cancel(f"{number}-{i}")) is not None)
    while opened.scheduler.has_work:
        ended.extend(opened.step().progress.finished)
    return ended


def test_ten_thousand_requests_leave_nothing_behind(small: EmbeddedEngine) -> None:
    """After 10,000 requests no block, no output and no memory of Python's or of the process is held by any of them."""
    process = psutil.Process()
    tracemalloc.start()
    try:
        for number in range(25):  # until free lists and caches are as long as they get
            serve_round(small, number)
        gc.collect()
        traced, resident = tracemalloc.get_traced_memory()[0], process.memory_info().rss
        outcomes: Counter[str] = Counter()
        for number in range(25, 125):
            for record in serve_round(small, number):
                outcomes[record.finish_reason] += 1
                outcomes["preempted"] += record.num_preemptions > 0
        gc.collect()
        traced, resident = tracemalloc.get_traced_memory()[0] - traced, process.memory_info().rss - resident
    finally:
        tracemalloc.stop()

    assert sum(outcomes[reason] for reason in FinishReason) == 100 * ROUND
    assert min(outcomes[name] for name in ("stop", "length", "cancelled", "preempted")) > 0
    assert (small.pool.num_used, small.pool.num_free) == (0, 24)
    assert small.num_in_flight == 0
    assert traced < TRACED_BYTES
    assert resident < RESIDENT_BYTES
