"""AIPerf's `profile_export_aiperf.json` and GenAI-Perf's `..._genai_perf.json`: one block for each metric.

A block names its unit, which is believed before any habit of its name. `inter_token_latency` is a mean per request,
which is our TPOT; the gaps between streamed pieces are `inter_chunk_latency`. Read after AIPerf 0.13 (schema 1.4 and
1.5 of its documentation) and GenAI-Perf 0.0.16. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tuner.foreign.fields import Fields
from tuner.foreign.result import REPORTED_BY_AIPERF, ForeignLatency, ForeignResult, Tool
from tuner.foreign.samples import first_answer_note

#: How many milliseconds a unit is.
TO_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3}
_STATISTICS = {"mean": ("avg",), "p50": ("p50",), "p90": ("p90",), "p95": ("p95",), "p99": ("p99",)}
_MARKS = ("request_throughput", "request_latency", "time_to_first_token", "request_count", "output_token_throughput")
#: By the platform, and before schema 1.5.
_POWER_METRICS = ("nvidia_power_usage", "amd_power", "gpu_power_usage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was asked for, as far as the configuration in the file tells."""

    kind: str | None = None
    rate_per_s: float | None = None
    concurrency: int | None = None


def is_summary(document: Mapping[str, Any]) -> bool:
    """Whether an object is a summary: it has a metric as a block with its unit, at the top or under `records`."""
    blocks = (document, document.get("records"))
    return any(isinstance(one, dict) and any(_is_block(one.get(mark)) for mark in _MARKS) for one in blocks)


def read(document: Fields) -> ForeignResult:
    """Return the run in our terms. Raises BadResultFile."""
    under = document.inner("records")  # of an early release
    metrics = document if under is None else under
    tool = _tool_of(document)
    num_completed, load = _num_completed(metrics), _load_of(document)
    power_w = _power_w(document) if tool is Tool.AIPERF else None
    measured_at, is_local = _moment(document)
    latencies = {} if num_completed == 0 else _latencies(metrics)
    run_notes = _run_notes(document, num_completed, is_local=is_local)
    return ForeignResult(
        tool=tool,
        tool_version=document.word("aiperf_version"),
        label=_label_of(document),
        model=_model_of(document),
        measured_at=measured_at,
        load=load.kind,
        asked_rate_per_s=load.rate_per_s,
        asked_concurrency=load.concurrency,
        duration_s=_duration_s(metrics),
        num_completed=num_completed,
        num_failed=_num_failed(document, metrics),
        prompt_tokens=_count(metrics, "total_isl") or _sum(metrics, "input_sequence_length"),
        output_tokens=_count(metrics, "total_osl") or _sum(metrics, "output_sequence_length"),
        output_tok_s=None if num_completed == 0 else _value(metrics, "output_token_throughput"),
        reported_power_w=power_w,
        reported_power_scope=None if power_w is None else REPORTED_BY_AIPERF,
        notes=(*run_notes, *_latency_notes(metrics, tool, latencies)),
        sha256=document.source.sha256,
        **latencies,
    )


def to_ms(block: Fields) -> float:
    """Return how many milliseconds the unit of a latency is. Raises BadResultFile for another unit."""
    unit = block.word("unit")
    if unit not in TO_MS:
        raise block.fault("unit", unit, f"give one of {', '.join(TO_MS)}")
    return TO_MS[unit]


def _is_block(value: object) -> bool:
    return isinstance(value, dict) and "unit" in value


def _tool_of(document: Fields) -> Tool:
    config = document.values.get("input_config")
    is_genai = "telemetry_stats" in document.values or (isinstance(config, dict) and "perf_analyzer" in config)
    return Tool.GENAI_PERF if is_genai and "aiperf_version" not in document.values else Tool.AIPERF


def _latencies(metrics: Fields) -> dict[str, ForeignLatency | None]:
    names = {
        "ttft_ms": "time_to_first_token",
        "tpot_ms": "inter_token_latency",
        "inter_chunk_ms": "inter_chunk_latency",
        "e2e_ms": "request_latency",
    }
    return {ours: _latency(metrics, theirs) for ours, theirs in names.items()}


def _latency(metrics: Fields, name: str) -> ForeignLatency | None:
    block = metrics.inner(name)
    if block is None:
        return None
    told = block.latency(_STATISTICS, to_ms(block))
    return None if told.is_empty else told


def _value(metrics: Fields, name: str) -> float | None:
    """Return the one figure of a metric that is a rate or a total."""
    block = metrics.inner(name)
    return None if block is None else block.positive("avg")


def _count(metrics: Fields, name: str) -> int | None:
    block = metrics.inner(name)
    return None if block is None else block.count("avg")


def _sum(metrics: Fields, name: str) -> int | None:
    block = metrics.inner(name)
    return None if block is None else block.count("sum")


def _num_completed(metrics: Fields) -> int | None:
    told = _count(metrics, "request_count")
    latency = metrics.inner("request_latency")
    return latency.count("count") if told is None and latency is not None else told


