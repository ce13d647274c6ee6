"""Decodes as graphs of fixed shapes answer as steps of any shape do.

There is no GPU here: a recorder that calls the function again stands in for CUDA's, so that shapes, padding, the
tensors that replays read and write, and which steps are replayed are all those of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from engine.embedded.config import load_config, model_config
from engine.embedded.decode_graphs import DecodeGraphs, bucket_of, can_record
from engine.embedded.loop import EmbeddedEngine
from engine.embedded.precision import MODES
from engine.embedded.scheduler import Batch
from engine.embedded.sequence import Sequence
from engine.errors import InvalidSettings
from tests.engine.conftest import OpenTiny
from tests.engine.requests import serve, tokens_of
from tests.engine.test_equality import PROMPTS, TOLERANCES, answers_of, make_requests, worst_of
from tests.engine.tiny_families import FAMILY_CASES, write_family
from tests.tiny_model import tiny_config

CUDA = torch.device("cuda")
CONFIG = model_config(tiny_config(), source="test")


class Replays:
    """Stands in for `CudaRecorder`: a replay is the function itself."""

    def __init__(self, device: torch.device) -> None:
        self.num_records = 0
        self.num_replays = 0

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self.num_records += 1
        function()  # the warm-up: it must leave nothing that the replay would not

        def replay() -> None:
            self.num_replays += 1
            function()

        return replay


@pytest.fixture(name="open_torch")
def _open_torch(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> OpenTiny:
    """Open an engine that computes by torch alone, as on a GPU."""
    monkeypatch.setattr("engine.embedded.native.library.library", lambda: None)
    return open_tiny


@pytest.fixture(name="open_graphs")
def _open_graphs(open_torch: OpenTiny) -> OpenTiny:
    """Open an engine that runs its decodes as graphs; what is patched is so only while it opens."""

    def open_engine(*, recorder: type[Replays] = Replays, **settings: Any) -> EmbeddedEngine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("engine.embedded.runner.can_record", lambda config, **of: True)
            patch.setattr("engine.embedded.runner.CudaRecorder", recorder)
            return open_torch(**settings)

    return open_engine


class Watched(Replays):
    """Notes which operations of a step no capture would allow."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.seen = _Seen()

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        with self.seen:
            return super().__call__(function)


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own lacks types
    #: A value or a list of values read, a shape that hangs on values, and a tensor made from Python's numbers; in
    #: inference mode `where` of a condition alone, and what reads a value, arrive under these names.
    barred = ("item", "is_nonzero", "resolve_conj", "where.default", "nonzero", "masked_select", "lift_fresh")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.found |= {name, f"{name}.{func._overloadname}"} & set(self.barred)
        return func(*args, **kwargs or {})


def recorder_of(opened: EmbeddedEngine) -> Replays:
    graphs = opened.runner._graphs
    assert isinstance(graphs, DecodeGraphs)
    assert isinstance(graphs._record, Replays)
    return graphs._record


class TestBuckets:
    """Few shapes, little padding."""

    def test_the_first_buckets(self) -> None:
        """Powers of two, and from 24 on what lies halfway between two of them."""
        buckets = sorted({bucket_of(count, 1000) for count in range(1, 257)})

        assert buckets == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]

    @given(limit=st.integers(1, 4096), share=st.floats(0, 1))
    def test_a_bucket_holds_its_rows_and_is_no_larger_than_the_batch(self, limit: int, share: float) -> None:
        """Every step fits in its bucket, no bucket is beyond the limit, and above 16 half as much again holds it."""
        count = 1 + int(share * (limit - 1))
        bucket = bucket_of(count, limit)

        assert count <= bucket <= limit
        assert bucket_of(bucket, limit) == bucket
        assert count <= 16 or bucket <= 1.5 * count


class TestWhatCanBeRecorded:
    """Only what the host need not look into."""

    def test_a_dense_model_on_a_gpu(self) -> None:
        """A GPU records a dense model; a CPU has no graphs."""
        assert can_record(CONFIG, precision="bf16", device=CUDA)
        assert not can_record(CONFIG, precision="bf16", device=torch.device("cpu"))

    def test_experts_are_not(self, tmp_path: Path) -> None:
        """Which experts the rows chose is seen by the host, so a mixture of experts takes no graphs."""
        assert not can_record(load_config(write_family(tmp_path, "mixtral")), precision="bf16", device=CUDA)

    @pytest.mark.parametrize("precision", ["nvfp4", "mxfp4"])
    def test_inputs_in_four_bits_are_not(self, precision: str) -> None:
        """Rounding inputs to four bits makes tables on the device from Python's numbers."""
        assert not can_record(CONFIG, precision=precision, device=CUDA)

    def test_graphs_may_be_turned_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """WATTFRONT_CUDA_GRAPHS=off launches every step operation by operation; other words are refused."""
        monkeypatch.setenv("WATTFRONT_CUDA_GRAPHS", "off")
        assert not can_record(CONFIG, precision="bf16", device=CUDA)

        monkeypatch.setenv("WATTFRONT_CUDA_GRAPHS", "no")
        with pytest.raises(InvalidSettings, match="WATTFRONT_CUDA_GRAPHS is 'no'; choose auto or off"):
            can_record(CONFIG, precision="bf16", device=CUDA)


