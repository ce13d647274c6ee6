"""A front as geometry."""

from __future__ import annotations

import itertools
import math
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from api.plot.scatter import Dot, scatter

#: From a millionth to a thousand million.
POSITIVE = st.builds(lambda digits, power: digits * 10.0**power, st.integers(1, 999), st.integers(-6, 6))


def make_dot(**changes: Any) -> Dot:
    fields: dict[str, Any] = {
        "latency_ms": 20.0,
        "tok_per_j": 2.0,
        "low": 1.5,
        "high": 2.5,
        "label": "trial 0",
        "series": "fp32",
        "is_on_front": True,
        "state": "complete",
    }
    return Dot(**(fields | changes))


def dot_of(value: float, latency_ms: float, below: float, above: float | None, is_on_front: bool) -> Dot:
    """Build a dot whose interval holds its value; that of a small sample may reach below zero."""
    return make_dot(
        latency_ms=latency_ms,
        tok_per_j=value,
        low=None if above is None else value - below,
        high=None if above is None else value + above,
        is_on_front=is_on_front,
    )


DOTS = st.lists(
    st.builds(dot_of, POSITIVE, st.just(0.0) | POSITIVE, POSITIVE, st.none() | POSITIVE, st.booleans()),
    min_size=1,
    max_size=6,
)


@given(DOTS, st.none() | POSITIVE)
def test_everything_is_inside_the_drawing(drawn: list[Dot], limit_ms: float | None) -> None:
    """Every mark, interval, tick and limit lies on the plane between the axes."""
    plane = scatter(drawn, limit_ms=limit_ms)
    assert len(drawn) == len(plane.marks)
    xs = [mark.x for mark in plane.marks] + [tick.place for tick in plane.x_ticks]
    xs += [plane.limit.place] if plane.limit else []
    ys = [y for mark in plane.marks for y in (mark.y, mark.y_low, mark.y_high) if y is not None]
    ys += [tick.place for tick in plane.y_ticks]
    assert all(plane.left <= x <= plane.right for x in xs)
    assert all(plane.top <= y <= plane.bottom for y in ys)
    assert 0 < plane.left < plane.right < plane.width
    assert 0 < plane.top < plane.bottom < plane.height


@given(DOTS)
def test_marks_keep_the_order_of_their_values(drawn: list[Dot]) -> None:
    """A mark further right is not faster, one further up is not hungrier, and an interval holds its mark."""
    marks = scatter(drawn, limit_ms=None).marks
    by_latency = sorted(marks, key=lambda mark: mark.dot.latency_ms)
    by_tokens = sorted(marks, key=lambda mark: mark.dot.tok_per_j)
    assert all(a.x <= b.x for a, b in itertools.pairwise(by_latency))
    assert all(a.y >= b.y for a, b in itertools.pairwise(by_tokens))
    assert all(mark.y_low is None or mark.y_low >= mark.y for mark in marks)
    assert all(mark.y_high is None or mark.y_high <= mark.y for mark in marks)


@given(DOTS)
@example([make_dot(tok_per_j=1.0, low=None, high=1_000_001.0)])
def test_ticks_are_few_even_and_from_zero(drawn: list[Dot]) -> None:
    """Each axis has 4 to 6 ticks, the first at zero, and the same step between all of them."""
    plane = scatter(drawn, limit_ms=None)
    for ticks in (plane.x_ticks, plane.y_ticks):
        values = [float(tick.text) for tick in ticks]
        assert 4 <= len(values) <= 6
        assert values[0] == 0
        assert all(a < b for a, b in itertools.pairwise(values))
        assert all(math.isclose(value, i * values[1], rel_tol=1e-4) for i, value in enumerate(values))
    assert [tick.place for tick in plane.x_ticks] == sorted(tick.place for tick in plane.x_ticks)
    assert [tick.place for tick in plane.y_ticks] == sorted((tick.place for tick in plane.y_ticks), reverse=True)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8, unique=True))
def test_the_step_line_is_monotone(latencies: list[int]) -> None:
    """The front's line goes right and up in steps, each either level or upright, through the front's marks alone."""
    front = [make_dot(latency_ms=float(x), tok_per_j=float(x), low=None, high=None) for x in latencies]
    plane = scatter([*front, make_dot(latency_ms=99, is_on_front=False)], limit_ms=None)
    corners = [tuple(map(float, corner.split(","))) for corner in plane.front_line.split()]
    assert 2 * len(front) - 1 == len(corners)
    assert {(mark.x, mark.y) for mark in plane.marks if mark.dot.is_on_front} <= set(corners)
    for (x, y), (next_x, next_y) in itertools.pairwise(corners):
        assert next_x >= x
        assert next_y <= y
        assert x == next_x or y == next_y


def test_the_line_leads_over_no_tie() -> None:
    """A point that is on the front by a tie is drawn, and the line goes past it."""
    leading = make_dot(tok_per_j=2.0, latency_ms=20.0)
    tied = make_dot(tok_per_j=1.9, latency_ms=21.0, is_leading=False)
    plane = scatter([leading, tied], limit_ms=None)
    assert f"{plane.marks[0].x},{plane.marks[0].y}" == plane.front_line


def test_latency_has_a_bar_on_the_front_alone() -> None:
    """A point of the front has its latency's interval, an unknown bound ending at the dot; others have no bar."""
    on_front = make_dot(latency_low_ms=15.0, latency_high_ms=None)
    beaten = make_dot(latency_low_ms=15.0, latency_high_ms=90.0, is_on_front=False)
    first, second = scatter([on_front, beaten], limit_ms=None).marks
    assert (first.x_low < first.x, first.x_high) == (True, first.x)
    assert (second.x, second.x) == (second.x_low, second.x_high)


def test_one_dot_is_a_drawing() -> None:
    """A single point has no line to draw, and a limit is written with its number."""
    plane = scatter([make_dot()], limit_ms=500)
    assert f"{plane.marks[0].x},{plane.marks[0].y}" == plane.front_line
    assert plane.limit is not None
    assert plane.limit.text == "limit 500 ms"


def test_no_dot_draws_axes() -> None:
    """Without any dot there are axes and no marks."""
    plane = scatter([], limit_ms=None)
    assert (plane.marks, plane.front_line, plane.limit) == ([], "", None)
    assert plane.x_ticks
