"""Results of `vllm bench serve --save-result`: one JSON object, or with `--append-result` one a line.

Summary fields are in milliseconds, arrays in seconds. Which percentiles and which latencies there are is chosen by
options; a percentile that the summary lacks is taken from the arrays of `--save-detailed`. Read after
vllm/benchmarks/serve.py of vLLM 0.32. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.foreign.fields import Fields, is_infinite
from tuner.foreign.request_arrays import RequestFigures, figures_of
from tuner.foreign.result import ForeignLatency, ForeignResult, Tool

#: Of a summary; SGLang's has neither.
_MARKS = ("date", "num_prompts", "endpoint_type", "tokenizer_id", "total_token_throughput")


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether an object is a result of vLLM's client, provided it is none of SGLang's."""
    return {"duration", "completed"} <= document.keys() and any(mark in document for mark in _MARKS)


def read(fields: Fields) -> ForeignResult:
    """Return one result in our terms. Raises BadResultFile."""
    num_completed = fields.count("completed")
    if num_completed is None:
        raise fields.fault("completed", None, "give the number of completed requests")
    figures = figures_of(fields, num_completed) if num_completed else RequestFigures()
    rate = fields.values.get("request_rate")
    duration_s, told_tokens = fields.positive("duration"), fields.count("total_output_tokens")
    tokens = (told_tokens or figures.output_tokens) if num_completed else None
    return ForeignResult(
        tool=Tool.VLLM,
        label=fields.word("label"),
        model=fields.word("model_id"),
        load=fields.word("ramp_up_strategy"),
        asked_rate_per_s=None if is_infinite(rate) else fields.positive("request_rate"),
        asked_concurrency=fields.count("max_concurrency") or None,
        duration_s=duration_s,
        num_completed=num_completed,
        num_failed=_num_failed(fields, num_completed, figures),
        prompt_tokens=fields.count("total_input_tokens") or figures.prompt_tokens,
        output_tokens=tokens,
        output_tok_s=rate_of(fields.positive("output_throughput"), tokens, duration_s) if num_completed else None,
        ttft_ms=summary_of(fields, "ttft", num_completed, figures.ttft_ms),
        tpot_ms=summary_of(fields, "tpot", num_completed, figures.tpot_ms),
        inter_chunk_ms=summary_of(fields, "itl", num_completed, figures.gaps_ms),
        e2e_ms=summary_of(fields, "e2el", num_completed, figures.e2e_ms),
        notes=tuple(_notes(fields, num_completed)),
        sha256=fields.source.sha256,
    )


def summary_of(fields: Fields, name: str, num_completed: int, samples: ForeignLatency | None) -> ForeignLatency | None:
    """Return a latency of the summary with what it lacks taken from samples; None where nothing is told of it.

    Both clients write 0 where they have no sample.
    """
    if not num_completed:
        return None
    percentiles = {f"p{share}": (f"p{share}_{name}_ms",) for share in (90, 95, 99)}
    median = (f"median_{name}_ms", f"p50_{name}_ms")
    told = fields.latency({"mean": (f"mean_{name}_ms",), "p50": median, **percentiles})
    whole = told if samples is None else told.filled_from(samples)
    return None if whole.is_empty else whole


def rate_of(told: float | None, tokens: int | None, duration_s: float | None) -> float | None:
    """Return the output rate that is told, or the one that tokens and duration give."""
    if told is not None or not tokens or duration_s is None:
        return told
    return tokens / duration_s


def _num_failed(fields: Fields, num_completed: int, figures: RequestFigures) -> int | None:
    """Return how many requests failed; earlier versions only say how many there were."""
    told, asked = fields.count("failed"), fields.count("num_prompts")
    if told is not None:
        return told
    return figures.num_failed if asked is None or asked < num_completed else asked - num_completed


def _notes(fields: Fields, num_completed: int) -> Iterator[str]:
    if not num_completed:
        yield "all requests failed"
    elif any(f"{statistic}_itl_ms" in fields.values for statistic in ("mean", "median")) or "itls" in fields.values:
        yield "vLLM counts one ITL sample per streamed output, however many tokens it holds"
    if is_infinite(fields.values.get("request_rate")):
        yield "sent as fast as possible (request_rate inf)"
    if (late_ms := fields.positive("mean_client_queue_time_ms")) is not None:
        yield f"requests waited {late_ms:.4g} ms on average in the client, which no latency counts"
    if (date := fields.word("date")) is not None:
        yield f"saved at {date} in an unknown time zone"
