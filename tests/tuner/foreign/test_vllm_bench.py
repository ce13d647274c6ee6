"""`vllm bench serve`: what options leave out, arrays in seconds, and what its names mean (BUG-55)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.foreign.reading import read_all, read_one
from tuner.foreign.errors import BadResultFile
from tuner.foreign.result import ForeignLatency, Tool

SUMMARY: dict[str, Any] = {
    "date": "20260911-021503",
    "endpoint_type": "openai-chat",
    "backend": "openai-chat",
    "label": None,
    "model_id": "tiny/llama",
    "tokenizer_id": "tiny/llama",
    "num_prompts": 3,
    "request_rate": 4.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 2.5,
    "completed": 2,
    "failed": 1,
    "total_input_tokens": 300,
    "total_output_tokens": 31,
    "request_throughput": 0.8,
    "request_goodput": None,
    "output_throughput": 12.4,
    "total_token_throughput": 132.4,
    "mean_ttft_ms": 110.0,
    "median_ttft_ms": 109.0,
    "std_ttft_ms": 10.0,
    "p99_ttft_ms": 119.8,
}
DETAILED: dict[str, Any] = {
    "date": "20260911-022540",
    "backend": "openai",
    "num_prompts": 3,
    "request_rate": 2.0,
    "duration": 1.4,
    "completed": 2,
    "failed": 1,
    "input_lens": [10, 12, 8],
    "output_lens": [6, 0, 3],
    "ttfts": [0.1, 0.0, 0.3],
    "itls": [[0.02, 0.02, 0.02, 0.02, 0.02], [], [0.05, 0.03]],
    "latencies": [0.2, 0.0, 0.4],
    "start_times": [5120.10, 5120.61, 5121.0],
    "queue_times": [0.0, 0.0, 0.0],
    "generated_texts": ["a b c d e f", "", "a b c"],
    "errors": ["", "Timeout", ""],
}


def test_a_summary_is_read() -> None:
    """Counts, rates and latencies of a summary are what it says, in milliseconds; what it lacks is None."""
    result = read_one(SUMMARY)
    assert (result.tool, result.model, result.asked_rate_per_s, result.asked_concurrency) == (
        Tool.VLLM, "tiny/llama", 4.0, None,
    )  # fmt: skip
    assert (result.duration_s, result.num_completed, result.num_failed) == (2.5, 2, 1)
    assert (result.prompt_tokens, result.output_tokens, result.output_tok_s) == (300, 31, 12.4)
    assert result.ttft_ms == ForeignLatency(mean=110.0, p50=109.0, p99=119.8)
    assert (result.tpot_ms, result.itl_ms, result.inter_chunk_ms, result.e2e_ms) == (None, None, None, None)


@pytest.mark.parametrize("left_out", ["p99_ttft_ms", "median_ttft_ms", "mean_ttft_ms", "failed", "total_input_tokens"])
def test_what_is_left_out_is_none(left_out: str) -> None:
    """BUG-55: percentiles and metrics are chosen by options; an absent one is None, not 0 and not a crash."""
    result = read_one({name: value for name, value in SUMMARY.items() if name != left_out})
    told = {
        "p99_ttft_ms": result.ttft_ms and result.ttft_ms.p99,
        "median_ttft_ms": result.ttft_ms and result.ttft_ms.p50,
        "mean_ttft_ms": result.ttft_ms and result.ttft_ms.mean,
        "failed": None if result.num_failed == 1 else result.num_failed,  # told by num_prompts
        "total_input_tokens": result.prompt_tokens,
    }
    assert told[left_out] is None


def test_other_percentiles_and_fields_are_taken_as_they_come() -> None:
    """BUG-55: fields that nobody knows change nothing, and percentiles of `--metric-percentiles 50,90,95` are read."""
    more = {"p50_ttft_ms": 1.0, "p90_ttft_ms": 115.0, "p95_ttft_ms": 117.0, "p99.9_ttft_ms": 120.0, "new": {"a": [1]}}
    result = read_one(SUMMARY | more)
    assert result.ttft_ms == ForeignLatency(mean=110.0, p50=109.0, p90=115.0, p95=117.0, p99=119.8)


def test_arrays_are_in_seconds_and_failed_requests_have_no_latency() -> None:
    """BUG-55: a request with an error text and TTFT 0.0 is left out; TPOT is (latency - TTFT) / (tokens - 1)."""
    result = read_one(DETAILED)
    assert result.ttft_ms is not None
    assert result.ttft_ms.mean == pytest.approx(200.0)
    assert result.tpot_ms is not None
    assert result.tpot_ms.mean == pytest.approx((20.0 + 50.0) / 2)
    assert result.inter_chunk_ms is not None
    assert result.inter_chunk_ms.mean == pytest.approx(180.0 / 7)
    assert result.e2e_ms is not None
    assert result.e2e_ms.p99 == pytest.approx(398.0)
    assert (result.prompt_tokens, result.output_tokens, result.output_tok_s) == (18, 9, 9 / 1.4)
    assert (result.num_completed, result.num_failed) == (2, 1)


def test_a_summary_comes_before_the_arrays() -> None:
    """Percentiles that the summary has stay; those that it lacks are taken from the arrays beside it."""
    result = read_one(DETAILED | {"mean_ttft_ms": 200.0, "p99_ttft_ms": 299.0})
    assert result.ttft_ms is not None
    assert (result.ttft_ms.mean, result.ttft_ms.p99) == (200.0, 299.0)
    assert result.ttft_ms.p90 == pytest.approx(280.0)


def test_gaps_between_outputs_are_not_gaps_between_tokens() -> None:
    """BUG-55: vLLM's ITL counts one sample per streamed output, so it is inter-chunk latency here, with a note."""
    result = read_one(SUMMARY | {"mean_itl_ms": 25.0, "median_itl_ms": 24.0, "p99_itl_ms": 60.0})
    assert result.itl_ms is None
    assert result.inter_chunk_ms == ForeignLatency(mean=25.0, p50=24.0, p99=60.0)
    assert "vLLM counts one ITL sample per streamed output, however many tokens it holds" in result.notes


