"""Prompts on one group of GPUs, decodes on another."""

from __future__ import annotations

from typing import Any

from engine.load import ClosedLoad
from engine.request import FinishReason
from tests.engine.requests import make_request
from tests.engine.simulated.fake_machine import FakeMachine
from tests.engine.simulated.test_engine import open_engine, requests, serve

#: Prompt steps take a second, decode steps an eighth.
PREFILL_S, DECODE_S = 1.0, 0.125


def make_machine() -> FakeMachine:
    return FakeMachine(step_s=lambda work: PREFILL_S if work.num_tokens > work.num_sampled else DECODE_S)


def open_split(machine: FakeMachine, **changes: Any) -> Any:
    return open_engine(machine, **{"prefill_gpus": 2, "data_parallel": 2, "prefill_chunk": 200} | changes)


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
