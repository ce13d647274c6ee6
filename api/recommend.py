"""Which stored point to use under given limits, and what the others miss. Pure.

A point is inside a limit when the mean of its windows is, as everywhere (docs/measuring.md, Repeats and ties): of most
windows the far end of a p99's interval is not known, so that judging by it would leave next to nothing. Whether the
whole interval is inside is told beside each figure. A figure that is not known is inside no limit.

Knows nothing of where points are stored, nor of words for people.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from db.results import Found
from tuner.errors import InvalidRequest
from tuner.measurement import Estimate
from tuner.request import LATENCY_METRICS

#: Of those that miss a limit, so many are told.
MAX_NEAREST = 3
POWER_W = "power_w"
OUTPUT_TOK_S = "output_tok_s"
QUALITY = "quality"
#: Limits that are lower bounds.
_AT_LEAST = (OUTPUT_TOK_S, QUALITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A limit on a figure, inclusive: an upper one on latencies and power, a lower one on throughput and quality."""

    #: A latency in milliseconds by name, or one of the three above.
    name: str
    value: float

    def __post_init__(self) -> None:
        """Refuse figures that there are not, and bounds that nothing can meet."""
        if self.name not in (*LATENCY_METRICS, POWER_W, *_AT_LEAST):
            raise InvalidRequest(self.name, self.value, "there is no such figure; see docs/glossary.md")
        if not (math.isfinite(self.value) and self.value > 0):
            raise InvalidRequest(self.name, self.value, "give a number above 0")
        if self.name == QUALITY and self.value > 1:
            raise InvalidRequest(self.name, self.value, "give a share up to 1, as in 0.99")

    @property
    def is_least(self) -> bool:
        """Whether figures must be as large as this, and not as small."""
        return self.name in _AT_LEAST

    def holds(self, figure: float | None) -> bool:
        """Tell whether a figure is inside; one that is not known is not."""
        if figure is None:
            return False
        return figure >= self.value if self.is_least else figure <= self.value

    def missed_by(self, figure: float | None) -> float:
        """Return by which share of the bound a figure misses it; 0 or less is inside, and 1 what is not known."""
        if figure is None:
            return 1.0
        share = figure / self.value - 1.0
        share = -share if self.is_least else share
        # The quotient of two neighbours can be 1: what is outside stays so.
        return min(share, 0.0) if self.holds(figure) else max(share, sys.float_info.epsilon)

    def is_certain(self, estimate: Estimate) -> bool | None:
        """Tell whether the interval's far end is inside, too; None where that end is not known."""
        end = estimate.low if self.is_least else estimate.high
        return None if end is None else self.holds(end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A limit that a point is outside of."""

    bound: Bound
    #: None where it is not known.
    figure: float | None
    missed_by: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A point that is outside of a limit."""

    found: Found
    #: The worst first.
    missed: tuple[Miss, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLoad:
    """Points that were left aside, because they were measured under another load or on another device."""

    workload: str
    device_uuid: str | None
    num_points: int
    measured_at: datetime
    #: Of one of them.
    result_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Points to choose from, whatever the limits are."""

    #: All of one workload, device and way of measuring: most tokens per joule first, of equals most throughput.
    compared: tuple[Found, ...]
    others: tuple[OtherLoad, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to be answered."""

    best: Found | None
    #: Points that were compared: all of one workload, device and way of measuring.
    compared: tuple[Found, ...]
    #: Filled when no point is inside every limit: those whose worst miss is the smallest.
    nearest: tuple[Near, ...]
    others: tuple[OtherLoad, ...]


def choose(found: Sequence[Found], bounds: Sequence[Bound]) -> Choice:
    """Return the point with the most tokens per joule inside all limits, of equals the one with the most throughput.

    Figures under another load, of another device or of another way to learn energy are other figures. So only points
    like the one measured last are compared, and the others are named.
    """
    return choose_in(field_of(found), bounds)


def choose_in(field: Field, bounds: Sequence[Bound]) -> Choice:
    """Return the choice among points that are in order already."""
    best = next(
        (one for one in field.compared if all(bound.holds(figure_of(one, bound.name)) for bound in bounds)), None
    )
    return Choice(
        best=best,
        compared=field.compared,
        nearest=() if best is not None else nearest(field.compared, bounds),
        others=field.others,
    )


def field_of(found: Sequence[Found]) -> Field:
    """Return points in order, those aside that are not comparable with the one measured last."""
    groups = _groups(found)
    compared = sorted(groups.pop(0) if groups else (), key=lambda one: (-one.tok_per_j, -one.output_tok_s, one.id))
    return Field(compared=tuple(compared), others=tuple(_other(group) for group in groups))


def nearest(found: Sequence[Found], bounds: Sequence[Bound]) -> tuple[Near, ...]:
    """Return the points whose worst miss is the smallest, of equals the more frugal; MAX_NEAREST at most."""
    near = [Near(found=one, missed=_missed(one, bounds)) for one in found]
    near.sort(key=lambda one: (one.missed[0].missed_by if one.missed else 0.0, -one.found.tok_per_j))
    return tuple(near[:MAX_NEAREST])


def figure_of(found: Found, name: str) -> float | None:
    """Return the figure that a limit speaks of; None where it is not known."""
    if name == POWER_W:
        return found.mean_power_w
    if name == OUTPUT_TOK_S:
        return found.output_tok_s
    return found.quality if name == QUALITY else found.latencies_ms.get(name)


def _missed(found: Found, bounds: Sequence[Bound]) -> tuple[Miss, ...]:
    figures = [(bound, figure_of(found, bound.name)) for bound in bounds]
    missed = [Miss(bound=bound, figure=figure, missed_by=bound.missed_by(figure)) for bound, figure in figures]
    return tuple(sorted((one for one in missed if one.missed_by > 0), key=lambda one: -one.missed_by))


def _groups(found: Sequence[Found]) -> list[tuple[Found, ...]]:
    """Return the points by what makes them comparable, that of the newest measurement first."""
    groups: dict[tuple[object, ...], list[Found]] = {}
    for one in found:
        groups.setdefault((one.workload, one.device_uuid, one.is_simulated, one.is_estimate), []).append(one)
    newest_first = sorted(groups.values(), key=lambda group: max(one.measured_at for one in group), reverse=True)
    return [tuple(group) for group in newest_first]


def _other(group: Sequence[Found]) -> OtherLoad:
    return OtherLoad(
        workload=group[0].workload,
        device_uuid=group[0].device_uuid,
        num_points=len(group),
        measured_at=max(one.measured_at for one in group),
        result_id=group[0].id,
    )
