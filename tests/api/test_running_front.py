"""The hypervolume after each trial: the same as that of the front at that moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.running_front import Repeat, Shown, Stairs, running_hypervolume
from tuner.pareto import ObjectivePair, hypervolume

REFERENCE_MS = 50.0
FIGURES = st.floats(0.5, 60.0).map(lambda value: round(value, 1))


def shown(tok_per_j: float, latency_ms: float, **changes: object) -> Shown:
    return Shown("a", tok_per_j, latency_ms, True)._replace(**changes)  # type: ignore[arg-type] # of any field


def repeat(session: str, share: float = 0.5, *, is_out: bool = False) -> Repeat:
    return Repeat(session, (share,), is_out)


@given(st.lists(st.tuples(FIGURES, FIGURES), max_size=30))
def test_it_is_that_of_all_points_until_then(pairs: list[tuple[float, float]]) -> None:
    """After each of many points the area is what a front of all of them would have."""
    windows = [shown(tok_per_j, latency_ms, point=str(i)) for i, (tok_per_j, latency_ms) in enumerate(pairs)]
    found = list(running_hypervolume(windows, REFERENCE_MS))
    expected = [hypervolume([ObjectivePair(*pair) for pair in pairs[: i + 1]], REFERENCE_MS) for i in range(len(pairs))]
    assert found == pytest.approx(expected)


@given(st.lists(st.tuples(FIGURES, FIGURES), max_size=30))
def test_stairs_keep_only_what_none_dominates(pairs: list[tuple[float, float]]) -> None:
    """Both columns of the stairs rise strictly, and every pair that was added is dominated by a step or is one."""
    stairs = Stairs()
    for latency_ms, tok_per_j in pairs:
        stairs.add(latency_ms, tok_per_j)
    assert stairs.latencies_ms == sorted(set(stairs.latencies_ms))
    assert stairs.tok_per_j == sorted(set(stairs.tok_per_j))
    steps = list(zip(stairs.latencies_ms, stairs.tok_per_j, strict=True))
    assert all(any(x <= latency and y >= value for x, y in steps) for latency, value in pairs)


def test_trials_without_figures_and_outside_of_limits_add_nothing() -> None:
    """A failed trial and one that misses a limit leave the area as it was."""
    windows = [shown(2.0, 10.0), None, shown(9.0, 5.0, point="b", is_inside=False)]
    assert list(running_hypervolume(windows, REFERENCE_MS)) == [80.0, 80.0, 80.0]


def test_without_a_reference_there_is_no_area() -> None:
    """As long as no point is inside the limits the area is 0."""
    assert list(running_hypervolume([shown(2.0, 10.0, is_inside=False)], None)) == [0.0]


def test_a_repeated_point_counts_at_its_mean() -> None:
    """The area falls again when a second session shows less; a second window of one session counts half."""
    windows = [
        shown(4.0, 10.0, repeat=repeat("s0")),
        shown(2.0, 10.0, repeat=repeat("s1")),
        shown(3.0, 10.0, repeat=repeat("s1")),
    ]
    assert list(running_hypervolume(windows, REFERENCE_MS)) == [160.0, 120.0, 130.0]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (repeat("s1", 1.4), 80.0),  # inside in the mean
        (repeat("s1", 1.6), 0.0),
        (repeat("s1", 0.5, is_out=True), 0.0),
    ],
)
def test_a_repeated_point_is_inside_by_its_mean(second: Repeat, expected: float) -> None:
    """One window outside of a limit is forgiven where the mean is inside; another reason puts the point out."""
    windows = [shown(2.0, 10.0, repeat=repeat("s0")), shown(2.0, 10.0, is_inside=False, repeat=second)]
    assert list(running_hypervolume(windows, REFERENCE_MS)) == [80.0, expected]


def test_a_cut_window_of_a_repeated_point_counts_for_its_limits_alone() -> None:
    """What a window showed until it was cut is held to the limits and stays out of the mean, as on the front."""
    cut = Repeat("s1", (1.2,), False, True)
    windows = [shown(2.0, 10.0, repeat=repeat("s0")), shown(8.0, 5.0, is_inside=False, repeat=cut)]
    assert list(running_hypervolume(windows, REFERENCE_MS)) == [80.0, 80.0]
    too_slow = cut._replace(shares=(1.6,))
    windows = [windows[0], windows[1]._replace(repeat=too_slow)]
    assert list(running_hypervolume(windows, REFERENCE_MS)) == [80.0, 0.0]
    assert list(running_hypervolume([windows[1]], REFERENCE_MS)) == [0.0]
