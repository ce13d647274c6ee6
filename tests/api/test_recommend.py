"""The choice among stored points: always inside every limit, never a better one left, and what the others miss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.recommend import MAX_NEAREST, Bound, choose, figure_of, nearest
from db.results import Found
from tests.db.factories import START
from tuner.errors import InvalidRequest
from tuner.measurement import Estimate

positive = st.floats(1e-3, 1e6)
maybe = st.none() | st.floats(0.01, 1.0)


def make_found(number: int = 0, **changes: Any) -> Found:
    fields: dict[str, Any] = {
        "id": number,
        "job_id": "f8c3794cd26446e09f0a3fc8734edf6a",
        "number": number,
        "engine": "simulated",
        "device_uuid": "SIM",
        "workload": "a" * 64,
        "is_simulated": True,
        "is_estimate": True,
        "tok_per_j": 2.0,
        "output_tok_s": 1000.0,
        "mean_power_w": 500.0,
        "latencies_ms": {"ttft_p99_ms": 400.0, "tpot_p99_ms": 30.0},
        "quality": None,
        "measured_at": START,
    }
    return Found(**{**fields, **changes})


@st.composite
def points(draw: st.DrawFn) -> list[Found]:
    figures = draw(st.lists(st.tuples(positive, positive, positive, positive, maybe), min_size=1, max_size=12))
    return [
        make_found(
            i,
            tok_per_j=tok_per_j,
            output_tok_s=tok_s,
            mean_power_w=power_w,
            latencies_ms={"tpot_p99_ms": tpot_ms},
            quality=quality,
        )
        for i, (tok_per_j, tok_s, power_w, tpot_ms, quality) in enumerate(figures)
    ]


bounds = st.lists(
    st.one_of(
        st.builds(Bound, name=st.sampled_from(("tpot_p99_ms", "power_w", "output_tok_s")), value=positive),
        st.builds(Bound, name=st.just("quality"), value=st.floats(0.01, 1.0)),
    ),
    max_size=4,
)


def is_inside(found: Found, limits: Sequence[Bound]) -> bool:
    """Compare as a reader would, in figures and not in shares."""
    for bound in limits:
        figure = figure_of(found, bound.name)
        if figure is None or (figure < bound.value if bound.is_least else figure > bound.value):
            return False
    return True


@given(found=points(), limits=bounds)
def test_the_choice_is_inside_every_limit_and_no_other_inside_has_more(found: list[Found], limits: list[Bound]) -> None:
    """The recommendation holds every limit, and of all points that do none has more tokens per joule."""
    choice = choose(found, limits)
    inside = [one for one in found if is_inside(one, limits)]
    if choice.best is None:
        assert inside == []
    else:
        assert choice.best in inside
        assert choice.best.tok_per_j == max(one.tok_per_j for one in inside)


@given(found=points(), limits=bounds)
def test_without_one_inside_the_nearest_tell_what_they_miss(found: list[Found], limits: list[Bound]) -> None:
    """Where no point holds all limits, the nearest each name every limit that they miss, the worst first."""
    choice = choose(found, limits)
    if choice.best is not None:
        assert choice.nearest == ()
        return
    assert 1 <= len(choice.nearest) <= MAX_NEAREST
    worst = [max(one.missed_by for one in near.missed) for near in choice.nearest]
    assert worst == sorted(worst)
    for near in choice.nearest:
        assert {miss.bound for miss in near.missed} == {one for one in limits if not is_inside(near.found, [one])}
        assert near.missed[0].missed_by == max(one.missed_by for one in near.missed)
    assert worst[0] == min(max(bound.missed_by(figure_of(one, bound.name)) for bound in limits) for one in found)


@given(value=positive)
def test_a_limit_is_inclusive(value: float) -> None:
    """A figure that equals its bound is inside, and the next number beyond is not."""
    limit = Bound(name="tpot_p99_ms", value=value)
    assert choose([make_found(latencies_ms={"tpot_p99_ms": value})], [limit]).best is not None
    beyond = make_found(latencies_ms={"tpot_p99_ms": math.nextafter(value, math.inf)})
    choice = choose([beyond], [limit])
    assert (choice.best, choice.nearest[0].found) == (None, beyond)
    assert choice.nearest[0].missed[0].missed_by > 0


def test_what_is_not_known_is_inside_no_limit() -> None:
    """A point without a figure misses a limit on it by the whole bound; without that limit it is as good as any."""
    (near,) = nearest([make_found()], [Bound(name="quality", value=0.99)])
    assert (near.missed[0].figure, near.missed[0].missed_by) == (None, 1.0)
    assert choose([make_found()], []).best == make_found()


def test_other_loads_and_devices_are_named_and_not_compared() -> None:
    """Only points of the newest load are compared, though one of another load has more tokens per joule."""
    newer = START + timedelta(hours=1)
    found = [
        make_found(1, measured_at=newer),
        make_found(2, tok_per_j=9.0, workload="b" * 64),
        make_found(3, tok_per_j=9.0, device_uuid="OTHER"),
        make_found(4, tok_per_j=9.0, is_estimate=False),
    ]
    choice = choose(found, [])
    assert choice.best == found[0]
    assert [(one.workload[0], one.device_uuid, one.num_points) for one in choice.others] == [
        ("b", "SIM", 1), ("a", "OTHER", 1), ("a", "SIM", 1)
    ]  # fmt: skip


@pytest.mark.parametrize(("low", "high", "expected"), [(25.0, 31.0, False), (25.0, 29.0, True), (25.0, None, None)])
def test_an_interval_tells_whether_a_limit_is_certain(low: float, high: float | None, expected: bool | None) -> None:
    """A limit is certain when the interval's far end is inside, and unknown when that end is."""
    assert Bound(name="tpot_p99_ms", value=30.0).is_certain(Estimate(28.0, low, high)) is expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tpot_p99_ms", 0.0),
        ("tpot_p99_ms", float("nan")),
        ("power_w", -1.0),
        ("power_w", float("inf")),
        ("quality", 1.5),
        ("ttft_p42_ms", 1.0),
    ],
)
def test_a_limit_that_cannot_be_is_refused(name: str, value: float) -> None:
    """Unknown figures and bounds that nothing could meet are refused by name."""
    with pytest.raises(InvalidRequest, match=name):
        Bound(name=name, value=value)
