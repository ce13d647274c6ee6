"""A point is its knobs' values, whatever the order they came in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.point import OperatingPoint

knobs = st.dictionaries(
    st.text(max_size=6), st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=6)), max_size=5
)


@settings(deadline=None)
@given(knobs=knobs, data=st.data())
def test_the_order_of_knobs_does_not_matter(knobs: dict[str, int | float | str], data: st.DataObject) -> None:
    """The same values in any order are one point with one key and one hash."""
    shuffled = dict(data.draw(st.permutations(list(knobs.items()))))
    one, other = OperatingPoint.of(knobs), OperatingPoint.of(shuffled)
    assert (one, one.key, hash(one)) == (other, other.key, hash(other))


@settings(deadline=None)
@given(knobs=knobs)
def test_a_point_gives_back_its_knobs(knobs: dict[str, int | float | str]) -> None:
    """Every knob can be read one by one, all together, and from the key."""
    point = OperatingPoint.of(knobs)
    assert knobs == point.as_dict() == {name: point[name] for name in knobs} == json.loads(point.key)


@settings(deadline=None)
@given(one=knobs, other=knobs)
def test_different_values_are_different_points(
    one: dict[str, int | float | str], other: dict[str, int | float | str]
) -> None:
    """Two points are equal exactly when all their knobs are."""
    assert (one == other) == (OperatingPoint.of(one) == OperatingPoint.of(other))


def test_a_key_is_the_same_on_every_machine() -> None:
    """The key is compact JSON in the order of the names."""
    assert OperatingPoint.of({"precision": "int8", "max_batch": 8}).key == '{"max_batch":8,"precision":"int8"}'


def test_a_point_reads_well() -> None:
    """As text a point is its knobs in the order of their names."""
    assert str(OperatingPoint.of({"precision": "int8", "max_batch": 8})) == "max_batch=8 precision=int8"


def test_a_knob_that_is_not_there_is_an_error() -> None:
    """Asking for a knob that the point lacks raises KeyError with its name."""
    with pytest.raises(KeyError, match="rate"):
        OperatingPoint.of({"max_batch": 8})["rate"]