@pytest.mark.parametrize("rate", ["inf", float("inf")])
def test_an_infinite_rate_is_no_rate(rate: object) -> None:
    """BUG-55: `request_rate` may be the text "inf": nothing was asked for, and a note says so."""
    result = read_one(SUMMARY | {"request_rate": rate, "max_concurrency": 2})
    assert (result.asked_rate_per_s, result.asked_concurrency) == (None, 2)
    assert "sent as fast as possible (request_rate inf)" in result.notes


def test_one_object_a_line_is_several_results() -> None:
    """BUG-55: a file of `--append-result` holds a result a line, and each is one of ours with the file's hash."""
    results = read_all(SUMMARY, SUMMARY | {"request_rate": 8.0}, DETAILED)
    assert [result.asked_rate_per_s for result in results] == [4.0, 8.0, 2.0]
    assert len({result.sha256 for result in results}) == 1


def test_where_all_requests_failed_nothing_is_told() -> None:
    """BUG-55: vLLM writes 0.0 for every latency where no request was answered; here they are None."""
    zeros = {"mean_ttft_ms": 0.0, "median_ttft_ms": 0.0, "p99_ttft_ms": 0.0, "mean_tpot_ms": 0.0}
    failed = {"completed": 0, "failed": 3, "output_throughput": 0.0, "total_output_tokens": 0}
    result = read_one(SUMMARY | zeros | failed)
    assert (result.num_completed, result.num_failed, result.has_latency) == (0, 3, False)
    assert (result.output_tok_s, result.output_tokens) == (None, None)
    assert "all requests failed" in result.notes


def test_a_latency_without_samples_is_none() -> None:
    """A mean of 0 is what the tool writes where no request had two tokens; no latency is 0."""
    assert read_one(SUMMARY | {"mean_tpot_ms": 0.0, "median_tpot_ms": 0.0, "p99_tpot_ms": 0.0}).tpot_ms is None


def test_latencies_alone_are_used_where_they_are_of_the_answered() -> None:
    """Without details `latencies` stay, failed ones as 0: they give E2E where their number is that of `completed`."""
    result = read_one(SUMMARY | {"latencies": [0.2, 0.0, 0.4]})
    assert result.e2e_ms is not None
    assert result.e2e_ms.mean == pytest.approx(300.0)
    assert read_one(SUMMARY | {"latencies": [0.2, 0.3, 0.4]}).e2e_ms is None


def test_a_local_date_is_no_moment() -> None:
    """The date has no time zone, so there is no moment; a note quotes it."""
    result = read_one(SUMMARY)
    assert result.measured_at is None
    assert "saved at 20260911-021503 in an unknown time zone" in result.notes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"duration": "2.5"}, "results.json: duration is '2.5': give a number, or leave it out"),
        ({"duration": -1}, "results.json: duration is -1: give a number from 0 to 1e+19, or leave it out"),
        ({"completed": 1.5}, "results.json: completed is 1.5: give a whole number up to"),
        ({"completed": None}, "results.json: completed is None: give the number of completed requests"),
        ({"model_id": 7}, "results.json: model_id is 7: give a text, or leave it out"),
        ({"p99_ttft_ms": True}, "results.json: p99_ttft_ms is True: give a number, or leave it out"),
        (
            {"ttfts": [0.1, "soon"], "errors": ["", ""]},
            "results.json: ttfts[1] is 'soon': give a number, or leave it out",
        ),
        ({"ttfts": [0.1], "itls": [[], []]}, "results.json: itls is '2 entries': ttfts has 1; save the results anew"),
        ({"itls": 3}, "results.json: itls is 3: give a list, or leave it out"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], words: str) -> None:
    """File, field, value and remedy stand in one sentence."""
    with pytest.raises(BadResultFile) as raised:
        read_one(SUMMARY | changes)
    assert str(raised.value).startswith(words)