@pytest.mark.parametrize(
    ("precision", "kv_precision"),
    [("fp32", "auto"), ("fp16", "auto"), ("bf16", "auto"), ("fp8", "auto"), ("int8_dynamic", "int8")],
)
def test_answers_are_those_of_steps_of_any_shape(
    open_torch: OpenTiny, open_graphs: OpenTiny, precision: str, kv_precision: str
) -> None:
    """Over chunks, steps with prompts and ends logits are those without padding, up to the order of sums."""
    settings = {"precision": precision, "kv_precision": kv_precision, "can_emulate": True, "prefill_chunk": 16}
    requests = [replace(one, max_tokens=9 + 7 * i) for i, one in enumerate(make_requests())]
    expected, _ = answers_of(open_torch(max_batch=5, **settings), requests)
    opened = open_graphs(max_batch=5, **settings)

    found, _ = answers_of(opened, requests)

    assert recorder_of(opened).num_replays > 0
    assert worst_of(found, expected) < TOLERANCES[precision]


@pytest.mark.parametrize("family", ["mistral", "qwen2", "gemma2-capped", "gemma3"])
def test_local_layers_and_capped_scores_are_the_same(
    open_torch: OpenTiny, open_graphs: OpenTiny, tmp_path: Path, family: str
) -> None:
    """Models with a window or capped scores give the tokens of the path without padding."""
    folder = write_family(tmp_path, family)
    expected = tokens_of(serve(open_torch(folder=folder), make_requests()))

    assert tokens_of(serve(open_graphs(folder=folder), make_requests())) == expected


def test_preempted_sequences_are_the_same(open_torch: OpenTiny, open_graphs: OpenTiny) -> None:
    """Sequences that gave up their blocks between replays have the logits of those that never had to."""
    growing = make_requests(PROMPTS[:3], max_tokens=32)
    expected, _ = answers_of(open_torch(), growing)

    found, num_preemptions = answers_of(open_graphs(num_kv_blocks=8), growing)

    assert num_preemptions > 0
    assert worst_of(found, expected) < TOLERANCES["fp32"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_without_padding_every_bit_is_the_same(open_torch: OpenTiny, open_graphs: OpenTiny, precision: str) -> None:
    """Where rows and blocks fill their buckets, a replay is the very arithmetic of a step of any shape."""
    settings: dict[str, Any] = {"precision": precision, "prefill_chunk": 512, "max_context": 128}
    full = make_requests([tuple(range(i, 113 + i)) for i in range(4)], max_tokens=12)
    expected, _ = answers_of(open_torch(**settings), full)
    opened = open_graphs(**settings)

    found, _ = answers_of(opened, full)

    assert recorder_of(opened).num_records == 1
    assert all(torch.equal(logits, expected[name][1]) for name, (_, logits) in found.items())


@pytest.mark.parametrize("held", [1e30, float("nan")])
def test_nobody_reads_what_padding_writes(open_graphs: OpenTiny, held: float) -> None:
    """Whatever the block of the padding rows holds, answers are the same bit by bit, and it is given to nobody."""
    calm = open_graphs()
    expected, _ = answers_of(calm, make_requests(PROMPTS[:3]))
    opened = open_graphs()
    scratch = opened.pool.num_blocks
    with torch.inference_mode():
        for layer in opened.runner.cache.layers:
            layer[scratch:] = held

    found, _ = answers_of(opened, make_requests(PROMPTS[:3]))

    assert opened.runner.cache.num_blocks == scratch + 1
    assert all(torch.equal(logits, expected[name][1]) for name, (_, logits) in found.items())


def test_each_shape_is_recorded_once_and_steps_with_prompts_never(open_graphs: OpenTiny) -> None:
    """Replays are as many as steps of decodes alone, over as many records as these had shapes."""
    opened = open_graphs(max_batch=5, prefill_chunk=16)
    shapes: list[tuple[int, int]] = []
    run = opened.runner.run

    def run_and_note(batch: Batch[Sequence]) -> torch.Tensor:
        if not batch.prefills:
            longest = max(len(sequence.block_table) for sequence in batch.decoding)
            shapes.append((bucket_of(len(batch.decoding), 5), bucket_of(max(longest, 8), 16)))
        return run(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened.runner, "run", run_and_note)
        serve(opened, [replace(one, max_tokens=10 + 20 * i) for i, one in enumerate(make_requests())])

    recorder = recorder_of(opened)
    assert len(set(shapes)) > 2
    assert (recorder.num_records, recorder.num_replays) == (len(set(shapes)), len(shapes))


def barred_of(opened: EmbeddedEngine) -> set[str]:
    """Serve, and return what a capture would not have allowed."""
    serve(opened, make_requests(PROMPTS[:3], max_tokens=3))
    recorder = recorder_of(opened)
    assert isinstance(recorder, Watched)
    assert recorder.num_records > 0
    return recorder.seen.found


@pytest.mark.parametrize("precision", [name for name in MODES if can_record(CONFIG, precision=name, device=CUDA)])
def test_no_value_is_seen_by_the_host(open_graphs: OpenTiny, precision: str) -> None:
    """In precisions that are recorded a step reads no value, and makes no tensor from Python's numbers."""
    opened = open_graphs(recorder=Watched, precision=precision, kv_precision="int8", can_emulate=True)

    assert barred_of(opened) == set()


@pytest.mark.parametrize("family", [name for name in FAMILY_CASES if "mo" not in name and "mix" not in name])
def test_no_value_of_a_dense_model_is_seen_by_the_host(open_graphs: OpenTiny, tmp_path: Path, family: str) -> None:
    """The same holds of every family without experts."""
    assert barred_of(open_graphs(recorder=Watched, folder=write_family(tmp_path, family))) == set()


def test_what_is_not_recorded_would_fail(open_graphs: OpenTiny, tmp_path: Path) -> None:
    """Experts make shapes of values, and inputs in four bits tensors of numbers: neither is left out for nothing."""
    mixture = open_graphs(recorder=Watched, folder=write_family(tmp_path, "mixtral"))
    narrow = open_graphs(recorder=Watched, precision="nvfp4", can_emulate=True)

    assert (barred_of(mixture), barred_of(narrow)) == ({"resolve_conj", "where.default"}, {"lift_fresh"})
