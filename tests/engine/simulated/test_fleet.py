"""Groups of GPUs side by side: replicas, and prompts on one group with decodes on another."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from engine.errors import RequestRefused
from engine.load import ClosedLoad, OpenLoad, TimedRequest
from engine.request import FinishReason
from tests.engine.requests import make_request
from tests.engine.simulated.fake_machine import FakeMachine
from tests.engine.simulated.test_engine import open_engine, requests, serve

#: Prompt steps take a second, decode steps an eighth.
PREFILL_S, DECODE_S = 1.0, 0.125


def make_machine() -> FakeMachine:
    return FakeMachine(step_s=lambda work: PREFILL_S if work.num_tokens > work.num_sampled else DECODE_S)


def open_split(machine: FakeMachine, **changes: Any) -> Any:
    layout = {"tensor_parallel": 2, "prefill_gpus": 2, "data_parallel": 1, "prefill_chunk": 200}
    return open_engine(machine, **layout | changes)


def test_a_prompt_is_computed_handed_on_and_decoded() -> None:
    """The first token comes from the prefill group, the others after the transfer, from the decode group."""
    machine = make_machine()

    record = serve(open_split(machine), ClosedLoad(requests=requests(1, output=4), concurrency=1))[0]

    first_s = PREFILL_S
    there_s = first_s + machine.transfer_s(0)
    assert record.token_times_s == (first_s, *(there_s + DECODE_S * i for i in (1, 2, 3)))
    assert [(lane, work.num_gpus) for lane, _, _, work in machine.ran] == [(1, 2), (0, 2), (0, 2), (0, 2)]


def test_prompts_do_not_hold_up_decodes() -> None:
    """While prompts are computed elsewhere, no gap between tokens is longer than a decode step."""
    split = serve(open_split(make_machine()), ClosedLoad(requests=requests(12, output=30), concurrency=4))
    together = serve(open_engine(make_machine()), ClosedLoad(requests=requests(12, output=30), concurrency=4))

    assert max(_gaps(split)) == DECODE_S
    assert max(_gaps(together)) == PREFILL_S


def test_every_request_is_served_once() -> None:
    """All requests finish with all their tokens, in times that never go back, and no block stays held."""
    opened = open_split(make_machine(), num_kv_blocks=70)

    records = serve(opened, ClosedLoad(requests=requests(40, prompt=300, output=50), concurrency=10))

    assert sorted(record.request_id for record in records) == sorted(f"r{i}" for i in range(40))
    assert {len(record.token_times_s) for record in records} == {50}
    assert all(list(r.token_times_s) == sorted(r.token_times_s) for r in records)
    assert opened.num_in_flight == 0


def test_what_is_under_way_can_be_ended() -> None:
    """A load that the observer ends leaves nothing behind, wherever its requests were: the next one starts afresh."""
    machine = make_machine()
    opened = open_split(machine)

    cut = opened.run(ClosedLoad(requests=requests(8, output=50), concurrency=6), lambda p: p.time_s < 2.2)
    whole = serve(opened, ClosedLoad(requests=requests(3, output=5), concurrency=3))

    assert {record.finish_reason for record in cut} == {FinishReason.CANCELLED}
    assert len(cut) == 6
    assert [record.finish_reason for record in whole] == [FinishReason.LENGTH] * 3


def test_one_token_needs_no_second_group() -> None:
    """A request of a single token ends where its prompt was computed."""
    machine = make_machine()

    load = ClosedLoad(requests=iter([make_request([1] * 50, max_tokens=1)]), concurrency=1)
    record = serve(open_split(machine), load)[0]

    assert (len(record.token_ids), record.finish_reason) == (1, FinishReason.LENGTH)
    assert [lane for lane, _, _, _ in machine.ran] == [1]


def _gaps(records: list[Any]) -> list[float]:
    """Gaps between tokens, but for that of the handover."""
    return [
        later - earlier
        for record in records
        for earlier, later in zip(record.token_times_s[1:], record.token_times_s[2:], strict=False)
    ]


def test_many_groups_of_both_kinds_serve_every_request_once() -> None:
    """Two groups for prompts and three that decode share the requests, and all of them finish."""
    machine = make_machine()
    opened = open_split(machine, tensor_parallel=1, prefill_gpus=2, data_parallel=3)

    records = serve(opened, ClosedLoad(requests=requests(60, prompt=300, output=30), concurrency=20))

    assert {len(record.token_times_s) for record in records} == {30}
    assert len(records) == 60
    assert {lane for lane, _, _, _ in machine.ran} == {0, 1, 2, 3, 4}


def test_what_the_second_group_cannot_hold_is_refused_at_the_door() -> None:
    """A request that fits where prompts are computed but not where it is to decode is refused, and nothing is lost."""
    opened = open_split(make_machine(), num_kv_blocks=20)

    with pytest.raises(RequestRefused, match="num_kv_blocks is 20"):
        serve(opened, ClosedLoad(requests=requests(2, prompt=300, output=50), concurrency=2))
    whole = serve(opened, ClosedLoad(requests=requests(2, prompt=100, output=5), concurrency=2))

    assert [record.finish_reason for record in whole] == [FinishReason.LENGTH] * 2


@pytest.mark.parametrize("policy", ["decode_first", "prefill_first"])
def test_a_stretch_never_passes_an_arrival(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told in stretches or step by step, requests of an open load have the same times: none waits for a stretch."""

    def times(longest: int) -> list[tuple[float, ...]]:
        monkeypatch.setattr("engine.simulated.lane.LONGEST_STRETCH", longest)
        machine = FakeMachine(step_s=lambda work: 0.5 if work.num_tokens > work.num_sampled else 1.0 + work.num_sampled)
        draw = random.Random(5)
        offsets_s = itertools.accumulate(draw.randrange(40) / 4 for _ in range(60))
        timed = [
            TimedRequest(offset_s=offset_s, request=request)
            for offset_s, request in zip(offsets_s, requests(60, output=25), strict=True)
        ]
        opened = open_engine(machine, max_batch=32, policy=policy)
        records = serve(opened, OpenLoad(requests=iter(timed)))
        return [record.token_times_s for record in sorted(records, key=lambda record: record.request_id)]

    assert times(16) == times(1)
