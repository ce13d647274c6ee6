"""What charts with a limit share."""

from __future__ import annotations

from api.plot.comparison_chart import template


def test_panning_does_not_begin_on_the_limit() -> None:
    """Dragging moves the view, unless it begins on the handle of the limit, which is wide enough to hit."""
    spec = template("light")
    (zoom,) = (one for one in spec["params"] if one["name"] == "zoom")
    assert zoom["bind"] == "scales"
    assert "event.item.mark.name !== 'limit_handle_marks'" in zoom["select"]["translate"]
    (handle,) = (one for one in spec["layer"] if one.get("name") == "limit_handle")
    assert handle["mark"]["strokeWidth"] >= 20
    # Without a tooltip Vega-Lite lets no pointer reach it.
    assert "tooltip" in handle["mark"]
