"""The front chart: tokens per joule against latency, as a Vega-Lite specification that page and pictures share.

The page fetches it without rows and sets them through the view (js/charts.mjs): datasets `front`, `dominated`,
`greyed`, `default` and `highlight`, and the parameters `x_domain`, `y_domain`, `series`, `max_batch`, `states` and
`limit_ms`. A picture has them inside. It is the page that lets the limit be dragged, by setting `limit_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import altair as alt

from api.plot.fitting import Legend, Legends, fitted
from api.plot.overlays import channels, expr, for_field, limit_line, limit_shade, origin_note, zoom
from api.plot.rows import FrontRows, drawn
from api.plot.theme import ONE_PRECISION, THEMES, Scheme, colour_of, config, with_legends_below
from engine.settings import PRECISIONS

#: A dot's area in square pixels, from the smallest batch to the largest.
_SIZES = (26, 300)


def build(rows: FrontRows, scheme: Scheme, *, width: int = 720, height: int = 420) -> dict[str, Any]:
    """Return the chart of a job with its rows inside."""
    values = _values(rows)
    spec = fitted(template(scheme), rows.metric, (rows.x.type, rows.y.type), rows.origin, legends_of(values))
    params = [{**one, "value": values[one["name"]]} if one["name"] in values else one for one in spec["params"]]
    datasets = {
        "dominated": drawn(rows.dominated, rows.x, rows.y),
        "greyed": drawn(rows.greyed, rows.x, rows.y),
        "front": rows.front,
        "default": rows.default,
        "highlight": [],
    }
    # Rows are put in last: to have Altair check 10,000 of them takes seconds.
    return {**spec, "params": params, "datasets": {**spec["datasets"], **datasets}, "width": width, "height": height}


def _values(rows: FrontRows) -> dict[str, Any]:
    """Return the parameters of a picture; js/charts.mjs sets the same."""
    return {
        "x_domain": [rows.x.low, rows.x.high],
        "y_domain": [rows.y.low, rows.y.high],
        "series": [] if rows.series == [ONE_PRECISION] else rows.series,
        "max_batch": rows.max_batch,
        "states": sorted({row["state"] for row in rows.greyed}),
        "limit_ms": rows.limit_ms,
    }


def legends_of(values: Mapping[str, Any]) -> Legends:
    """Return the legends that have entries."""
    found: list[Legend] = []
    found += ["precision"] if values["series"] else []
    found += ["batch"] if values["max_batch"] else []
    found += ["states"] if values["states"] else []
    return tuple(found)


@lru_cache(maxsize=2)
def template(scheme: Scheme) -> dict[str, Any]:
    """Return the chart without rows, to be fitted; checked against Vega-Lite's schema. Not to be changed."""
    chart = (
        alt.layer(*_layers(scheme))
        .add_params(*_params())
        .resolve_scale(color="shared", size="shared")
        .properties(width=720, height=420, padding={"left": 6, "right": 14, "top": 10, "bottom": 6})
        .properties(autosize=alt.AutoSizeParams(type="fit", contains="padding"))
        .properties(description="Tokens per joule against latency; the table has the same figures")
        .configure(**config(scheme))
    )
    return with_legends_below(chart.to_dict())


def _params() -> list[alt.Parameter]:
    """Return what rows decide beside their places."""
    return [
        alt.param(name="x_domain", value=[0, 1]),
        alt.param(name="y_domain", value=[0, 1]),
        alt.param(name="series", value=[]),
        alt.param(name="max_batch", value=0),
        alt.param(name="states", value=[]),
        alt.param(name="limit_ms", value=None),
    ]


def _layers(scheme: Scheme) -> list[alt.Chart]:
    (x, y), look = channels(), (_colour(scheme), _size())
    return [
        limit_shade(scheme),
        _greyed(x, y, scheme),
        _dominated(x, y, look),
        *_front(x, y, look, scheme),
        *_marks(x, y, scheme),
        *limit_line(scheme),
        origin_note(scheme),
    ]


def _greyed(x: Any, y: Any, scheme: Scheme) -> alt.Chart:
    """Return what does not count, as grey rings and crosses."""
    theme = THEMES[scheme]
    states = alt.Scale(domain=["infeasible", "invalid", "failed"], range=["circle", "cross", "triangle-down"])
    words = "{infeasible: 'outside the limits', invalid: 'invalid', failed: 'failed'}[datum.label]"
    legend = alt.Legend(title="not counted", values=expr("states"), labelExpr=words, symbolStrokeColor=theme.quiet)
    greyed: alt.Chart = (
        alt.Chart(alt.NamedData("greyed"), name="greyed")
        .mark_point(
            filled=False,
            opacity=0.65,
            strokeWidth=1.3,
            clip=True,
            size=46,
            stroke=theme.quiet,
            cursor="pointer",
            tooltip=alt.TooltipContent(content="data"),
        )
        .encode(x=x, y=y, shape=alt.Shape("state:N", scale=states, legend=legend))
        .add_params(zoom())
    )
    return greyed


