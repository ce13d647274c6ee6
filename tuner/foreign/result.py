"""What another tool says of one run: its load, its counts, its latencies, in our terms and units.

Nothing here was metered by us. There is no energy and no tokens per joule, so such a result is a point of no front.
Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum

#: Whose figure `ForeignResult.reported_power_w` is.
REPORTED_BY_AIPERF = "reported by AIPerf"


class Tool(StrEnum):
    """Tools whose results can be read."""

    VLLM = "vllm"
    SGLANG = "sglang"
    GUIDELLM = "guidellm"
    AIPERF = "aiperf"
    GENAI_PERF = "genai-perf"
    LOADGEN = "loadgen"

    @property
    def full_name(self) -> str:
        """What people call it."""
        return _FULL_NAMES[self]


_FULL_NAMES = {
    Tool.VLLM: "vLLM bench serve",
    Tool.SGLANG: "SGLang bench_serving",
    Tool.GUIDELLM: "guidellm",
    Tool.AIPERF: "AIPerf",
    Tool.GENAI_PERF: "GenAI-Perf",
    Tool.LOADGEN: "MLPerf LoadGen",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLatency:
    """One latency in milliseconds, as far as the tool tells it; None where it does not."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is told of it."""
        return all(getattr(self, field.name) is None for field in fields(self))

    def filled_from(self, other: ForeignLatency) -> ForeignLatency:
        """Return this latency with what it lacks taken from another."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        return ForeignLatency(
            **{name: getattr(other, name) if value is None else value for name, value in told.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignResult:
    """One run of a load by another tool. None is what the file does not say, and never 0."""

    tool: Tool
    tool_version: str | None = None
    #: What the file calls the run.
    label: str | None = None
    model: str | None = None
    #: When it began. None where the file has no time, or one without its zone, which a note then quotes.
    measured_at: datetime | None = None
    #: The tool's own word for how requests came: constant, poisson, throughput, Server, ...
    load: str | None = None
    #: What was asked for; None where the tool sent as fast as it could, and where it does not say.
    asked_rate_per_s: float | None = None
    asked_concurrency: int | None = None
    duration_s: float | None = None
    num_completed: int | None = None
    num_failed: int | None = None
    #: Of the completed requests.
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    output_tok_s: float | None = None
    #: From sending to the first token.
    ttft_ms: ForeignLatency | None = None
    #: Of a request: (last - first token's time) / (tokens - 1).
    tpot_ms: ForeignLatency | None = None
    #: Gaps between tokens, all requests together.
    itl_ms: ForeignLatency | None = None
    #: Gaps between streamed pieces, which may hold several tokens.
    inter_chunk_ms: ForeignLatency | None = None
    #: From sending to the last token.
    e2e_ms: ForeignLatency | None = None
    #: Mean power that the tool reports. Not ours: no figure of a front is made of it.
    reported_power_w: float | None = None
    #: Whose figure that is; None where there is none.
    reported_power_scope: str | None = None
    #: What a reader must know to compare, in sentences without a full stop.
    notes: tuple[str, ...] = ()
    #: Of the whole file, in hexadecimal digits.
    sha256: str

    @property
    def has_latency(self) -> bool:
        """Whether any latency is told."""
        return any((self.ttft_ms, self.tpot_ms, self.itl_ms, self.inter_chunk_ms, self.e2e_ms))
