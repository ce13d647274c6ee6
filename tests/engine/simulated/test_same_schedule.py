"""The simulated engine takes the embedded engine's decisions: same arrivals, same step time, same everything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.embedded.loop import EmbeddedEngine
from engine.load import ClosedLoad, Load, OpenLoad, Progress, TimedRequest
from engine.request import Request, RequestRecord
from engine.settings import EngineSettings
from engine.simulated.engine import SimulatedEngine
from engine.simulated.shapes import load_shape
from tests.engine.requests import make_request
from tests.engine.simulated.fake_machine import FakeMachine

#: A power of two, so that sums of it are exact.
STEP_S = 0.25


class StepClock:
    """Seconds that pass with the embedded engine's steps, each of them STEP_S long."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def make_requests(seed: int, *, count: int = 20) -> list[Request]:
    draw = random.Random(seed)
    return [
        make_request([1] * draw.randint(1, 120), request_id=f"r{i}", max_tokens=draw.randint(1, 60), priority=i % 3)
        for i in range(count)
    ]


def make_load(seed: int, *, is_open: bool) -> Load:
    requests = make_requests(seed)
    if not is_open:
        return ClosedLoad(requests=iter(requests), concurrency=7)
    return OpenLoad(requests=_timed(requests, random.Random(f"{seed}/arrivals")))


def _timed(requests: list[Request], draw: random.Random) -> Iterator[TimedRequest]:
    offset_s = 0.0
    for request in requests:
        yield TimedRequest(offset_s=offset_s, request=request)
        offset_s += STEP_S * draw.randrange(30)


def run_embedded(folder: Path, load: Load, **settings: Any) -> tuple[list[RequestRecord], list[tuple[object, ...]]]:
    clock = StepClock()
    opened = EmbeddedEngine(
        EngineSettings(model="tiny", num_threads=1, **settings), folder, now=lambda: clock.now_s, sleep=clock.sleep
    )
    compute = opened.runner.run

    def run(*arguments: Any, **options: Any) -> Any:
        clock.now_s += STEP_S
        return compute(*arguments, **options)

    opened.runner.run = run  # type: ignore[method-assign]  # a step takes STEP_S on this clock, whatever it takes here
    return _observed(opened, load)


def run_simulated(folder: Path, load: Load, **settings: Any) -> tuple[list[RequestRecord], list[tuple[object, ...]]]:
    machine = FakeMachine(step_s=lambda work: STEP_S)
    opened = SimulatedEngine(EngineSettings(model="tiny", **settings), load_shape(str(folder)), machine)
    return _observed(opened, load)


def _observed(opened: Any, load: Load) -> tuple[list[RequestRecord], list[tuple[object, ...]]]:
    """Run a load; return its records and what was told of each single step."""
    seen: list[tuple[object, ...]] = []

    def observe(progress: Progress) -> bool:
        for i in range(progress.num_steps - 1, -1, -1):
            is_last = i == 0
            seen.append(
                (
                    progress.time_s - i * STEP_S,
                    progress.num_running,
                    progress.num_waiting,
                    progress.num_tokens // progress.num_steps,
                    progress.num_prompt_tokens,
                    progress.first_tokens,
                    tuple(record.request_id for record in progress.finished) if is_last else (),
                )
            )
        return True

    records = opened.run(load, observe)
    return records, seen


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch": 4, "prefill_chunk": 64},
        {"max_batch": 16, "prefill_chunk": 16},
        {"max_batch": 6, "prefill_chunk": 300, "num_kv_blocks": 14},
        {"max_batch": 6, "prefill_chunk": 300, "num_kv_blocks": 14, "policy": "prefill_first"},
        {"max_batch": 2, "prefill_chunk": 32, "policy": "prefill_first"},
        {"max_batch": 6, "prefill_chunk": 64, "max_prefill_fraction": 0.8},
        {"max_batch": 6, "prefill_chunk": 300, "num_kv_blocks": 14, "policy": "priority"},
    ],
)
def test_both_engines_schedule_alike(tiny_folder: Path, settings: dict[str, Any], is_open: bool) -> None:
    """Every step of both runs the same sequences, and every request has the same times, finish and preemptions."""
    settings = {"max_context": 256} | settings

    real, real_steps = run_embedded(tiny_folder, make_load(3, is_open=is_open), **settings)
    simulated, simulated_steps = run_simulated(tiny_folder, make_load(3, is_open=is_open), **settings)

    assert simulated_steps == real_steps
    assert [_schedule(record) for record in simulated] == [_schedule(record) for record in real]
    if settings.get("num_kv_blocks"):
        assert sum(record.num_preemptions for record in simulated) > 0, "the case has to be there"


def _schedule(record: RequestRecord) -> tuple[object, ...]:
    return (
        record.request_id,
        record.arrival_s,
        record.token_times_s,
        record.finish_reason,
        record.num_preemptions,
        record.num_prompt_tokens,
        len(record.token_ids),
    )
