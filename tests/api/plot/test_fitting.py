"""Charts fitted to metric, kinds of axes, origin and legends."""

from __future__ import annotations

from typing import Any

from api.plot.fitting import fitted


def test_only_what_is_asked_for_changes() -> None:
    """Axes get titles and kinds, a logarithmic one loses its zero, and what was given stays as it was."""
    channel: dict[str, Any] = {"scale": {"type": "linear", "zero": False}, "axis": {"title": "", "tickCount": 4}}
    line = {"name": "line", "encoding": {"x": channel, "y": {"value": 3}}}
    given = {"width": 5, "layer": [line, {"name": "origin", "encoding": {"text": {"value": ""}}}]}
    shown = fitted(given, "ttft_p50_ms", ("log", "linear"), "estimate")
    x = shown["layer"][0]["encoding"]["x"]
    assert (x["scale"], x["axis"]["tickCount"]) == ({"type": "log"}, 4)
    assert x["axis"]["title"] == "TTFT p50 (ms): less is better"
    assert shown["layer"][0]["encoding"]["y"] == {"value": 3}
    assert shown["layer"][1]["encoding"]["text"]["value"] == "ESTIMATE: the energy was not measured"
    assert channel == {"scale": {"type": "linear", "zero": False}, "axis": {"title": "", "tickCount": 4}}
