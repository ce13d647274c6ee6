"""A front as a small picture in a line of a table: steps through its points. Pure; the words beside it tell figures.

Between two points only steps are drawn: nothing in between is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 120
HEIGHT = 30
_MARGIN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """Places inside a box of WIDTH x HEIGHT."""

    #: Of a polyline.
    line: str
    dots: tuple[tuple[float, float], ...]

    @property
    def box(self) -> str:
        """The view box."""
        return f"0 0 {WIDTH} {HEIGHT}"


def spark(points: Sequence[tuple[float, float]]) -> Spark | None:
    """Draw (latency_ms, tok_per_j) pairs, latency to the right on a log axis; None without points above 0."""
    shown = sorted((math.log(latency), tok_per_j) for latency, tok_per_j in points if latency > 0)
    if not shown:
        return None
    xs = _scaled([x for x, _ in shown], WIDTH)
    ys = [HEIGHT - y for y in _scaled([y for _, y in shown], HEIGHT)]
    corners = [(xs[0], ys[0])]
    for before, x, y in zip(ys[:-1], xs[1:], ys[1:], strict=True):
        corners += [(x, before), (x, y)]
    return Spark(line=" ".join(f"{x:g},{y:g}" for x, y in corners), dots=tuple(zip(xs, ys, strict=True)))


def _scaled(values: Sequence[float], length: int) -> list[float]:
    """Return places between the margins; in the middle where all values are one."""
    low, high = min(values), max(values)
    room = length - 2 * _MARGIN
    if high == low:
        return [length / 2 for _ in values]
    return [round(_MARGIN + room * (value - low) / (high - low), 1) for value in values]
