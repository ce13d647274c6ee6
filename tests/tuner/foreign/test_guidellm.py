"""guidellm's benchmarks.json, of this version and of earlier ones, and what its names mean."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.foreign.reading import read_all, read_one
from tuner.foreign.errors import BadResultFile
from tuner.foreign.result import ForeignLatency, Tool
from tuner.foreign_results import read_results


def distribution(mean: float, **changes: Any) -> dict[str, Any]:
    """Return a metric of 58 successful requests."""
    told = {"mean": mean, "median": mean - 1, "count": 58, "total_sum": 58 * mean}
    return {"successful": told | {"percentiles": {"p50": mean - 1, "p90": mean + 1, "p99": mean + 9}} | changes}


def benchmark(strategy: dict[str, Any], **metrics: Any) -> dict[str, Any]:
    """Return one benchmark."""
    totals = {"successful": 58, "errored": 1, "incomplete": 2, "total": 61}
    config = {"strategy": strategy, "backend": {"target": "http://localhost:8000", "model": "tiny/llama"}}
    found = {"request_totals": totals, "time_to_first_token_ms": distribution(104.0)}
    return {
        "type_": "generative_benchmark",
        "config": config,
        "start_time": 1_790_000_000.5,
        "duration": 30.0,
        "metrics": found | metrics,
    }


def report(*benchmarks: Any) -> dict[str, Any]:
    metadata = {"version": 2, "guidellm_version": "0.8.1", "python_version": "3.12.4", "platform": "Linux"}
    return {"metadata": metadata, "config": {}, "benchmarks": list(benchmarks)}


def test_each_rate_is_a_result() -> None:
    """BUG-55: one file holds several rates, and each is a result; the bound that guidellm adds was not asked for."""
    results = read_all(
        report(
            benchmark({"type_": "constant", "rate": 2.0}),
            benchmark({"type_": "poisson", "rate": 4.0, "max_concurrency": 10240, "worker_count": 10}),
            benchmark({"type_": "concurrent", "streams": 8}),
            benchmark({"type_": "synchronous"}),
            benchmark({"type_": "throughput", "max_concurrency": 512}),
        )
    )
    assert [(one.load, one.asked_rate_per_s, one.asked_concurrency) for one in results] == [
        ("constant", 2.0, None), ("poisson", 4.0, None), ("concurrent", None, 8), ("synchronous", None, 1),
        ("throughput", None, 512),
    ]  # fmt: skip
    first = results[0]
    assert (first.tool, first.tool_version, first.model) == (Tool.GUIDELLM, "0.8.1", "tiny/llama")
    assert first.measured_at == datetime.fromtimestamp(1_790_000_000.5, UTC)
    assert (first.num_completed, first.num_failed, first.duration_s) == (58, 1, 30.0)
    assert first.ttft_ms == ForeignLatency(mean=104.0, p50=103.0, p90=105.0, p99=113.0)
    assert "2 cut off at the end and in no figure" in first.notes


def test_its_inter_token_latency_is_our_tpot() -> None:
    """BUG-55: `inter_token_latency_ms` is TPOT; `time_per_output_token_ms` includes TTFT and is read nowhere."""
    one = benchmark(
        {"type_": "constant", "rate": 2.0},
        inter_token_latency_ms=distribution(20.0),
        time_per_output_token_ms=distribution(33.0),
    )
    result = read_one(report(one))
    assert result.tpot_ms == ForeignLatency(mean=20.0, p50=19.0, p90=21.0, p99=29.0)
    assert result.itl_ms is None
    assert result.inter_chunk_ms is None
    assert any("calls TPOT inter-token latency" in note for note in result.notes)


def test_request_latency_is_in_seconds() -> None:
    """BUG-55: the one latency without `_ms` in its name is in seconds."""
    result = read_one(report(benchmark({"type_": "synchronous"}, request_latency=distribution(12.0))))
    assert result.e2e_ms == ForeignLatency(mean=12000.0, p50=11000.0, p90=13000.0, p99=21000.0)


def test_rates_and_totals() -> None:
    """Output tokens per second are what the file says; without it, its tokens over its duration."""
    tokens = {"output_token_count": distribution(30.0), "prompt_token_count": distribution(100.0)}
    result = read_one(report(benchmark({"type_": "synchronous"}, **tokens)))
    assert (result.prompt_tokens, result.output_tokens, result.output_tok_s) == (5800, 1740, 58.0)
    told = benchmark({"type_": "synchronous"}, **tokens, output_tokens_per_second=distribution(57.0))
    assert read_one(report(told)).output_tok_s == 57.0


def test_a_benchmark_without_answers_has_no_figures() -> None:
    """BUG-55: null, and distributions of no sample that are all 0, are None."""
    totals = {"successful": 0, "errored": 20, "incomplete": 0, "total": 20}
    nothing = distribution(0.0, count=0, total_sum=0)
    for empty in ({"successful": None}, nothing):
        one = benchmark(
            {"type_": "throughput"}, request_totals=totals, time_to_first_token_ms=empty, request_latency=empty
        )
        result = read_one(report(one))
        assert (result.num_completed, result.num_failed, result.has_latency) == (0, 20, False)
        assert result.output_tok_s is None
        assert "no request was completed" in result.notes


def test_earlier_releases_are_read() -> None:
    """BUG-55: the top level changed between releases: `args` for `config`, and the strategy under `scheduler`."""
    one = benchmark({"type_": "constant", "rate": 2.0})
    del one["config"]
    one["scheduler"] = {"strategy": {"type_": "constant", "rate": 2.0}}
    one["request_totals"] = one["metrics"].pop("request_totals")
    result = read_one({"args": {"model": "tiny/llama", "target": "http://localhost:8000"}, "benchmarks": [one]})
    assert (result.model, result.load, result.asked_rate_per_s) == ("tiny/llama", "constant", 2.0)
    assert (result.num_completed, result.tool_version) == (58, None)


def test_what_must_be_known_is_noted() -> None:
    """Requests that were sent late, and a first token that was one of reasoning, are told."""
    one = benchmark(
        {"type_": "constant", "rate": 2.0},
        request_dispatch_delay=distribution(0.25),
        time_to_first_output_token_ms=distribution(900.0),
    )
    notes = read_one(report(one)).notes
    assert "requests were sent 250 ms late on average, which no latency counts" in notes
    assert "TTFT is that of a token of reasoning; the answer began after 900 ms on average" in notes


@pytest.mark.parametrize("start_time", [-1.0, 0, "soon", None])
def test_a_sentinel_is_no_moment(start_time: object) -> None:
    """A start of -1 or 0 says that there was none."""
    assert read_one(report(benchmark({"type_": "synchronous"}) | {"start_time": start_time})).measured_at is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": None}, "benchmarks[0].metrics is None: give the benchmark's metrics"),
        ({"duration": "long"}, "benchmarks[0].duration is 'long': give a number"),
        (
            {"metrics": {"time_to_first_token_ms": {"successful": {"mean": "104"}}}},
            "benchmarks[0].metrics.time_to_first_token_ms.successful.mean is '104': give a number",
        ),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], words: str) -> None:
    """File, field with its place, value and remedy stand in one sentence."""
    with pytest.raises(BadResultFile) as raised:
        read_one(report(benchmark({"type_": "synchronous"}) | changes))
    assert str(raised.value).startswith(f"results.json: {words}")


def test_yaml_is_named_with_the_remedy(tmp_path: Path) -> None:
    """A report as YAML, which guidellm can write too, is recognised and refused with what to do."""
    path = tmp_path / "benchmarks.yaml"
    path.write_text("benchmarks:\n- config: {}\n")
    with pytest.raises(BadResultFile, match=r"benchmarks\.yaml: format is 'YAML': guidellm writes JSON too"):
        read_results(path)
