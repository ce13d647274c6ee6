"""A front as SVG geometry: pure numbers in, places out. The template draws them.

Axes start at zero where the data allow an honest look at ratios; ticks are 1, 2 or 5 times a power of ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 16, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A point, or a trial that counts for none, to draw."""

    latency_ms: float
    tok_per_j: float
    #: Bounds of tokens per joule.
    low: float | None
    high: float | None
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    label: str
    #: precision, for the colour class.
    series: str
    is_on_front: bool
    #: False for a point of the front that is there by a tie: the front's line does not lead over it.
    is_leading: bool = True
    #: complete, infeasible or invalid.
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A dot with its place on the drawing."""

    x: float
    y: float
    y_low: float | None
    y_high: float | None
    #: The latency's interval, for points of the front; an unknown bound ends at the dot.
    x_low: float
    x_high: float
    dot: Dot


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A labelled place on an axis."""

    place: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Everything the template needs."""

    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    marks: list[Mark]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    #: Points of the front's step line, as an SVG points attribute.
    front_line: str
    #: (x, text) of a limit on the latency axis, if the job has one.
    limit: Tick | None


def scatter(dots: Sequence[Dot], *, limit_ms: float | None) -> Scatter:
    """Lay out tokens per joule (up) against latency (right)."""
    x_values = _ticks(max([_latencies_ms(dot)[1] for dot in dots] + ([limit_ms] if limit_ms else []), default=0.0))
    y_values = _ticks(max((dot.high or dot.tok_per_j for dot in dots), default=0.0))
    max_x, max_y = x_values[-1], y_values[-1]

    def place_x(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * value / max_x, 1)

    def place_y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / max_y, 1)

    marks = [
        Mark(
            x=place_x(dot.latency_ms),
            y=place_y(dot.tok_per_j),
            y_low=None if dot.low is None else place_y(max(0.0, dot.low)),  # few samples: an interval may cross 0
            y_high=None if dot.high is None else place_y(dot.high),
            x_low=place_x(max(0.0, _latencies_ms(dot)[0])),
            x_high=place_x(_latencies_ms(dot)[1]),
            dot=dot,
        )
        for dot in dots
    ]
    return Scatter(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        marks=marks,
        x_ticks=[Tick(place=place_x(value), text=f"{value:g}") for value in x_values],
        y_ticks=[Tick(place=place_y(value), text=f"{value:g}") for value in y_values],
        front_line=_step_line([mark for mark in marks if mark.dot.is_on_front and mark.dot.is_leading]),
        limit=None if limit_ms is None else Tick(place=place_x(limit_ms), text=f"limit {limit_ms:g} ms"),
    )


def _latencies_ms(dot: Dot) -> tuple[float, float]:
    """Return the bounds of a latency bar; off the front there is none, or many bars would hide the few that count."""
    low, high = (dot.latency_low_ms, dot.latency_high_ms) if dot.is_on_front else (None, None)
    return (dot.latency_ms if low is None else low, dot.latency_ms if high is None else high)


def _step_line(front: list[Mark]) -> str:
    """Join front points by steps: between two measured points only the slower one's figures are known to hold."""
    points: list[str] = []
    ordered = sorted(front, key=lambda mark: mark.x)
    for i, mark in enumerate(ordered):
        if i:
            points.append(f"{mark.x},{ordered[i - 1].y}")
        points.append(f"{mark.x},{mark.y}")
    return " ".join(points)


def _ticks(highest: float) -> list[float]:
    """Return evenly spaced values from 0 to `highest` or the next above it."""
    if highest <= 0:
        highest = 1.0  # nothing to go by
    step = _step(highest)
    return [round(step * i, 12) for i in range(math.ceil(highest / step - 1e-9) + 1)]


def _step(highest: float) -> float:
    """Return 1, 2 or 5 times a power of ten that cuts the axis into 3 to 5 pieces."""
    rough = highest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-12))
