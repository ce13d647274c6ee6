"""The chart of what a device did during a trial."""

from __future__ import annotations

from api.plot.trace_chart import template


def test_power_and_clock_are_aligned() -> None:
    """The panels share the time axis and have vertical axes of one width; a device without a clock has one panel."""
    spec = template(True, "measured", "light")
    assert spec["resolve"] == {"scale": {"x": "shared"}}
    axes = [panel["layer"][0]["encoding"]["y"]["axis"] for panel in spec["vconcat"]]
    assert [axis["title"] for axis in axes] == ["power (W)", "clock (MHz)"]
    assert len({(axis["minExtent"], axis["maxExtent"]) for axis in axes}) == 1
    assert len(template(False, "measured", "light")["vconcat"]) == 1


def test_estimated_power_is_called_so() -> None:
    """Power that was not measured says so on its axis; a clock that was read does not."""
    axes = [panel["layer"][0]["encoding"]["y"]["axis"] for panel in template(True, "estimate", "light")["vconcat"]]
    assert [axis["title"] for axis in axes] == ["power (W), estimate", "clock (MHz)"]
