"""How a job's front grew: its hypervolume over the time that the device was kept. Knows no trial but as a step.

The page sets the dataset `growth`: `device` in the unit that the title names, `hypervolume`, and `trial`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import altair as alt

from api.plot.axes import Origin
from api.plot.specs import Unit
from api.plot.theme import THEMES, Scheme, config

_WORDS: dict[Unit, str] = {"s": "seconds", "min": "minutes", "h": "hours"}


@lru_cache(maxsize=32)
def template(unit: Unit, origin: Origin, scheme: Scheme) -> dict[str, Any]:
    """Return the chart without rows, checked against Vega-Lite's schema. Not to be changed: it is remembered."""
    theme = THEMES[scheme]
    words = "" if origin == "measured" else f", {origin}"
    x = alt.X(
        "device:Q", axis=alt.Axis(title=f"device time ({_WORDS[unit]})", format=",~f", tickCount=6), scale=_axis()
    )
    y = alt.Y(
        "hypervolume:Q",
        axis=alt.Axis(title=["hypervolume", f"tok/J × ms{words}"], format="~s", tickCount=4),
        scale=_axis(),
    )
    grown = alt.Chart(alt.NamedData("growth")).encode(x=x, y=y)
    chart = (
        alt.layer(
            grown.properties(name="area").mark_area(interpolate="step-after", color=theme.series[0], opacity=0.1),
            grown.properties(name="growth_line").mark_line(
                interpolate="step-after", color=theme.series[0], strokeWidth=1.8
            ),
            grown.properties(name="trials")
            .transform_filter("datum.has_grown")
            .mark_point(filled=True, size=34, opacity=1, color=theme.series[0], tooltip=alt.TooltipContent("data")),
        )
        .properties(width=720, height=220, padding={"left": 6, "right": 14, "top": 10, "bottom": 6})
        .properties(autosize=alt.AutoSizeParams(type="fit", contains="padding"))
        .properties(description="Hypervolume of the front over device time; the table of trials has the same figures")
        .configure(**config(scheme))
    )
    spec: dict[str, Any] = chart.to_dict()
    return spec


def _axis() -> alt.Scale:
    return alt.Scale(zero=True, nice=True)
