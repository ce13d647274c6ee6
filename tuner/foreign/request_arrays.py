"""The arrays, one entry a request, that vLLM's and SGLang's clients write on demand: all times in seconds.

A failed request has output length 0, TTFT 0.0 and a text in `errors`; it has no latency. Knows nothing of summaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.foreign.fields import Fields
from tuner.foreign.result import ForeignLatency
from tuner.foreign.samples import latency_of

_NAMES = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFigures:
    """What the arrays say of the requests that were answered; None where the arrays for it are not there."""

    num_failed: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft_ms: ForeignLatency | None = None
    tpot_ms: ForeignLatency | None = None
    gaps_ms: ForeignLatency | None = None
    e2e_ms: ForeignLatency | None = None


def figures_of(fields: Fields, num_completed: int) -> RequestFigures:
    """Sum up the arrays. Raises BadResultFile where they differ in length or hold what is no time."""
    num_requests = _length_of(fields)
    answered = _answered(fields, num_completed, num_requests)
    if answered is None:
        return RequestFigures()
    ttfts, latencies = _chosen(fields, "ttfts", answered), _chosen(fields, "latencies", answered)
    inputs, outputs = _chosen(fields, "input_lens", answered), _chosen(fields, "output_lens", answered)
    gaps, spans = _gaps(fields, answered)
    return RequestFigures(
        num_failed=num_requests - len(answered),
        prompt_tokens=_total(inputs),
        output_tokens=_total(outputs),
        ttft_ms=_in_ms(ttfts),
        tpot_ms=_in_ms(_tpots(ttfts, latencies, spans, outputs)),
        gaps_ms=_in_ms(gaps),
        e2e_ms=_in_ms(latencies),
    )


def _length_of(fields: Fields) -> int:
    lengths = {name: len(found) for name in _NAMES if (found := fields.items(name)) is not None}
    for name, length in lengths.items():
        first = next(iter(lengths))
        if length != lengths[first]:
            raise fields.fault(name, f"{length} entries", f"{first} has {lengths[first]}; save the results anew")
    return next(iter(lengths.values()), 0)


def _answered(fields: Fields, num_completed: int, num_requests: int) -> Sequence[int] | None:
    """Return the places of the requests that were answered, or None where the arrays cannot tell."""
    errors, outputs, latencies = fields.items("errors"), fields.numbers("output_lens"), fields.numbers("latencies")
    if errors is not None:
        chosen = [i for i in range(num_requests) if not errors[i]]
    elif outputs is not None:
        chosen = [i for i in range(num_requests) if outputs[i]]
    elif latencies is not None:
        chosen = [i for i in range(num_requests) if latencies[i]]
    else:
        return None
    return chosen if len(chosen) == num_completed else None


def _chosen(fields: Fields, name: str, answered: Sequence[int]) -> list[float] | None:
    values = fields.numbers(name)
    return None if values is None else [values[i] or 0.0 for i in answered]


def _gaps(fields: Fields, answered: Sequence[int]) -> tuple[list[float] | None, list[float] | None]:
    """Return the gaps between streamed pieces of all answered requests together, and of each request their sum."""
    lists = fields.items("itls")
    if lists is None:
        return None, None
    gaps: list[float] = []
    spans: list[float] = []
    for i in answered:
        name = f"itls[{i}]"
        found = [gap for gap in Fields(fields.source, {name: lists[i]}).numbers(name) or [] if gap is not None]
        gaps += found
        spans.append(sum(found))
    return gaps, spans


def _tpots(
    ttfts: list[float] | None,
    latencies: list[float] | None,
    spans: list[float] | None,
    outputs: list[float] | None,
) -> list[float] | None:
    """Return each request's (last - first token's time) / (tokens - 1); requests below two tokens have none."""
    if ttfts is not None and latencies is not None:
        spans = [latency - ttft for latency, ttft in zip(latencies, ttfts, strict=True)]
    if outputs is None or spans is None:
        return None
    return [span / (tokens - 1) for span, tokens in zip(spans, outputs, strict=True) if tokens > 1]


def _in_ms(seconds: list[float] | None) -> ForeignLatency | None:
    return None if seconds is None else latency_of([one * 1e3 for one in seconds if one > 0])


def _total(tokens: list[float] | None) -> int | None:
    return None if tokens is None else int(sum(tokens))
