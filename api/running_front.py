"""How the hypervolume of a job's front grew, trial by trial: for a chart over device time. Pure.

By value and as measured: a point counts at the mean over its sessions so far, and no drift is divided out. So the last
value can differ a little from the stored front's where a baseline drifted. Knows nothing of intervals or of rows.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Repeat(NamedTuple):
    """What counts of a window where its point has others."""

    #: Windows of one launch count as one.
    session: str
    #: The figures that limits speak of, each over its bound.
    shares: tuple[float, ...]
    #: Whether it is outside for another reason than a limit, which no mean mends.
    is_out: bool
    #: Whether it ended before its time: it is held to the limits, but its figures are not in the mean.
    is_cut: bool = False


class Shown(NamedTuple):
    """What one window showed of a point: a whole one, unless its point has others."""

    point: str
    tok_per_j: float
    latency_ms: float
    #: Whether this window is inside every limit.
    is_inside: bool
    #: None for the only window of its point.
    repeat: Repeat | None = None


class Stairs:
    """Pairs of latency and tokens per joule that no other dominates, by rising latency."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        self.tok_per_j: list[float] = []

    def add(self, latency_ms: float, tok_per_j: float) -> bool:
        """Take a pair in, and those out that it dominates; tell whether anything changed."""
        at = bisect_left(self.latencies_ms, latency_ms)
        is_beaten = at > 0 and self.tok_per_j[at - 1] >= tok_per_j
        is_tied_or_beaten = at < len(self.latencies_ms) and (
            self.latencies_ms[at] == latency_ms and self.tok_per_j[at] >= tok_per_j
        )
        if is_beaten or is_tied_or_beaten:
            return False
        end = at
        while end < len(self.latencies_ms) and self.tok_per_j[end] <= tok_per_j:
            end += 1
        self.latencies_ms[at:end] = [latency_ms]
        self.tok_per_j[at:end] = [tok_per_j]
        return True

    def area(self, reference_ms: float, others: Sequence[tuple[float, float]] = ()) -> float:
        """Return the area under the stairs up to a latency, pairs that are no part of them included."""
        area = best = 0.0
        for latency_ms, tok_per_j in sorted([*zip(self.latencies_ms, self.tok_per_j, strict=True), *others]):
            if latency_ms >= reference_ms:
                break
            if tok_per_j > best:
                area += (tok_per_j - best) * (reference_ms - latency_ms)
                best = tok_per_j
        return area


def running_hypervolume(windows: Sequence[Shown | None], reference_ms: float | None) -> Iterator[float]:
    """Yield the hypervolume after each trial, in tokens per joule x milliseconds up to the reference.

    None stands for a trial that gave no usable window. Points of one window are kept as stairs; the few that are
    repeated move as their means do, and are held beside them.
    """
    once = Stairs()
    repeated: dict[str, list[Shown]] = {}
    places: dict[str, tuple[float, float]] = {}
    area = 0.0
    for window in windows:
        if window is not None and reference_ms is not None:
            if window.repeat is None:
                has_changed = window.is_inside and once.add(window.latency_ms, window.tok_per_j)
            else:
                repeated.setdefault(window.point, []).append(window)
                has_changed = _move(places, window.point, _place(repeated[window.point]))
            if has_changed:
                area = once.area(reference_ms, list(places.values()))
        yield area


def _move(places: dict[str, tuple[float, float]], point: str, place: tuple[float, float] | None) -> bool:
    """Put a point where it is now, or take it away; tell whether that changed anything."""
    former = places.pop(point, None)
    if place is not None:
        places[point] = place
    return place != former


def _place(windows: Sequence[Shown]) -> tuple[float, float] | None:
    """Return latency and tokens per joule in the mean of a point's sessions; None outside of the limits.

    As in `tuner.aggregates`: inside is a point whose means are, and one of whose windows is outright.
    """
    repeats = [window.repeat for window in windows if window.repeat is not None]
    whole = [(window, window.repeat) for window in windows if window.repeat is not None and not window.repeat.is_cut]
    if not any(window.is_inside for window, _ in whole) or any(repeat.is_out for repeat in repeats):
        return None
    if any(_mean(repeats, share) > 1 for share in zip(*(repeat.shares for repeat in repeats), strict=True)):
        return None
    used = [repeat for _, repeat in whole]
    latency_ms = _mean(used, [window.latency_ms for window, _ in whole])
    return latency_ms, _mean(used, [window.tok_per_j for window, _ in whole])


def _mean(repeats: Sequence[Repeat], figures: Sequence[float]) -> float:
    """Return the mean over sessions of the windows' figures."""
    sessions: dict[str, list[float]] = {}
    for repeat, figure in zip(repeats, figures, strict=True):
        sessions.setdefault(repeat.session, []).append(figure)
    return statistics.fmean(statistics.fmean(one) for one in sessions.values())
