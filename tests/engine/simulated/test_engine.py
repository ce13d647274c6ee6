"""The simulated engine on a machine of constant steps: records, memory, layouts, open loads, stretches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import InvalidSettings, NotEnoughMemory, NotSimulated, RequestRefused
from engine.load import ClosedLoad, Load, OpenLoad, Progress, TimedRequest
from engine.request import FinishReason, Request, RequestRecord
from engine.settings import EngineSettings
from engine.simulated.engine import SimulatedEngine
from engine.simulated.measured import TimeSource
from engine.simulated.shapes import load_shape
from tests.engine.requests import make_request
from tests.engine.simulated.fake_machine import FakeMachine, with_memory


def open_engine(machine: FakeMachine | None = None, **changes: Any) -> SimulatedEngine:
    settings: dict[str, Any] = {"model": "llama-3.1-8b", "precision": "bf16", "max_batch": 8, "max_context": 1000}
    return SimulatedEngine(EngineSettings(**settings | changes), load_shape("llama-3.1-8b"), machine or FakeMachine())


def requests(count: int, *, prompt: int = 100, output: int = 20) -> Iterator[Request]:
    return iter([make_request([1] * prompt, request_id=f"r{i}", max_tokens=output) for i in range(count)])


def serve(opened: SimulatedEngine, load: Load) -> list[RequestRecord]:
    return opened.run(load, lambda progress: True)


def test_a_request_has_the_times_of_its_steps() -> None:
    """One prompt step, then one token a step: TTFT is the first, TPOT the others, and the content is nobody's."""
    record = serve(open_engine(), ClosedLoad(requests=requests(1), concurrency=1))[0]

    assert record.token_times_s == tuple(0.25 * (i + 1) for i in range(20))
    assert (record.ttft_s, record.tpot_s) == (0.25, 0.25)
    assert (record.finish_reason, record.num_prompt_tokens) == (FinishReason.LENGTH, 100)
    assert record.token_ids == (0,) * 20


def test_steps_that_are_alike_are_told_at_once() -> None:
    """A lone decode of 20 tokens takes 20 steps and is told in three pieces; the tokens are all there."""
    machine = FakeMachine()
    told: list[Progress] = []

    def observe(progress: Progress) -> bool:
        told.append(progress)
        return True

    open_engine(machine).run(ClosedLoad(requests=requests(1), concurrency=1), observe)

    assert [progress.num_steps for progress in told] == [1, 16, 3]
    assert sum(progress.num_tokens for progress in told) == 20
    assert [num_steps for _, _, num_steps, _ in machine.ran] == [1, 16, 3]


def test_a_stretch_costs_as_much_as_its_steps() -> None:
    """The work told of a stretch is that of its mean context, so that times and bytes are those of single steps."""
    machine = FakeMachine(step_s=lambda work: work.kv_bytes / 1e9)
    opened = open_engine(machine, prefill_chunk=1000)
    one_by_one = FakeMachine(step_s=lambda work: work.kv_bytes / 1e9)
    single = open_engine(one_by_one, prefill_chunk=1000)

    whole = serve(opened, ClosedLoad(requests=requests(1, output=18), concurrency=1))[0]
    single.add(next(requests(1, output=18)))
    while single.num_in_flight:
        single.advance(single.now_s())  # a request due now allows no stretch

    assert [n for _, _, n, _ in one_by_one.ran] == [1] * 18
    assert whole.token_times_s[-1] == pytest.approx(one_by_one.now_s(), rel=1e-9)


def test_requests_of_an_open_load_wait_from_their_own_time() -> None:
    """A request that is due while a step runs is let in after it, and its latency counts from when it was due."""
    timed = [
        TimedRequest(offset_s=offset_s, request=request)
        for offset_s, request in zip([0.0, 0.1, 100.0], requests(3, output=4), strict=True)
    ]

    records = {r.request_id: r for r in serve(open_engine(), OpenLoad(requests=iter(timed)))}

    assert [records[f"r{i}"].arrival_s for i in range(3)] == [0.0, 0.1, 100.0]
    assert records["r1"].token_times_s[0] == 0.5
    assert records["r2"].token_times_s[0] == 100.25


