"""The chart of several fronts."""

from __future__ import annotations

from api.plot.comparison_chart import template
from api.plot.theme import DASHES, LETTERS


def test_fronts_differ_by_more_than_colour() -> None:
    """Every line has a colour, a dash and a letter of its own."""
    spec = template("light")
    (line,) = (one for one in spec["layer"] if one.get("name") == "front_lines")
    assert line["encoding"]["color"]["scale"]["domain"] == list(LETTERS)
    assert line["encoding"]["strokeDash"]["scale"]["domain"] == list(LETTERS)
    assert len(set(DASHES)) == len(set(line["encoding"]["color"]["scale"]["range"])) == len(LETTERS)
    assert "front_letters" in {one.get("name") for one in spec["layer"]}
