"""Take readings in the background, each with the instant it belongs to.

Knows nothing of what is read: the read is a function. A reading that raises a ProbeError is kept as a
failure and sampling goes on; anything else ends the thread, and the run says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

import structlog

from probes.clock import Clock
from probes.errors import ProbeError
from probes.validity import Reason

THREAD_NAME = "wattfront-sampler"
#: Longest silence between two readings over which power may still be interpolated; the value InferenceX uses.
LONGEST_GAP_S = 3.0
#: How often an edge is asked again after a ProbeError: one bad reading there would cost the whole stretch.
EDGE_ATTEMPTS = 3
#: A read that hangs longer than this in a driver counts as a dead sampler.
JOIN_TIMEOUT_S = 5.0

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Generic[T]):
    """One reading, at the midpoint of the call that obtained it."""

    time_s: float
    value: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One reading that could not be had."""

    time_s: float
    #: The ProbeError's kind, or the reason why nothing was asked.
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Generic[T]):
    """All readings from start to stop."""

    opening: Sample[T] | Failure
    closing: Sample[T] | Failure
    #: Good readings in order of time, edges included.
    samples: tuple[Sample[T], ...]
    failures: tuple[Failure, ...]
    #: Whether the background thread ended before it was told to, or hangs.
    has_died: bool

    def failed_edges(self) -> tuple[str, ...]:
        """Return the kinds of the failures at the edges, without repeats."""
        kinds = [edge.kind for edge in (self.opening, self.closing) if isinstance(edge, Failure)]
        return tuple(dict.fromkeys(kinds))

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two good readings; 0 with fewer than two."""
        return longest_gap_s([sample.time_s for sample in self.samples])


def longest_gap_s(times_s: Sequence[float]) -> float:
    """Return the longest time between neighbours; 0 with fewer than two."""
    return max((later - earlier for earlier, later in pairwise(times_s)), default=0.0)


class Sampler(Generic[T]):
    """Reads once at start, every `interval_s` from a thread, and once at stop."""

    def __init__(self, read: Callable[[], T], *, interval_s: float, clock: Clock) -> None:
        self._read = read
        self._interval_s = interval_s
        self._clock = clock
        self._lock = Lock()
        self._stopping = Event()
        self._thread: Thread | None = None
        self._samples: list[Sample[T]] = []
        self._failures: list[Failure] = []
        self._opening: Sample[T] | Failure | None = None
        self._has_died = False

    def start(self) -> Sample[T] | Failure:
        """Take the opening reading, then begin sampling; a sampler runs once."""
        self._opening = self._take_edge()
        self._thread = Thread(target=self._loop, name=THREAD_NAME, daemon=True)
        self._thread.start()
        return self._opening

    def stop(self) -> Run[T]:
        """End sampling and take the closing reading; a hanging driver is not asked again."""
        if self._opening is None:
            raise RuntimeError("a sampler was stopped that never started")
        self.cancel()
        closing = self._died_now() if self._has_died else self._take_edge()
        with self._lock:
            samples, failures = tuple(self._samples), tuple(self._failures)
        return Run(
            opening=self._opening,
            closing=closing,
            samples=samples,
            failures=failures,
            has_died=self._has_died,
        )

    def cancel(self) -> None:
        """End sampling without a closing reading. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_S)
            self._has_died = self._has_died or self._thread.is_alive()

    def _loop(self) -> None:
        try:
            while not self._clock.wait(self._stopping, self._interval_s):
                self._take()
        except Exception as error:
            self._has_died = True
            log.warning("sampler_died", error=repr(error))

    def _take_edge(self) -> Sample[T] | Failure:
        taken = self._take()
        for _ in range(EDGE_ATTEMPTS - 1):
            if isinstance(taken, Sample):
                return taken
            taken = self._take()
        if isinstance(taken, Failure):
            log.warning("edge_unreadable", kind=taken.kind, error=taken.message)
        return taken

    def _take(self) -> Sample[T] | Failure:
        before_s = self._clock.monotonic_s()
        try:
            value = self._read()
        except ProbeError as error:
            failure = Failure(time_s=self._midpoint_s(before_s), kind=error.kind, message=str(error))
            with self._lock:
                self._failures.append(failure)
            return failure
        sample = Sample(time_s=self._midpoint_s(before_s), value=value)
        with self._lock:
            self._samples.append(sample)
        return sample

    def _midpoint_s(self, before_s: float) -> float:
        return (before_s + self._clock.monotonic_s()) / 2

    def _died_now(self) -> Failure:
        return Failure(time_s=self._clock.monotonic_s(), kind=Reason.SAMPLER_DIED, message="not asked")