def test_an_observer_ends_the_load() -> None:
    """What is in flight when the observer has seen enough is cancelled with the tokens it had."""
    records = open_engine().run(ClosedLoad(requests=requests(3), concurrency=2), lambda progress: progress.time_s < 1)

    assert {record.finish_reason for record in records} == {FinishReason.CANCELLED}
    assert len(records) == 2
    assert all(0 < len(record.token_times_s) < 20 for record in records)


def test_an_interrupt_amid_a_step_is_told_as_one() -> None:
    """Ctrl-C while a step is being scheduled leaves it half done; that is not covered up by tidying the engine."""

    def interrupt(work: object) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(open_engine(FakeMachine(step_s=interrupt)), ClosedLoad(requests=requests(2), concurrency=2))


def test_the_machine_is_told_which_run_begins() -> None:
    """Each run begins with its first request's name, so that chance depends on it alone."""
    machine = FakeMachine()
    opened = open_engine(machine)

    for _ in range(2):
        serve(opened, ClosedLoad(requests=requests(3, output=2), concurrency=2))

    assert machine.labels == ["r0", "r0"]


def test_weights_that_do_not_fit_are_refused() -> None:
    """A model larger than the memory is NotEnoughMemory, with what it needs and what there is."""
    with pytest.raises(NotEnoughMemory, match=r"needs 15\.0 GiB a GPU for weights .* 9\.3 GiB are usable"):
        open_engine(with_memory(10e9))


def test_narrow_memory_gives_few_blocks() -> None:
    """Blocks are what is left beside the weights, and never more than max_batch sequences can use."""
    roomy = open_engine().info.num_kv_blocks
    narrow = open_engine(with_memory(17e9), max_batch=64).info.num_kv_blocks

    assert roomy == 8 * 63
    assert 63 <= narrow < 64 * 63


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensor_parallel": 16}, "is 16, but there are 8 GPUs"),
        (
            {"tensor_parallel": 4, "prefill_gpus": 3},
            "give a multiple of tensor_parallel x pipeline_parallel, which is 4",
        ),
        ({"max_context": 10**7}, "max_context is 10000000"),
        ({"precision": "nvfp4"}, "precision is 'nvfp4'"),
        ({"expert_parallel": True}, "expert_parallel"),
    ],
)
def test_layouts_without_room_are_refused(changes: dict[str, Any], words: str) -> None:
    """The refusal names the field and what would do."""
    with pytest.raises(InvalidSettings, match=words):
        open_engine(**changes)


def test_measured_kernels_go_with_the_work() -> None:
    """Where somebody measured the kernels, each step carries their time, and the record says who it was."""
    machine = FakeMachine()
    asked: list[tuple[int, float, int, float]] = []

    def times(num_decodes: int, mean_context: float, prompt_tokens: int, prompt_start: float) -> float:
        asked.append((num_decodes, mean_context, prompt_tokens, prompt_start))
        return 0.01 * num_decodes + 0.001 * prompt_tokens

    opened = SimulatedEngine(
        EngineSettings(model="m", precision="bf16", max_batch=2, prefill_chunk=60, max_context=200),
        load_shape("llama-3.1-8b"),
        machine,
        choose_times=lambda settings, max_context: TimeSource(times=times, source=f"measured up to {max_context}"),
    )
    serve(opened, ClosedLoad(requests=requests(1, output=3), concurrency=1))

    assert asked == [(0, 0.0, 60, 0.0), (0, 0.0, 40, 60.0), (1, 101.5, 0, 0.0)]
    assert [work.kernel_s for _, _, _, work in machine.ran] == [0.06, 0.04, 0.01]
    assert opened.info.version.endswith("+measured up to 200")


