"""The front chart as a specification; Altair checks it against Vega-Lite's schema as it makes it."""

from __future__ import annotations

from typing import Any

import altair as alt
import pytest

from api.plot.fitting import fitted
from api.plot.front_chart import build, legends_of, template
from api.plot.rows import front_rows
from api.plot.theme import SCHEMES, THEMES, Scheme
from tests.api.plot.figures import make_figures


def params_of(spec: dict[str, Any]) -> dict[str, Any]:
    return {param["name"]: param.get("value") for param in spec["params"]}


def layer(spec: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in spec["layer"] if one.get("name") == name)
    return dict(found)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_chart_has_its_rows_and_what_they_decide(scheme: Scheme) -> None:
    """A built chart has its datasets by the names that the page uses, its axes' ends, its limit and its colours."""
    rows = front_rows(make_figures())
    spec = build(rows, scheme, width=800, height=500)
    assert spec["datasets"]["front"] == rows.front
    assert spec["datasets"]["dominated"] == rows.dominated
    assert spec["datasets"]["greyed"] == rows.greyed
    shown = params_of(spec)
    assert (shown["x_domain"], shown["limit_ms"]) == ([rows.x.low, rows.x.high], 50.0)
    assert (shown["series"], shown["states"], shown["max_batch"]) == (["bf16", "fp8"], ["infeasible", "invalid"], 64)
    assert (spec["width"], spec["height"], spec["config"]["background"]) == (800, 500, THEMES[scheme].ground)


def test_titles_carry_units_and_origin() -> None:
    """Both axes name their units, and simulated figures are called so on the axes and in the plot."""
    spec = build(front_rows(make_figures()), "light")
    titles = [layer(spec, "front_points")["encoding"][axis]["axis"]["title"] for axis in ("x", "y")]
    assert titles == ["TPOT p99 (ms), simulated: less is better", "tokens per joule (tok/J), simulated"]
    assert layer(spec, "origin")["encoding"]["text"]["value"] == "SIMULATED: nothing was measured"
    measured = build(front_rows(make_figures(is_simulated=False, is_estimate=False)), "light")
    assert layer(measured, "origin")["encoding"]["text"]["value"] == ""
    estimate = build(front_rows(make_figures(is_simulated=False)), "light")
    assert layer(estimate, "origin")["encoding"]["text"]["value"].startswith("ESTIMATE")


def test_axes_are_logarithmic_where_the_spread_asks_for_it() -> None:
    """A limit beyond the data makes the latency axis logarithmic, and the other stays linear."""
    spec = build(front_rows(make_figures(), limit_ms=600.0), "light")
    encoding = layer(spec, "front_points")["encoding"]
    assert (encoding["x"]["scale"]["type"], encoding["y"]["scale"]["type"]) == ("log", "linear")


def test_the_front_line_has_steps_over_leading_points_alone() -> None:
    """Between two points only the slower one's latency is known to give its tokens; ties do not lead the line."""
    line = layer(template("light"), "front_line")
    assert line["mark"]["interpolate"] == "step-after"
    assert line["transform"] == [{"filter": "datum.is_leading"}]


def test_empty_legends_are_left_out() -> None:
    """Without precisions, batches and uncounted states there is no legend: an empty one breaks Vega's layout."""
    values = {"series": [], "max_batch": 0, "states": []}
    assert legends_of(values) == ()
    assert legends_of({"series": ["fp8"], "max_batch": 8, "states": ["invalid"]}) == ("precision", "batch", "states")
    bare = fitted(template("light"), "tpot_p99_ms", ("linear", "linear"), "measured", ())
    encoding = layer(bare, "front_points")["encoding"]
    assert encoding["color"]["legend"] is None
    assert "value" in encoding["size"]


def test_building_changes_nothing_that_is_remembered() -> None:
    """Charts of other rows do not meet: the template has no rows in it."""
    rows = front_rows(make_figures())
    first = build(rows, "light")
    build(front_rows(make_figures(front=[])), "light")
    assert "front" not in template("light")["datasets"]
    assert first["datasets"]["front"] == rows.front


def test_a_fitted_chart_is_still_valid() -> None:
    """What was fitted after Altair's check, logarithmic axes included, meets Vega-Lite's schema too."""
    spec = build(front_rows(make_figures(), limit_ms=5_000.0), "dark")
    config = {name: value for name, value in spec["config"].items() if name != "legend"}  # its layout is Vega's own
    assert alt.LayerChart.from_dict({**spec, "config": config}).to_dict()["width"] == 720