def _dominated(x: Any, y: Any, look: tuple[Any, Any]) -> alt.Chart:
    """Return what is beaten, faint."""
    dominated: alt.Chart = (
        alt.Chart(alt.NamedData("dominated"), name="dominated")
        .mark_point(filled=True, opacity=0.3, clip=True, tooltip=alt.TooltipContent(content="data"), cursor="pointer")
        .encode(x=x, y=y, color=look[0], size=look[1])
    )
    return dominated


def _front(x: Any, y: Any, look: tuple[Any, Any], scheme: Scheme) -> list[alt.Chart]:
    """Return the front: steps, as between two measured points only the slower one's latency is known to give its
    tokens; interval bars; dots, paler beyond the limit; rings around ties.
    """  # noqa: D205 - one sentence
    theme, (colour, size) = THEMES[scheme], look
    front = alt.Chart(alt.NamedData("front"))
    beyond = alt.condition("isValid(limit_ms) && datum.x > limit_ms", alt.value(0.35), alt.value(1))
    return [
        front.transform_filter("datum.is_leading")
        .properties(name="front_line")
        .mark_line(interpolate="step-after", strokeWidth=1.5, color=theme.quiet, clip=True)
        .encode(x=x, y=y, order=alt.Order("x:Q")),
        front.properties(name="latency_bars")
        .mark_rule(strokeWidth=1.5, clip=True)
        .encode(x=for_field(x, "x_low"), x2="x_high:Q", y=y, color=colour, opacity=beyond),
        front.properties(name="energy_bars")
        .mark_rule(strokeWidth=1.5, clip=True)
        .encode(x=x, y=for_field(y, "y_low"), y2="y_high:Q", color=colour, opacity=beyond),
        front.properties(name="front_points")
        .mark_point(
            filled=True,
            opacity=1,
            stroke=theme.ground,
            strokeWidth=1,
            clip=True,
            cursor="pointer",
            tooltip=alt.TooltipContent(content="data"),
        )
        .encode(x=x, y=y, color=colour, size=size, opacity=beyond),
        front.transform_filter("datum.is_tied")
        .properties(name="ties")
        .mark_point(filled=False, size=420, strokeWidth=1.3, strokeDash=[3, 3], clip=True, opacity=1)
        .encode(x=x, y=y, color=colour),
    ]


def _marks(x: Any, y: Any, scheme: Scheme) -> list[alt.Chart]:
    """Return the labelled default configuration, and the ring around a dot that the page points at."""
    theme = THEMES[scheme]
    default = alt.Chart(alt.NamedData("default")).encode(x=x, y=y)
    is_right = "scale('x', datum.x) > width * 0.75"
    words: dict[str, Any] = {
        "align": expr(f"{is_right} ? 'right' : 'left'"), "dx": expr(f"{is_right} ? -13 : 13"), "dy": -12,
        "fontSize": 12, "fontWeight": 600, "clip": True,
    }  # fmt: skip
    return [
        default.properties(name="default_mark").mark_point(
            shape="diamond", filled=False, size=430, strokeWidth=2, stroke=theme.text, opacity=1, clip=True,
            cursor="pointer", tooltip=alt.TooltipContent(content="data"),
        ),
        default.properties(name="default_halo")
        .mark_text(**words, stroke=theme.ground, strokeWidth=4, strokeJoin="round")
        .encode(text="label:N"),
        default.properties(name="default_words").mark_text(**words, color=theme.text).encode(text="label:N"),
        alt.Chart(alt.NamedData("highlight"), name="highlighted")
        .mark_point(shape="circle", filled=False, size=620, strokeWidth=3, stroke=theme.text, opacity=1, clip=True)
        .encode(x=x, y=y),
    ]  # fmt: skip


def _colour(scheme: Scheme) -> alt.Color:
    """Return the colour by precision: the legend has those that are there, each in its own colour everywhere."""
    names = [*PRECISIONS, ONE_PRECISION]
    scale = alt.Scale(domain=names, range=[colour_of(name, scheme) for name in names])
    legend = alt.Legend(title="precision", values=expr("series"), symbolOpacity=1, symbolStrokeWidth=0)
    return alt.Color("series:N", scale=scale, legend=legend)


def _size() -> alt.Size:
    """Return the dot's area by batch."""
    scale = alt.Scale(type="linear", domain=expr("[0, max(1, max_batch)]"), range=list(_SIZES), clamp=True)
    ticks = expr("[max_batch, max_batch / 4, max_batch / 16]")
    legend = alt.Legend(
        title="max_batch", values=ticks, symbolType="circle", format=",~f", symbolOpacity=1, symbolStrokeWidth=0
    )
    return alt.Size("batch:Q", scale=scale, legend=legend)