def _num_failed(document: Fields, metrics: Fields) -> int | None:
    """Return how many requests failed: the metric is left out where none did, and the list of errors is empty then."""
    told = _count(metrics, "error_request_count")
    if told is not None or document.items("error_summary") is None:
        return told
    return sum(error.count("count") or 0 for error in document.objects("error_summary"))


def _duration_s(metrics: Fields) -> float | None:
    block = metrics.inner("benchmark_duration")
    value = None if block is None else block.positive("avg")
    return None if block is None or value is None else value * to_ms(block) / 1e3


def _moment(document: Fields) -> tuple[datetime | None, bool]:
    """Return when the run began, and whether that is told without a time zone, which AIPerf 0.13 does."""
    text = document.word("start_time")
    if text is None:
        return None, False
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise document.fault("start_time", text, "give an ISO 8601 time, or leave it out") from error
    if moment.tzinfo is None:
        return None, True
    return moment.astimezone(UTC), False


def _label_of(document: Fields) -> str | None:
    run = document.inner("run_info")
    return None if run is None else run.word("run_label")


def _model_of(document: Fields) -> str | None:
    """Return the models of the configuration, whatever form it has; names of fields changed between releases."""
    config = document.values.get("input_config")
    if not isinstance(config, dict):
        return None
    endpoint = config.get("endpoint")
    found = config.get("models") or config.get("model_names")
    if found is None and isinstance(endpoint, dict):
        found = endpoint.get("model_names")
    items = found.get("items") if isinstance(found, dict) else [found] if isinstance(found, str) else found
    names = (
        [one.get("name") if isinstance(one, dict) else one for one in items if one] if isinstance(items, list) else []
    )
    words = ", ".join(name for name in names if isinstance(name, str))
    return Fields(document.source, {"model": words}).word("model")


def _load_of(document: Fields) -> Load:
    """Return what was asked for: of the last phase, of `loadgen` before there were phases, of GenAI-Perf's stimulus."""
    config = document.values.get("input_config")
    if not isinstance(config, dict):
        return Load()
    places = (_last_phase(config), config.get("loadgen"), _stimulus(config))
    found = next((Fields(document.source, one, "input_config") for one in places if isinstance(one, dict)), None)
    if found is None:
        return Load()
    kind = found.values.get("type") or found.values.get("request_rate_mode")
    return Load(
        kind=kind if isinstance(kind, str) else None,
        rate_per_s=_plain(found, "rate") or _plain(found, "request_rate"),
        concurrency=int(_plain(found, "concurrency") or 0) or None,
    )


def _last_phase(config: Mapping[str, Any]) -> object:
    phases = config.get("phases")
    named = list(phases.values()) if isinstance(phases, dict) else phases
    return named[-1] if isinstance(named, list) and named else None


def _stimulus(config: Mapping[str, Any]) -> object:
    analyzer = config.get("perf_analyzer")
    return analyzer.get("stimulus") if isinstance(analyzer, dict) else None


def _plain(fields: Fields, name: str) -> float | None:
    """Return a figure of the configuration where it is one: a sweep has a list there, a ramp an object."""
    return fields.positive(name) if isinstance(fields.values.get(name), int | float) else None


def _power_w(document: Fields) -> float | None:
    """Return the mean power of all GPUs together; None unless every one of them has a figure in watts."""
    telemetry = document.inner("telemetry_data")
    endpoints = None if telemetry is None else telemetry.inner("endpoints")
    if endpoints is None:
        return None
    powers_w: dict[str, float | None] = {}
    for host in endpoints.values:
        gpus = _inside(endpoints, host, "gpus")
        for name in () if gpus is None else gpus.values:
            gpu = gpus and gpus.inner(name)
            if gpu is not None:
                powers_w[gpu.word("gpu_uuid") or f"{host}/{name}"] = _power_of(gpu)
    told_w = [one for one in powers_w.values() if one is not None]
    return sum(told_w) if told_w and len(told_w) == len(powers_w) else None


def _power_of(gpu: Fields) -> float | None:
    metrics = gpu.inner("metrics")
    blocks = () if metrics is None else tuple(metrics.inner(name) for name in _POWER_METRICS)
    block = next((one for one in blocks if one is not None), None)
    return block.positive("avg") if block is not None and block.word("unit") == "W" else None


def _inside(fields: Fields, *names: str) -> Fields | None:
    found: Fields | None = fields
    for name in names:
        found = None if found is None else found.inner(name)
    return found


def _run_notes(document: Fields, num_completed: int | None, *, is_local: bool) -> Iterator[str]:
    if num_completed == 0:
        yield "no request was completed"
    if document.values.get("was_cancelled") is True:
        yield "the run was cancelled before its end"
    if is_local:
        yield f"began at {document.word('start_time')} in an unknown time zone"


def _latency_notes(metrics: Fields, tool: Tool, latencies: Mapping[str, ForeignLatency | None]) -> Iterator[str]:
    if latencies.get("tpot_ms") is not None:
        yield f"{tool.full_name} calls TPOT inter-token latency"
    first_tokens = (latencies.get("ttft_ms"), _latency(metrics, "time_to_first_output_token"))
    yield from first_answer_note(*(None if one is None else one.mean for one in first_tokens))