def test_what_nobody_measured_is_left_to_the_machine() -> None:
    """Without measured times the work says nothing of seconds, and the record says why."""
    machine = FakeMachine()
    opened = SimulatedEngine(
        EngineSettings(model="m", precision="bf16", max_context=200),
        load_shape("llama-3.1-8b"),
        machine,
        choose_times=lambda settings, max_context: TimeSource(times=None, source="own model (nobody knows)"),
    )
    serve(opened, ClosedLoad(requests=requests(1, output=3), concurrency=1))

    assert {work.kernel_s for _, _, _, work in machine.ran} == {0.0}
    assert "own model (nobody knows)" in opened.info.version


def test_replicas_share_the_load() -> None:
    """Two replicas run twice as many sequences, each at its own pace on its own GPU."""
    machine = FakeMachine()
    serve(open_engine(machine, data_parallel=2, max_batch=4), ClosedLoad(requests=requests(8), concurrency=8))

    assert {lane: max(w.num_sampled for n, _, _, w in machine.ran if n == lane) for lane in (0, 1)} == {0: 4, 1: 4}
    assert {work.num_gpus for _, _, _, work in machine.ran} == {1}


def test_replicas_do_not_help_one_another_with_a_prompt() -> None:
    """A lone prompt takes as long on eight replicas as on one: its first token comes after the same steps."""
    alone, among_eight = (
        serve(
            open_engine(FakeMachine(step_s=lambda work: work.num_tokens / 128), prefill_chunk=64, **layout),
            ClosedLoad(requests=requests(1, prompt=512), concurrency=1),
        )[0]
        for layout in ({}, {"data_parallel": 8})
    )

    assert among_eight.token_times_s == alone.token_times_s


def test_replicas_that_share_experts_step_together() -> None:
    """With experts spread over the replicas there is one group, and each prompt is still one replica's."""
    machine = FakeMachine()
    opened = SimulatedEngine(
        EngineSettings(
            model="m", precision="fp8", data_parallel=4, expert_parallel=True, prefill_chunk=64, max_context=1000
        ),
        load_shape("qwen3-30b-a3b"),
        machine,
    )
    serve(opened, ClosedLoad(requests=requests(1, prompt=256, output=2), concurrency=1))

    assert [(lane, work.num_gpus, work.num_tokens) for lane, _, _, work in machine.ran] == [
        *[(0, 4, 64)] * 4,
        (0, 4, 1),
    ]


def test_there_is_nothing_to_cache() -> None:
    """Tokens without content are never found again: a prefix cache is refused by name."""
    with pytest.raises(InvalidSettings, match="prefix_caching is True; simulated tokens have no content"):
        open_engine(prefix_caching=True)


def test_there_is_nothing_to_score() -> None:
    """An engine without weights says so instead of making a score up; its token counts are estimates of length."""
    opened = open_engine()

    with pytest.raises(NotSimulated, match="has no weights"):
        opened.score((1, 2))
    assert len(opened.encode("twelve chars")) == 3


def test_the_same_name_twice_is_refused() -> None:
    """Two requests of one id could not be told apart."""
    opened = open_engine()
    opened.add(make_request(request_id="a"))

    with pytest.raises(RequestRefused, match="already in the engine"):
        opened.add(make_request(request_id="a"))


def test_the_chunk_is_a_live_knob() -> None:
    """After a change the next load computes its prompts in chunks of the new size."""
    machine = FakeMachine()
    opened = open_engine(machine, prefill_chunk=1000)
    opened.set_prefill_chunk(60)

    serve(opened, ClosedLoad(requests=requests(1), concurrency=1))

    assert [work.num_tokens for _, _, _, work in machine.ran[:2]] == [60, 40]


def test_another_shape_is_another_model() -> None:
    """The hash that fronts are compared by changes with any dimension of the model."""
    shape = load_shape("llama-3.1-8b")
    settings = EngineSettings(model="m", precision="bf16", max_context=100)

    one, other = (
        SimulatedEngine(settings, changed, FakeMachine()).info.model_hash
        for changed in (shape, replace(shape, vocab_size=shape.vocab_size + 1))
    )

    assert one != other
