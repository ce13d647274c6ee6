"""The chart of a front's growth."""

from __future__ import annotations

from api.plot.hypervolume_chart import template


def test_both_axes_name_their_unit() -> None:
    """Device time is told in the unit asked for, hypervolume in its own, with what was not measured."""
    encoding = template("min", "simulated", "dark")["layer"][0]["encoding"]
    assert encoding["x"]["axis"]["title"] == "device time (minutes)"
    assert encoding["y"]["axis"]["title"] == ["hypervolume", "tok/J × ms, simulated"]


def test_the_area_begins_at_zero() -> None:
    """Areas are compared by their height, so that both axes begin at zero."""
    encoding = template("h", "measured", "light")["layer"][0]["encoding"]
    assert encoding["x"]["scale"]["zero"]
    assert encoding["y"]["scale"]["zero"]
