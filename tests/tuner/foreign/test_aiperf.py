"""AIPerf's and GenAI-Perf's summaries: units from the file, power that is not ours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.tuner.foreign.reading import read_one
from tuner.foreign.errors import BadResultFile
from tuner.foreign.result import ForeignLatency, Tool


def block(unit: str, avg: float, **more: Any) -> dict[str, Any]:
    return {"unit": unit, "avg": avg} | more


METRICS: dict[str, Any] = {
    "request_throughput": block("requests/sec", 1.9),
    "request_count": block("requests", 40.0),
    "request_latency": block("ms", 900.0, p50=880.0, p99=1200.0, count=40, sum=36000.0),
    "time_to_first_token": block("ms", 101.2, p50=99.0, p99=140.3, min=88.1, max=141.0, std=9.7, count=40),
    "inter_token_latency": block("ms", 20.0, p50=19.5, p90=22.0),
    "inter_chunk_latency": block("ms", 40.0, p50=39.0),
    "output_token_throughput": block("tokens/sec", 310.5),
    "benchmark_duration": block("sec", 21.0),
    "total_isl": block("tokens", 4800.0),
    "total_osl": block("tokens", 6520.0),
    "error_request_count": block("requests", 2.0),
}
TOP: dict[str, Any] = {
    "schema_version": "1.5",
    "aiperf_version": "0.13.0",
    "start_time": "2026-09-11T02:15:03+00:00",
    "was_cancelled": False,
    "error_summary": [],
    "input_config": {
        "models": {"strategy": "round_robin", "items": [{"name": "tiny/llama"}]},
        "phases": [{"name": "warmup", "concurrency": 1}, {"name": "profiling", "type": "poisson", "rate": 2.0}],
    },
    "run_info": {"run_label": "run_0001"},
}


def with_power(*powers: dict[str, Any], name: str = "nvidia_power_usage") -> dict[str, Any]:
    """Return telemetry of a GPU for each power, under one host."""
    gpus = {f"gpu_{i}": {"gpu_uuid": f"GPU-{i}", "metrics": {name: power}} for i, power in enumerate(powers)}
    return {"telemetry_data": {"endpoints": {"localhost:9400": {"gpus": gpus}}}}


def test_a_summary_is_read() -> None:
    """Counts, rates, load and latencies are what the blocks say; `inter_token_latency` is our TPOT (BUG-55)."""
    result = read_one(TOP | METRICS)
    assert (result.tool, result.tool_version, result.label, result.model) == (
        Tool.AIPERF, "0.13.0", "run_0001", "tiny/llama",
    )  # fmt: skip
    assert result.measured_at == datetime(2026, 9, 11, 2, 15, 3, tzinfo=UTC)
    assert (result.load, result.asked_rate_per_s, result.asked_concurrency) == ("poisson", 2.0, None)
    assert (result.num_completed, result.num_failed, result.duration_s) == (40, 2, 21.0)
    assert (result.prompt_tokens, result.output_tokens, result.output_tok_s) == (4800, 6520, 310.5)
    assert result.ttft_ms == ForeignLatency(mean=101.2, p50=99.0, p99=140.3)
    assert result.tpot_ms == ForeignLatency(mean=20.0, p50=19.5, p90=22.0)
    assert result.inter_chunk_ms == ForeignLatency(mean=40.0, p50=39.0)
    assert result.e2e_ms == ForeignLatency(mean=900.0, p50=880.0, p99=1200.0)
    assert (result.itl_ms, result.reported_power_w, result.reported_power_scope) == (None, None, None)


@pytest.mark.parametrize(("unit", "value"), [("ns", 101_200_000.0), ("us", 101_200.0), ("ms", 101.2), ("sec", 0.1012)])
def test_the_unit_is_the_files(unit: str, value: float) -> None:
    """BUG-55: a latency is in the unit that its block names."""
    result = read_one(TOP | METRICS | {"time_to_first_token": block(unit, value)})
    assert result.ttft_ms == ForeignLatency(mean=101.2)


@pytest.mark.parametrize(("errors", "num_failed"), [([], 0), ([{"count": 2}, {"count": 1}], 3), (None, None)])
def test_failures_are_counted_by_the_list_of_errors(errors: object, num_failed: int | None) -> None:
    """Without the metric, which AIPerf 0.13 leaves out where nothing failed, the list of errors tells."""
    counted = {name: value for name, value in METRICS.items() if name != "error_request_count"}
    assert read_one(TOP | counted | {"error_summary": errors}).num_failed == num_failed


def test_an_unknown_unit_is_refused() -> None:
    """A unit that is no time is named with those that are; nothing is guessed."""
    with pytest.raises(BadResultFile, match=r"time_to_first_token\.unit is 'fortnights': give one of ns, us, ms"):
        read_one(TOP | METRICS | {"time_to_first_token": block("fortnights", 1.0)})


def test_an_early_release_is_read() -> None:
    """BUG-55: metrics once stood under `records`."""
    result = read_one({"records": METRICS, "input_config": {"endpoint": {"model_names": ["a", "b"]}}})
    assert (result.tool, result.model, result.num_completed) == (Tool.AIPERF, "a, b", 40)


def test_genai_perf_is_told_apart() -> None:
    """The same blocks with GenAI-Perf's configuration are GenAI-Perf's, with the load of its stimulus."""
    config = {"model_names": ["tiny/llama"], "perf_analyzer": {"stimulus": {"concurrency": 8}}}
    result = read_one(METRICS | {"telemetry_stats": {}, "input_config": config})
    assert (result.tool, result.model, result.asked_concurrency) == (Tool.GENAI_PERF, "tiny/llama", 8)
    assert "GenAI-Perf calls TPOT inter-token latency" in result.notes


def test_what_is_absent_is_none() -> None:
    """BUG-55: a file of one block has nothing else, and no 0."""
    result = read_one({"schema_version": "1.5", "request_throughput": block("requests/sec", 1.9)})
    assert (result.num_completed, result.num_failed, result.output_tok_s, result.has_latency) == (
        None,
        None,
        None,
        False,
    )


def test_a_time_without_its_zone_is_no_moment() -> None:
    """AIPerf 0.13 writes local time without an offset: there is no moment, and a note quotes it."""
    result = read_one(TOP | METRICS | {"start_time": "2026-09-11T02:15:03.5"})
    assert result.measured_at is None
    assert "began at 2026-09-11T02:15:03.5 in an unknown time zone" in result.notes


@pytest.mark.parametrize("name", ["nvidia_power_usage", "amd_power", "gpu_power_usage"])
def test_power_is_reported_not_metered(name: str) -> None:
    """The mean power of all GPUs together is kept with whose figure it is; there is no energy."""
    result = read_one(TOP | METRICS | with_power(block("W", 310.0), block("W", 290.0), name=name))
    assert (result.reported_power_w, result.reported_power_scope) == (600.0, "reported by AIPerf")
    assert not [field for field in type(result).__slots__ if "energy" in field or field.endswith("_j")]


def test_power_of_some_gpus_is_no_power() -> None:
    """Where one GPU has no figure in watts the sum would be wrong, so there is none."""
    for other in (block("mW", 290_000.0), {"unit": "W"}):
        assert read_one(TOP | METRICS | with_power(block("W", 310.0), other)).reported_power_w is None


def test_a_run_without_answers_has_no_figures() -> None:
    """BUG-55: with no request completed, blocks of 0 tell nothing."""
    nothing = {"request_count": block("requests", 0.0), "output_token_throughput": block("tokens/sec", 0.0)}
    result = read_one(TOP | METRICS | nothing)
    assert (result.num_completed, result.has_latency, result.output_tok_s) == (0, False, None)
    assert "no request was completed" in result.notes


def test_a_cancelled_run_says_so() -> None:
    """A run that was interrupted is noted."""
    assert "the run was cancelled before its end" in read_one(TOP | METRICS | {"was_cancelled": True}).notes
