"""AIPerf's records, one request a line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.tuner.foreign.reading import read_all
from tuner.foreign.errors import BadResultFile
from tuner.foreign.result import Tool

BEGIN_NS = 1_790_000_000_000_000_000
FAILURE = {"code": 500, "type": "ServerError", "message": "engine stopped"}


def record(start_ms: int, end_ms: int, metrics: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the record of a request between two times."""
    metadata = {
        "request_start_ns": BEGIN_NS + start_ms * 10**6,
        "request_end_ns": BEGIN_NS + end_ms * 10**6,
        "benchmark_phase": changes.pop("phase", "profiling"),
        "was_cancelled": changes.pop("was_cancelled", False),
    }
    return {"metadata": metadata, "metrics": metrics or {}, "error": None} | changes


def answer(ttft_ms: float, gaps_ms: list[float]) -> dict[str, Any]:
    """Return the metrics of a request with these gaps between pieces of one token."""
    return {
        "input_sequence_length": {"value": 120, "unit": "tokens"},
        "output_sequence_length": {"value": len(gaps_ms) + 1, "unit": "tokens"},
        "time_to_first_token": {"value": ttft_ms, "unit": "ms"},
        "inter_chunk_latency": {"value": gaps_ms, "unit": "ms"},
        "inter_token_latency": {"value": sum(gaps_ms) / len(gaps_ms), "unit": "ms"},
        "request_latency": {"value": ttft_ms + sum(gaps_ms), "unit": "ms"},
    }


def test_records_are_one_run() -> None:
    """BUG-55: answered, failed and cancelled requests are counted apart, and warm-up is left out."""
    (result,) = read_all(
        record(-900, -500, answer(800.0, [1.0]), phase="warmup"),
        record(0, 160, answer(100.0, [20.0, 40.0])),
        record(100, 500, answer(300.0, [30.0, 30.0])),
        record(500, 5500, error=FAILURE),
        record(600, 601, was_cancelled=True, error={"code": 499}),
    )
    assert (result.tool, result.num_completed, result.num_failed) == (Tool.AIPERF, 2, 1)
    assert result.measured_at == datetime.fromtimestamp(BEGIN_NS / 1e9, UTC)
    assert (result.duration_s, result.output_tok_s) == (5.5, 6 / 5.5)
    assert (result.prompt_tokens, result.output_tokens) == (240, 6)
    assert result.ttft_ms is not None
    assert (result.ttft_ms.mean, result.ttft_ms.p50) == (200.0, 200.0)
    assert result.tpot_ms is not None
    assert (result.tpot_ms.mean, result.tpot_ms.p50) == (30.0, 30.0)
    assert result.inter_chunk_ms is not None
    assert (result.inter_chunk_ms.mean, result.inter_chunk_ms.p50) == (30.0, 30.0)
    assert result.inter_chunk_ms.p99 == pytest.approx(39.7)
    assert result.notes == ("summed up here from AIPerf's record of each request", "1 cancelled and in no figure")


def test_a_run_that_failed_has_no_figures() -> None:
    """BUG-55: where every request failed there is no latency and no rate."""
    (result,) = read_all(record(0, 10, error=FAILURE), record(5, 20, error=FAILURE))
    assert (result.num_completed, result.num_failed) == (0, 2)
    assert (result.has_latency, result.output_tok_s, result.output_tokens) == (False, None, None)


def test_a_single_record_is_a_run() -> None:
    """A file of one line is read as one of many."""
    (result,) = read_all(record(0, 160, answer(100.0, [20.0, 40.0])))
    assert result.num_completed == 1


def test_warm_up_alone_is_no_run() -> None:
    """A file that holds only warm-up has no results, and says so."""
    with pytest.raises(BadResultFile, match="results is 0: the file has none"):
        read_all(record(0, 1, phase="warmup"), record(1, 2, phase="warmup"))


def test_a_wrong_line_is_named() -> None:
    """The line, the field and the value stand in the complaint."""
    bad = answer(100.0, [20.0]) | {"time_to_first_token": {"value": "soon", "unit": "ms"}}
    with pytest.raises(BadResultFile) as raised:
        read_all(record(0, 1, answer(1.0, [1.0])), record(0, 1, bad))
    assert str(raised.value).startswith("results.json: line 2.metrics.time_to_first_token.value is 'soon': give a")
