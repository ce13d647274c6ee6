"""SGLang's `bench_serving`: whose ITL is per token on some backends and per piece on others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.foreign.reading import read_all, read_one
from tuner.foreign.result import ForeignLatency, Tool

RUN: dict[str, Any] = {
    "tag": None,
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 1.5,
    "max_concurrency": 2,
    "server_info": {"model_path": "tiny/llama", "tp_size": 1},
    "duration": 1.0,
    "completed": 2,
    "total_input_tokens": 8,
    "total_output_tokens": 5,
    "total_output_tokens_retokenized": 5,
    "request_throughput": 2.0,
    "output_throughput": 5.0,
    "mean_e2e_latency_ms": 18.0,
    "median_e2e_latency_ms": 18.0,
    "p90_e2e_latency_ms": 21.0,
    "p95_e2e_latency_ms": 22.0,
    "p99_e2e_latency_ms": 23.0,
    "mean_ttft_ms": 16.0,
    "median_ttft_ms": 16.0,
    "p99_ttft_ms": 20.0,
    "mean_tpot_ms": 2.0,
    "median_tpot_ms": 2.0,
    "p99_tpot_ms": 3.0,
    "mean_itl_ms": 2.5,
    "median_itl_ms": 2.0,
    "p95_itl_ms": 3.0,
    "p99_itl_ms": 3.5,
    "accept_length": None,
}
DETAILS: dict[str, Any] = {
    "input_lens": [4, 4, 4],
    "output_lens": [3, 2, 0],
    "ttfts": [0.012, 0.020, 0.0],
    "itls": [[0.001, 0.002], [0.003], []],
    "generated_texts": ["a", "b", ""],
    "errors": ["", "", "refused"],
}
ITL = ForeignLatency(mean=2.5, p50=2.0, p95=3.0, p99=3.5)


def test_a_run_is_read() -> None:
    """Counts, rates and latencies are what the line says; how many failed it does not say."""
    result = read_one(RUN)
    assert (result.tool, result.model, result.asked_rate_per_s, result.asked_concurrency) == (
        Tool.SGLANG, "tiny/llama", 1.5, 2,
    )  # fmt: skip
    assert (result.num_completed, result.num_failed, result.output_tok_s) == (2, None, 5.0)
    assert result.e2e_ms == ForeignLatency(mean=18.0, p50=18.0, p90=21.0, p95=22.0, p99=23.0)
    assert result.tpot_ms == ForeignLatency(mean=2.0, p50=2.0, p99=3.0)


@pytest.mark.parametrize(
    ("backend", "accept_length", "is_per_token"),
    [
        ("sglang", None, True),
        ("sglang-native", 1.0, True),
        ("sglang-oai", None, False),
        ("sglang-oai-chat", 2.4, True),
        ("vllm", 2.4, False),
    ],
)
def test_its_itl_depends_on_the_backend(backend: str, accept_length: float | None, is_per_token: bool) -> None:
    """BUG-55: gaps that are spread over tokens are ITL, those between streamed pieces are not; a note tells which."""
    result = read_one(RUN | {"backend": backend, "accept_length": accept_length})
    assert (result.itl_ms, result.inter_chunk_ms) == ((ITL, None) if is_per_token else (None, ITL))
    assert any("spreads the gap" in note for note in result.notes) is is_per_token


def test_details_fill_what_is_missing() -> None:
    """Of `--output-details` failed requests are counted, and absent percentiles come from the arrays."""
    result = read_one({name: value for name, value in RUN.items() if name != "p99_ttft_ms"} | DETAILS)
    assert result.num_failed == 1
    assert result.ttft_ms is not None
    assert result.ttft_ms.p99 == pytest.approx(19.92)


def test_rates_that_are_no_numbers() -> None:
    """Infinity, as Python writes it, and `trace` are no rates."""
    at_once, replay = read_all(RUN | {"request_rate": float("inf")}, RUN | {"request_rate": "trace"})
    assert (at_once.asked_rate_per_s, replay.asked_rate_per_s, replay.load) == (None, None, "trace")


def test_where_all_requests_failed_nothing_is_told() -> None:
    """BUG-55: zeros of a run without an answer are None, and a server that told nothing of itself is no fault."""
    result = read_one(RUN | {"completed": 0, "output_throughput": 0.0, "server_info": None, "mean_ttft_ms": 0.0})
    assert (result.has_latency, result.output_tok_s, result.model) == (False, None, None)
    assert "all requests failed" in result.notes
