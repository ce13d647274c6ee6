"""Results of `python -m sglang.bench_serving`: JSON lines, one a run. Summary in milliseconds, arrays in seconds.

What its ITL is depends on the backend: of SGLang's own endpoint each gap is spread over the tokens that came with it,
of OpenAI's endpoints it is one sample per streamed piece, unless a speculative decoder is at work. Read after
sglang/benchmark/serving.py of SGLang 0.5.23. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.foreign.fields import Fields, is_infinite
from tuner.foreign.request_arrays import RequestFigures, figures_of
from tuner.foreign.result import ForeignResult, Tool
from tuner.foreign.vllm_bench import rate_of, summary_of

_MARKS = ("mean_e2e_latency_ms", "total_output_tokens_retokenized")
#: Backends whose ITL is per token; the last two where `accept_length` tells of a speculative decoder.
_PER_TOKEN = ("sglang", "sglang-native")
_RETOKENIZED = ("sglang-oai", "sglang-oai-chat")


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether an object is a result of SGLang's client."""
    return {"duration", "completed"} <= document.keys() and any(mark in document for mark in _MARKS)


def read(fields: Fields) -> ForeignResult:
    """Return one result in our terms. Raises BadResultFile."""
    num_completed = fields.count("completed")
    if num_completed is None:
        raise fields.fault("completed", None, "give the number of completed requests")
    figures = figures_of(fields, num_completed) if num_completed else RequestFigures()
    rate = fields.values.get("request_rate")
    is_replay = rate == "trace"
    duration_s, told_tokens = fields.positive("duration"), fields.count("total_output_tokens")
    tokens = (told_tokens or figures.output_tokens) if num_completed else None
    gaps_ms = summary_of(fields, "itl", num_completed, figures.gaps_ms)
    is_per_token = _is_per_token(fields)
    return ForeignResult(
        tool=Tool.SGLANG,
        label=fields.word("tag"),
        model=_model_of(fields),
        load="trace" if is_replay else None,
        asked_rate_per_s=None if is_replay or is_infinite(rate) else fields.positive("request_rate"),
        asked_concurrency=fields.count("max_concurrency") or None,
        duration_s=duration_s,
        num_completed=num_completed,
        num_failed=figures.num_failed,
        prompt_tokens=fields.count("total_input_tokens") or figures.prompt_tokens,
        output_tokens=tokens,
        output_tok_s=rate_of(fields.positive("output_throughput"), tokens, duration_s) if num_completed else None,
        ttft_ms=summary_of(fields, "ttft", num_completed, figures.ttft_ms),
        tpot_ms=summary_of(fields, "tpot", num_completed, figures.tpot_ms),
        itl_ms=gaps_ms if is_per_token else None,
        inter_chunk_ms=None if is_per_token else gaps_ms,
        e2e_ms=summary_of(fields, "e2e_latency", num_completed, figures.e2e_ms),
        notes=tuple(_notes(fields, num_completed, is_per_token=is_per_token)),
        sha256=fields.source.sha256,
    )


def _is_per_token(fields: Fields) -> bool:
    backend = fields.word("backend")
    return backend in _PER_TOKEN or (backend in _RETOKENIZED and bool(fields.number("accept_length")))


def _model_of(fields: Fields) -> str | None:
    """Return the model that the server told of itself, where the client could ask it."""
    if not isinstance(fields.values.get("server_info"), dict):
        return None
    server = fields.inner("server_info")
    return None if server is None else server.word("served_model_name") or server.word("model_path")


def _notes(fields: Fields, num_completed: int, *, is_per_token: bool) -> Iterator[str]:
    if not num_completed:
        yield "all requests failed"
    elif is_per_token:
        yield "SGLang spreads the gap between streamed pieces evenly over the tokens that came with it"
    elif "mean_itl_ms" in fields.values:
        yield "SGLang counts one ITL sample per streamed piece on this backend, however many tokens it holds"
    if is_infinite(fields.values.get("request_rate")):
        yield "sent as fast as possible (request_rate inf)"
