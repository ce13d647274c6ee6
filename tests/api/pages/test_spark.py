"""A front as a small picture."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from api.pages.spark import HEIGHT, WIDTH, spark

FIGURES = st.floats(min_value=1e-6, max_value=1e9)


def test_a_front_is_drawn_as_steps() -> None:
    """Between two points the line goes right, then up: only the points themselves are claimed."""
    drawn = spark([(100.0, 5.0), (1.0, 1.0), (10.0, 3.0)])
    assert drawn is not None
    assert drawn.line == "4,26 60,26 60,15 116,15 116,4"
    assert drawn.dots == ((4.0, 26.0), (60.0, 15.0), (116.0, 4.0))


def test_without_points_there_is_no_picture() -> None:
    """A front without points, or whose latencies are none, is not drawn."""
    assert spark([]) is None
    assert spark([(0.0, 1.0)]) is None


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=20))
def test_every_dot_is_inside_the_box(points: list[tuple[float, float]]) -> None:
    """Whatever the figures are, each point has a place inside the picture."""
    drawn = spark(points)
    assert drawn is not None
    assert len(points) == len(drawn.dots)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn.dots)
