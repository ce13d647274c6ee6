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
#: How often an edge is asked when it fails: one bad reading there would cost the whole stretch.
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


def timed(read: Callable[[], T], clock: Clock) -> Sample[T]:
    """Return what `read` returns, at the midpoint of the call; raises what it raises."""
    before_s = clock.monotonic_s()
    value = read()
    return Sample(time_s=(before_s + clock.monotonic_s()) / 2, value=value)


class Rounds:
    """One thread that takes the readings of several samplers in turn: waking up costs more than a look at a GPU.

    The thread lives while there is anybody to ask.
    """

    def __init__(self, *, interval_s: float, clock: Clock) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._lock = Lock()
        self._takes: dict[object, Callable[[], None]] = {}
        #: Held while readings are taken, so that whoever leaves is not read any more.
        self._reading = Lock()
        self._stopping: Event | None = None

    def join(self, who: object, take: Callable[[], None]) -> None:
        """Call `take` in every round from the next one on."""
        with self._lock:
            self._takes[who] = take
            if self._stopping is None:
                self._stopping = Event()
                Thread(target=self._loop, args=(self._stopping,), name=THREAD_NAME, daemon=True).start()

    def leave(self, who: object) -> bool:
        """Call it no more; return whether that is certain: False where a reading hangs. Idempotent."""
        with self._lock:
            is_there = self._takes.pop(who, None) is not None
            if not self._takes and self._stopping is not None:
                self._stopping.set()
                self._stopping = None
        if not is_there:
            return True
        has_ended = self._reading.acquire(timeout=JOIN_TIMEOUT_S)
        if has_ended:
            self._reading.release()
        return has_ended

    def _loop(self, stopping: Event) -> None:
        while not self._clock.wait(stopping, self._interval_s):
            with self._reading:
                for who in tuple(self._takes):
                    take = self._takes.get(who)
                    if take is not None:
                        take()


class Sampler(Generic[T]):
    """Reads once at start, every `interval_s` from a thread, and once at stop."""

    def __init__(self, read: Callable[[], T], *, interval_s: float, clock: Clock, rounds: Rounds | None = None) -> None:
        """Read in `rounds`, whose interval then counts, or in a thread of its own."""
        self._read = read
        self._clock = clock
        self._lock = Lock()
        self._rounds = rounds or Rounds(interval_s=interval_s, clock=clock)
        self._samples: list[Sample[T]] = []
        self._failures: list[Failure] = []
        self._opening: Sample[T] | Failure | None = None
        self._has_died = False

    def start(self) -> Sample[T] | Failure:
        """Take the opening reading, then begin sampling; a sampler runs once."""
        self._opening = self._take_edge()
        self._rounds.join(self, self._take_or_die)
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
        self._has_died = not self._rounds.leave(self) or self._has_died

    def _take_or_die(self) -> None:
        if self._has_died:
            return
        try:
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
            sample = timed(self._read, self._clock)
        except ProbeError as error:
            middle_s = (before_s + self._clock.monotonic_s()) / 2
            failure = Failure(time_s=middle_s, kind=error.kind, message=str(error))
            with self._lock:
                self._failures.append(failure)
            return failure
        with self._lock:
            self._samples.append(sample)
        return sample

    def _died_now(self) -> Failure:
        return Failure(time_s=self._clock.monotonic_s(), kind=Reason.SAMPLER_DIED, message="not asked")
