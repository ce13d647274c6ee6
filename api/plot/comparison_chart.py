"""Up to eight fronts in one chart: each a step line in a colour, a dash and a letter of its own.

The page sets the dataset `fronts` (`x`, `y`, `letter`, `trial`, `is_last`) and the parameters `x_domain`, `y_domain`,
`letters` and `limit_ms`. Knows nothing of jobs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import altair as alt

from api.plot.overlays import channels, expr, limit_line, limit_shade, origin_note, zoom
from api.plot.theme import DASHES, LETTERS, THEMES, Scheme, config


@lru_cache(maxsize=2)
def template(scheme: Scheme) -> dict[str, Any]:
    """Return the chart without rows, to be fitted; checked against Vega-Lite's schema. Not to be changed."""
    theme = THEMES[scheme]
    x, y = channels()
    colour = alt.Color(
        "letter:N",
        scale=alt.Scale(domain=list(LETTERS), range=list(theme.series[: len(LETTERS)])),
        legend=_legend(theme.quiet),
    )
    dash = alt.StrokeDash(
        "letter:N", scale=alt.Scale(domain=list(LETTERS), range=list(DASHES)), legend=_legend(theme.quiet)
    )
    fronts = alt.Chart(alt.NamedData("fronts")).encode(x=x, y=y, color=colour)
    words: dict[str, Any] = {"align": "left", "dx": 9, "dy": -9, "fontSize": 13, "fontWeight": 700, "clip": True}
    last = fronts.transform_filter("datum.is_last").encode(text="letter:N")
    chart = (
        alt.layer(
            limit_shade(scheme),
            fronts.transform_filter("datum.is_leading")
            .properties(name="front_lines")
            .mark_line(interpolate="step-after", strokeWidth=2, clip=True)
            .encode(strokeDash=dash, order=alt.Order("x:Q"))
            .add_params(zoom()),
            fronts.properties(name="front_points").mark_point(
                filled=True, size=46, opacity=1, stroke=theme.ground, strokeWidth=1, clip=True, cursor="pointer",
                tooltip=alt.TooltipContent("data"),
            ),
            last.properties(name="letter_halo").mark_text(
                **words, stroke=theme.ground, strokeWidth=4, strokeJoin="round"
            ),
            last.properties(name="front_letters").mark_text(**words),
            *limit_line(scheme),
            origin_note(scheme),
        )
        .add_params(
            alt.param(name="x_domain", value=[0, 1]),
            alt.param(name="y_domain", value=[0, 1]),
            alt.param(name="letters", value=[]),
            alt.param(name="limit_ms", value=None),
        )
        .properties(width=720, height=420, padding={"left": 6, "right": 14, "top": 10, "bottom": 6})
        .properties(autosize=alt.AutoSizeParams(type="fit", contains="padding"))
        .properties(description="Fronts of several jobs; the table beside it says what each letter is")
        .configure(**config(scheme))
    )  # fmt: skip
    spec: dict[str, Any] = chart.to_dict()
    return spec


def _legend(quiet: str) -> alt.Legend:
    """Return one legend for colour and dash; the page's table says what each letter is."""
    return alt.Legend(title=None, values=expr("letters"), symbolType="stroke", symbolSize=420, labelColor=quiet)
