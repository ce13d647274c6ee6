"""What a device did while a trial ran: power and clock over time, one above the other on one time axis.

The page sets the dataset `samples`: `time_s`, `power_w`, `clock_mhz`. Knows nothing of trials.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import altair as alt

from api.plot.axes import Origin
from api.plot.theme import THEMES, Scheme, config

#: Of the vertical axes, so that both panels begin at the same place.
AXIS_PX = 46


@lru_cache(maxsize=16)
def template(has_clock: bool, origin: Origin, scheme: Scheme) -> dict[str, Any]:
    """Return the chart without rows, checked against Vega-Lite's schema. Not to be changed: it is remembered."""
    series = THEMES[scheme].series
    words = "" if origin == "measured" else f", {origin}"
    panels = [_panel("power_w", f"power (W){words}", series[1], is_last=not has_clock)]
    if has_clock:
        clock_words = ", simulated" if origin == "simulated" else ""
        panels.append(_panel("clock_mhz", f"clock (MHz){clock_words}", series[0], is_last=True))
    chart = (
        alt.vconcat(*panels, spacing=12)
        .resolve_scale(x="shared")
        .properties(padding={"left": 6, "right": 14, "top": 6, "bottom": 6})
        .properties(description="Power and clock of the device while the trial ran")
        .configure(**config(scheme))
    )
    spec: dict[str, Any] = chart.to_dict()
    return spec


def _panel(field: str, title: str, colour: str, *, is_last: bool) -> Any:
    axis = alt.Axis(title="time in the window (s)" if is_last else None, labels=is_last, format=",~f", tickCount=6)
    # 0 W is the honest foot of power; a clock's changes are small against its height.
    scale = alt.Scale(zero=field == "power_w", nice=True)
    y = alt.Y(
        f"{field}:Q",
        scale=scale,
        axis=alt.Axis(title=title, tickCount=4, minExtent=AXIS_PX, maxExtent=AXIS_PX, format=",~f"),
    )
    samples = alt.Chart(alt.NamedData("samples")).encode(
        x=alt.X("time_s:Q", axis=axis, scale=alt.Scale(nice=False)), y=y
    )
    return alt.layer(
        samples.properties(name=f"{field}_line").mark_line(color=colour, strokeWidth=1.4, interpolate="monotone"),
        samples.properties(name=f"{field}_points").mark_point(
            filled=True, size=24, opacity=0.001, color=colour, tooltip=alt.TooltipContent("data")
        ),
    ).properties(width=640, height=110)
