"""How charts look, light and dark: the same colours as the custom properties of style.css, and the fonts around them.

The first eight series colours are those of Okabe and Ito ("Color Universal Design", 2008), moved in lightness until
each has the contrast of text with its ground (WCAG 2.2, 1.4.3); the others fill the gaps between them. Knows nothing of
what a chart shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.settings import PRECISIONS

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")

#: `--sans` of style.css.
FONTS = 'ui-sans-serif, -apple-system, "Segoe UI", Inter, Roboto, "Helvetica Neue", Arial, sans-serif'
#: Fonts of pictures: vl-convert brings Liberation Sans along, so that text is there and the same on every machine.
PICTURE_FONTS = "'Liberation Sans', sans-serif"
#: Fronts that are compared, in the order that they were asked for, and the dash of each line.
LETTERS = ("A", "B", "C", "D", "E", "F", "G", "H")
DASHES: tuple[tuple[int, ...], ...] = (
    (1, 0), (7, 3), (2, 3), (10, 3, 2, 3), (4, 2), (12, 4), (2, 2, 7, 2), (5, 5),
)  # fmt: skip
#: Precisions in the order of the series' colours: new ones come last, so that none changes its own.
_COLOURED = (
    "fp32", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp4", "tf32", "int8_dynamic", "int4_g32", "int4_g128",
)  # fmt: skip
#: What a point is drawn as whose job searches no precision.
ONE_PRECISION = "one precision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The colours of one scheme."""

    #: Of the panel that a chart stands on: `--surface`.
    ground: str
    text: str
    quiet: str
    rule: str
    #: Of limits.
    bad: str
    #: Of words that say that nothing was measured.
    warn: str
    series: tuple[str, ...]


THEMES: dict[Scheme, Theme] = {
    "light": Theme(
        ground="#ffffff",
        text="#161a20",
        quiet="#57606c",
        rule="#e1e5ea",
        bad="#b3261e",
        warn="#855200",
        series=(
            "#0067a3",
            "#b34700",
            "#00734f",
            "#9c3a77",
            "#7d5a00",
            "#0a7387",
            "#5b44b0",
            "#57606c",
            "#6b3e1d",
            "#8a1c3b",
            "#4a5f00",
            "#24366b",
        ),
    ),
    "dark": Theme(
        ground="#161b22",
        text="#e6eaf0",
        quiet="#9ba6b4",
        rule="#29313c",
        bad="#ff8f85",
        warn="#e6b04e",
        series=(
            "#5eb0ea",
            "#f08a4b",
            "#3fc79a",
            "#e59cc4",
            "#e6b84c",
            "#6fd3e3",
            "#b3a5f7",
            "#a9b4c1",
            "#c9966b",
            "#ff9bb0",
            "#b7cc5c",
            "#8fb0ff",
        ),
    ),
}


def colour_of(precision: str, scheme: Scheme) -> str:
    """Return the colour of a precision: the same in every chart, whichever others a job has."""
    place = _COLOURED.index(precision) if precision in _COLOURED else 0
    return THEMES[scheme].series[place]


def ordered(precisions: Sequence[str]) -> list[str]:
    """Return precisions in the order of legends: widest first, what is unknown last."""
    known = {name: place for place, name in enumerate(PRECISIONS)}
    return sorted(set(precisions), key=lambda name: (known.get(name, len(known)), name))


def config(scheme: Scheme) -> dict[str, Any]:
    """Return Vega-Lite's configuration: quiet axes, no frame, rows without a figure left to who made them."""
    theme = THEMES[scheme]
    return {
        "background": theme.ground,
        "font": FONTS,
        "view": {"stroke": None},
        # What cannot be drawn is left out where rows are made; looking again costs time with 10,000 of them. Words
        # about each dot cost as much, and nobody can hear them in a canvas: the table has the figures.
        "mark": {"invalid": None, "aria": False},
        "axis": {
            "labelColor": theme.quiet,
            "titleColor": theme.text,
            "domainColor": theme.quiet,
            "tickColor": theme.rule,
            "gridColor": theme.rule,
            "labelFontSize": 12,
            "titleFontSize": 12.5,
            "titleFontWeight": 500,
            "titlePadding": 10,
            "labelPadding": 6,
            "tickSize": 4,
        },
        "legend": {
            "labelColor": theme.text,
            "titleColor": theme.quiet,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": 500,
            "titleOrient": "left",
            "titlePadding": 8,
            "symbolFillColor": theme.quiet,
            "orient": "bottom",
            "direction": "horizontal",
            "symbolStrokeWidth": 1.5,
            "offset": 10,
        },
        "title": {
            "anchor": "start",
            "color": theme.text,
            "subtitleColor": theme.quiet,
            "fontSize": 17,
            "fontWeight": 600,
            "subtitleFontSize": 12.5,
            "subtitleLineHeight": 17,
            "subtitlePadding": 6,
            "offset": 14,
        },
    }


def with_legends_below(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a chart whose legends stand below each other where it is narrow.

    Vega-Lite hands `config.legend.layout` to Vega, whose documentation has it; its own schema only names it.
    """
    legend = spec["config"]["legend"]
    layout = {"anchor": "start", "direction": {"signal": "width < 480 ? 'vertical' : 'horizontal'"}, "margin": 8}
    return {**spec, "config": {**spec["config"], "legend": {**legend, "layout": {"bottom": layout}}}}
