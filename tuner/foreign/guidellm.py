"""guidellm's `benchmarks.json`: one benchmark for each rate that was tried.

Its `inter_token_latency_ms` is a mean per request without the first token, which is our TPOT. Its
`time_per_output_token_ms` includes the time to the first token: that is no latency of ours, and is not read. Request
latency is in seconds, the others in milliseconds. Read after guidellm 0.8.1 (`config`); earlier releases have `args`
at the top and their strategy elsewhere. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tuner.foreign.fields import Fields
from tuner.foreign.result import ForeignLatency, ForeignResult, Tool
from tuner.foreign.samples import first_answer_note

#: Where the load of a benchmark stands: now, up to 0.3, before.
_STRATEGY_PLACES = (("config", "strategy"), ("scheduler", "strategy"), ("args", "strategy"))
#: What was asked at once, by strategy. Those of a rate have a `max_concurrency` too: a bound of guidellm's own.
_CONCURRENCY_NAMES = {"concurrent": "streams", "throughput": "max_concurrency"}
#: Where a file names its model, from the top: of 0.8, of releases with `args`.
_MODEL_PLACES = (("config", "backend"), ("config", "spec", "backend"), ("config",), ("args", "backend"), ("args",))
_FIRST_TOKENS = ("time_to_first_token_ms", "time_to_first_output_token_ms")
_PERCENTILES = ("p90", "p95", "p99")
#: A Unix time before this one is a sentinel (-1, 0) or damage.
_EARLIEST_S = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
_LATEST_S = datetime(2200, 1, 1, tzinfo=UTC).timestamp()


def is_report(document: Mapping[str, Any]) -> bool:
    """Whether an object is a report of guidellm."""
    benchmarks = document.get("benchmarks")
    return isinstance(benchmarks, list) and any(name in document for name in ("metadata", "config", "args"))


def read(report: Fields) -> Iterator[ForeignResult]:
    """Yield each benchmark in our terms, in the file's order. Raises BadResultFile."""
    metadata = report.inner("metadata")
    version = None if metadata is None else metadata.word("guidellm_version")
    for benchmark in report.objects("benchmarks"):
        yield _result(benchmark, version, _model_of(benchmark) or _model_of(report))


def _result(benchmark: Fields, version: str | None, model: str | None) -> ForeignResult:
    metrics = benchmark.inner("metrics")
    if metrics is None:
        raise benchmark.fault("metrics", None, "give the benchmark's metrics, or leave the benchmark out")
    totals = metrics.inner("request_totals") or benchmark.inner("request_totals")
    num_completed = None if totals is None else totals.count("successful")
    strategy = _strategy_of(benchmark)
    duration_s = benchmark.positive("duration")
    output_tokens = _total(metrics, "output_token_count")
    tpot_ms = _latency(metrics, "inter_token_latency_ms", num_completed)
    return ForeignResult(
        tool=Tool.GUIDELLM,
        tool_version=version,
        model=model,
        measured_at=_moment(benchmark),
        load=None if strategy is None else strategy.word("type_"),
        asked_rate_per_s=None if strategy is None else strategy.positive("rate"),
        asked_concurrency=_concurrency(strategy),
        duration_s=duration_s,
        num_completed=num_completed,
        num_failed=None if totals is None else totals.count("errored"),
        prompt_tokens=_total(metrics, "prompt_token_count"),
        output_tokens=output_tokens,
        output_tok_s=_output_tok_s(metrics, output_tokens, duration_s),
        ttft_ms=_latency(metrics, "time_to_first_token_ms", num_completed),
        tpot_ms=tpot_ms,
        e2e_ms=_latency(metrics, "request_latency", num_completed, to_ms=1e3),
        notes=tuple(_notes(metrics, totals, num_completed, has_tpot=tpot_ms is not None)),
        sha256=benchmark.source.sha256,
    )


def _strategy_of(benchmark: Fields) -> Fields | None:
    for outer_name, name in _STRATEGY_PLACES:
        outer = benchmark.inner(outer_name)
        strategy = None if outer is None else outer.inner(name)
        if strategy is not None:
            return strategy
    return None


def _concurrency(strategy: Fields | None) -> int | None:
    if strategy is None:
        return None
    kind = strategy.word("type_")
    if kind == "synchronous":
        return 1
    name = _CONCURRENCY_NAMES.get(kind or "")
    return None if name is None else strategy.count(name) or None


def _model_of(fields: Fields) -> str | None:
    for place in _MODEL_PLACES:
        found: Any = fields.values
        for name in place:
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, dict) and isinstance(found.get("model"), str):
            return Fields(fields.source, found).word("model")
    return None


def _moment(benchmark: Fields) -> datetime | None:
    start_s = benchmark.values.get("start_time")
    if isinstance(start_s, bool) or not isinstance(start_s, int | float) or not _EARLIEST_S <= start_s <= _LATEST_S:
        return None
    return datetime.fromtimestamp(start_s, UTC)


def _distribution(metrics: Fields, name: str) -> Fields | None:
    """Return what is told of the requests that succeeded; None where there was none of them."""
    whole = metrics.inner(name)
    found = None if whole is None else whole.inner("successful")
    return None if found is None or found.count("count") == 0 else found


def _latency(metrics: Fields, name: str, num_completed: int | None, to_ms: float = 1.0) -> ForeignLatency | None:
    found = None if num_completed == 0 else _distribution(metrics, name)
    if found is None:
        return None
    told = found.latency({"mean": ("mean",), "p50": ("median",)}, to_ms)
    percentiles = found.inner("percentiles")
    if percentiles is not None:
        names = {one: (one,) for one in ("p50", *_PERCENTILES)}
        told = told.filled_from(percentiles.latency(names, to_ms))
    return None if told.is_empty else told


def _mean(metrics: Fields, name: str) -> float | None:
    found = _distribution(metrics, name)
    return None if found is None else found.positive("mean")


def _total(metrics: Fields, name: str) -> int | None:
    found = _distribution(metrics, name)
    total = None if found is None else found.positive("total_sum")
    return None if total is None else round(total)


def _output_tok_s(metrics: Fields, tokens: int | None, duration_s: float | None) -> float | None:
    found = _distribution(metrics, "output_tokens_per_second")
    told = None if found is None else found.positive("mean")
    if told is not None or not tokens or duration_s is None:
        return told
    return tokens / duration_s


def _notes(metrics: Fields, totals: Fields | None, num_completed: int | None, *, has_tpot: bool) -> Iterator[str]:
    if num_completed == 0:
        yield "no request was completed"
    if totals is not None and (cut := totals.count("incomplete")):
        yield f"{cut} cut off at the end and in no figure"
    if has_tpot:
        yield "guidellm calls TPOT inter-token latency, and counts a request once for each of its tokens"
    yield from first_answer_note(*(_mean(metrics, name) for name in _FIRST_TOKENS))
    late = None if num_completed == 0 else _distribution(metrics, "request_dispatch_delay")
    if late is not None and (late_s := late.positive("mean")) is not None:
        yield f"requests were sent {late_s * 1e3:.4g} ms late on average, which no latency counts"
