"""What a load cost the client itself, and when that means that the client set the pace and not the server.

Knows nothing of requests' contents.
"""

from __future__ import annotations

import math
import time

from engine.load import LoadReport
from engine.servers.tokens import Usage

#: Of a core: beyond this the client has no reserve, and what it times waits for it.
MAX_CPU_SHARE = 0.9
#: Requests sent later than this after being due (99th percentile) are late by the client's fault.
MAX_SEND_LAG_MS = 10.0
#: Pieces may be dated this much too late (99th percentile of how late the client's own clock tick comes).
MAX_LOOP_LAG_MS = 20.0
#: A percentile of fewer samples is one sample's.
_MIN_SAMPLES = 20


class Overhead:
    """Counts along with one load; belongs to the thread that serves it."""

    def __init__(self, *, is_paced: bool) -> None:
        """`is_paced`: requests come at times of their own, so that there is a rate to keep to."""
        self._is_paced = is_paced
        self._start_s = self._end_s = time.monotonic()
        self._start_cpu_s = self._end_cpu_s = time.thread_time()
        self._due_s: list[float] = []
        self._sent_s: list[float] = []
        self._lags_s: list[float] = []
        self._loop_lags_s: list[float] = []
        self._num_prompt = 0
        self._num_cached = 0

    def started(self, due_s: float, now_s: float) -> None:
        """The client set about sending a request."""
        self._due_s.append(due_s)
        self._lags_s.append(max(0.0, now_s - due_s))

    def ended(self, sent_s: float | None, usage: Usage) -> None:
        """A request has ended."""
        if sent_s is not None:
            self._sent_s.append(sent_s)
        if usage.num_cached is not None and usage.num_prompt:
            self._num_cached += usage.num_cached
            self._num_prompt += usage.num_prompt

    def ticked(self, planned_s: float, now_s: float) -> None:
        """The event loop came to something that it was to do then."""
        self._loop_lags_s.append(max(0.0, now_s - planned_s))

    def stop(self) -> None:
        """The load has ended; to be called in its thread, whose CPU time it takes."""
        self._end_s, self._end_cpu_s = time.monotonic(), time.thread_time()

    def report(self) -> LoadReport:
        """Return it all."""
        wall_s = self._end_s - self._start_s
        cpu_share = (self._end_cpu_s - self._start_cpu_s) / wall_s if wall_s > 0 else 0.0
        lags = self._lags_s
        return LoadReport(
            due_per_s=_rate(self._due_s) if self._is_paced else None,
            sent_per_s=_rate(self._sent_s) if self._is_paced else None,
            mean_lag_ms=1e3 * sum(lags) / len(lags) if lags else 0.0,
            max_lag_ms=1e3 * max(lags, default=0.0),
            client_cpu_share=cpu_share,
            client_limits=self._limits(cpu_share),
            prefix_hit_share=self._num_cached / self._num_prompt if self._num_prompt else None,
        )

    def _limits(self, cpu_share: float) -> tuple[str, ...]:
        limits: list[str] = []
        if cpu_share > MAX_CPU_SHARE:
            limits.append(f"client_cpu: the client used {cpu_share:.2f} of a core; at most {MAX_CPU_SHARE:g} is sound")
        for kind, what, lags_s, most_ms in (
            ("client_send_lag", "requests were sent", self._lags_s, MAX_SEND_LAG_MS),
            ("client_loop_lag", "the event loop came", self._loop_lags_s, MAX_LOOP_LAG_MS),
        ):
            lag_ms = 1e3 * p99(lags_s) if len(lags_s) >= _MIN_SAMPLES else 0.0
            if lag_ms > most_ms:
                limits.append(f"{kind}: {what} {lag_ms:.1f} ms late at p99; at most {most_ms:g} ms is sound")
        return tuple(limits)


def p99(values: list[float]) -> float:
    """Return the smallest of the values that 99 % of them do not exceed."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def _rate(times_s: list[float]) -> float | None:
    """Return how many came a second, between the first and the last; None of fewer than two."""
    if len(times_s) < 2:
        return None
    span_s = max(times_s) - min(times_s)
    return (len(times_s) - 1) / span_s if span_s > 0 else None
