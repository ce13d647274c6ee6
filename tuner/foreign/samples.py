"""Latencies out of samples, by the percentiles of NumPy's default, which these tools use and we do too.

Knows no format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tuner.foreign.result import ForeignLatency

_SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def latency_of(samples_ms: Sequence[float]) -> ForeignLatency | None:
    """Return mean and percentiles (Hyndman and Fan's type 7); None without samples."""
    if not samples_ms:
        return None
    ordered = sorted(samples_ms)
    mean = math.fsum(ordered) / len(ordered)
    return ForeignLatency(mean=mean, **{name: _percentile(ordered, share) for name, share in _SHARES.items()})


def first_answer_note(first_ms: float | None, first_answer_ms: float | None) -> Iterator[str]:
    """Say where the first token was one of visible thinking, so that TTFT is not the wait for the answer."""
    if first_ms is not None and first_answer_ms is not None and first_answer_ms > first_ms * 1.001:
        yield f"TTFT is that of a token of reasoning; the answer began after {first_answer_ms:.4g} ms on average"


def _percentile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
