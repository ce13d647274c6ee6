"""The steps of an energy counter: how far apart they are, and the instant of the next one.

A counter moves in steps, of 10 ms on some boards and 100 ms on others, so a window that begins and ends at a step is
wrong by two polls, and one that does not by two steps. Knows nothing of what is counted, and not how long after the
energy was drawn the counter shows it: where that delay is constant, it is the same at both edges.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from threading import Event

from probes.clock import Clock
from probes.errors import (
    CounterReset,
    DeviceLost,
    ImplausibleReading,
    NotPermitted,
    NotSupported,
    ProbeError,
)
from probes.metering.sampler import EDGE_ATTEMPTS, Failure, Run, Sample, timed
from probes.validity import Reason

#: Between two looks at a counter whose steps are watched; a fifth of the shortest step that was reported.
POLL_S = 0.002
#: Longest time in which the steps are measured: twenty of those of a data-centre board.
MEASURING_S = 2.0
#: Intervals between steps after which their median is known well enough.
ENOUGH_INTERVALS = 20
#: How many steps' time the next step may take, and how long at most.
EDGE_TICKS = 2.5
LONGEST_EDGE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """How a counter moved while it was watched."""

    #: Median time between steps; None where it never moved. Where it moved once, all of MEASURING_S: it may be more.
    period_s: float | None
    #: By how many counts it rose.
    rise: int
    watched_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A counter's reading at the edge of a window."""

    sample: Sample[int]
    #: Whether the reading is the first after a step.
    is_aligned: bool
    #: How much earlier the step may have been: the time since the reading before it.
    slack_s: float


def measure_tick(read: Callable[[], int], clock: Clock) -> Tick:
    """Watch the counter until ENOUGH_INTERVALS are seen, at most MEASURING_S.

    An answer that may be different a moment later ("not ready") is asked again. Raises CounterReset when the counter
    goes back, and the driver's own error where it does not answer in all that time.
    """
    looks: list[Sample[int]] = []
    steps_s: list[float] = []
    refusal: ProbeError | None = None
    for look in _polled(read, clock, MEASURING_S):
        if isinstance(look, ProbeError):
            if is_final(look):
                raise look
            refusal = look
            continue
        if looks and look.value < looks[-1].value:
            raise CounterReset(f"the counter went back by {looks[-1].value - look.value} while its steps were measured")
        if looks and look.value > looks[-1].value:
            steps_s.append(look.time_s)
        looks.append(look)
        if len(steps_s) > ENOUGH_INTERVALS:
            break
    if not looks:
        raise refusal or ProbeError("the counter was not read")
    return Tick(
        period_s=_period_s(steps_s),
        rise=looks[-1].value - looks[0].value,
        watched_s=looks[-1].time_s - looks[0].time_s,
    )


def is_final(error: ProbeError) -> bool:
    """Return whether asking again would be pointless; any other error may pass, as "not ready" does."""
    return isinstance(error, (NotSupported, NotPermitted, DeviceLost, ImplausibleReading))


def edge(read: Callable[[], int], clock: Clock, tick_s: float) -> Edge | Failure:
    """Wait for the counter's next step, at most EDGE_TICKS of `tick_s` and never more than LONGEST_EDGE_S.

    The edge is the midpoint of the call that first saw the new value. Without a step it is the last reading, not
    aligned. A Failure when the counter cannot be read EDGE_ATTEMPTS times in a row, or goes back.
    """
    last: Sample[int] | None = None
    num_failed = 0
    for look in _polled(read, clock, min(EDGE_TICKS * tick_s, LONGEST_EDGE_S)):
        if isinstance(look, ProbeError):
            num_failed += 1
            if num_failed == EDGE_ATTEMPTS:
                return Failure(time_s=clock.monotonic_s(), kind=look.kind, message=str(look))
            continue
        num_failed = 0
        if last is not None and look.value < last.value:
            return Failure(time_s=look.time_s, kind=CounterReset.kind, message="the counter went back at an edge")
        if last is not None and look.value > last.value:
            return Edge(sample=look, is_aligned=True, slack_s=look.time_s - last.time_s)
        last = look
    if last is None:
        return Failure(time_s=clock.monotonic_s(), kind=ProbeError.kind, message="the counter could not be read")
    return Edge(sample=last, is_aligned=False, slack_s=tick_s)


class EdgedCounter:
    """A counter whose first and last reading lie at its steps, with readings in between; one thread at a time."""

    def __init__(self, read: Callable[[], int], *, tick_s: float, clock: Clock) -> None:
        self._read = read
        self._tick_s = tick_s
        self._clock = clock
        self._opening: Edge | Failure | None = None
        self._glances: list[Sample[int]] = []
        self._failures: list[Failure] = []

    def open(self) -> float:
        """Begin at the next step; return its instant."""
        self._opening = edge(self._read, self._clock, self._tick_s)
        return _ending(self._opening).time_s

    def glance(self) -> None:
        """Read once in between."""
        try:
            self._glances.append(timed(self._read, self._clock))
        except ProbeError as error:
            self._failures.append(Failure(time_s=self._clock.monotonic_s(), kind=error.kind, message=str(error)))

    def close(self, *, has_died: bool) -> tuple[Run[int], float | None]:
        """End at the next step, or at once where `has_died` says that whoever glanced hangs in the driver.

        Returns all readings from edge to edge, and how much earlier both steps together may have been; None where one
        of the two is not aligned.
        """
        if self._opening is None:
            raise RuntimeError("a counter was closed that was never opened")
        died = Failure(time_s=self._clock.monotonic_s(), kind=Reason.SAMPLER_DIED, message="not asked")
        ends = self._opening, died if has_died else edge(self._read, self._clock, self._tick_s)
        aligned = [end for end in ends if isinstance(end, Edge) and end.is_aligned]
        first, last = _ending(ends[0]), _ending(ends[1])
        run = Run(
            opening=first,
            closing=last,
            samples=tuple(sample for sample in (first, *self._glances, last) if isinstance(sample, Sample)),
            failures=(*self._failures, *(end for end in (first, last) if isinstance(end, Failure))),
            has_died=has_died,
        )
        return run, sum(end.slack_s for end in aligned) if len(aligned) == len(ends) else None


def _ending(end: Edge | Failure) -> Sample[int] | Failure:
    return end.sample if isinstance(end, Edge) else end


def _polled(read: Callable[[], int], clock: Clock, longest_s: float) -> Iterator[Sample[int] | ProbeError]:
    """Read every POLL_S for `longest_s`, at least once."""
    end_s, never = clock.monotonic_s() + longest_s, Event()
    while True:
        try:
            yield timed(read, clock)
        except ProbeError as error:
            yield error
        if clock.monotonic_s() >= end_s:
            return
        clock.wait(never, POLL_S)


def _period_s(steps_s: list[float]) -> float | None:
    intervals_s = [later - earlier for earlier, later in pairwise(steps_s)]
    if intervals_s:
        return statistics.median(intervals_s)
    return MEASURING_S if steps_s else None
