"""What the charts over tokens per joule and latency share: axes, a limit to drag, zoom, and what was not measured.

The page sets the axes' ends and the limit as parameters. Knows nothing of what is drawn between them.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from api.plot.theme import THEMES, Scheme

_LIMIT_PLACE = "(isValid(limit_ms) ? scale('x', limit_ms) : -1000)"
#: Where its grip and words are: at the edge where the limit is beyond it, from where it can be dragged back.
_GRIP_PLACE = "(isValid(limit_ms) ? clamp(scale('x', limit_ms), 0, width) : -1000)"
#: Dragging moves the view, unless it begins on the limit, which the page moves.
_NOT_ON_LIMIT = "!event.item || event.item.mark.name !== 'limit_handle_marks'"
_PAN = f"[pointerdown[{_NOT_ON_LIMIT}], window:pointerup] > window:pointermove!"


def channels() -> tuple[alt.X, alt.Y]:
    """Return both axes; the parameters `x_domain` and `y_domain` say where they begin and end, `fitting` the rest."""
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="linear", domain=expr("x_domain"), nice=False, zero=False),
        axis=alt.Axis(title="", format=",~f", tickCount=expr("width < 480 ? 4 : 8")),
    )
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(type="linear", domain=expr("y_domain"), nice=False, zero=False),
        axis=alt.Axis(title="", format=",~f", tickCount=6),
    )
    return x, y


def zoom() -> alt.Parameter:
    """Return what lets wheel and pointer move and zoom both axes; the page decides when the wheel counts."""
    return alt.selection_interval(name="zoom", bind="scales", encodings=["x", "y"], translate=_PAN, zoom="wheel!")


def limit_shade(scheme: Scheme) -> alt.Chart:
    """Return the ground beyond the limit."""
    shade: alt.Chart = (
        alt.Chart(alt.InlineData(values=[{}]), name="limit_shade")
        .mark_rect(color=THEMES[scheme].bad, opacity=0.07, clip=True)
        .encode(
            x=alt.value(expr(f"isValid(limit_ms) ? clamp({_LIMIT_PLACE}, 0, width) : width")),
            x2=alt.value(expr("width")),
            y=alt.value(0),
            y2=alt.value(expr("height")),
        )
    )
    return shade


def limit_line(scheme: Scheme) -> list[alt.Chart]:
    """Return the limit on the latency axis: a line, its words, and on top a wide one that a pointer can hit."""
    theme, place = THEMES[scheme], alt.value(expr(_LIMIT_PLACE))
    line = alt.Chart(alt.InlineData(values=[{}])).encode(x=place)
    grip = alt.Chart(alt.InlineData(values=[{}])).encode(x=alt.value(expr(_GRIP_PLACE)))
    is_right = f"{_GRIP_PLACE} > width - 110"  # beyond the limit there is most room for words
    left, right = f"({_LIMIT_PLACE} < 0 ? '← ' : '')", f"({_LIMIT_PLACE} > width ? ' →' : '')"
    words = expr(f"isValid(limit_ms) ? {left} + 'limit ' + format(limit_ms, ',.4~r') + ' ms' + {right} : ''")
    return [
        line.properties(name="limit_line").mark_rule(color=theme.bad, strokeWidth=1.5, strokeDash=[6, 4], clip=True),
        grip.properties(name="limit_grip")
        .mark_point(shape="circle", filled=True, size=130, color=theme.bad, opacity=1)
        .encode(y=alt.value(9)),
        grip.properties(name="limit_words")
        .mark_text(
            color=theme.bad,
            fontSize=12,
            fontWeight=600,
            baseline="top",
            clip=True,
            align=expr(f"{is_right} ? 'right' : 'left'"),
            dx=expr(f"{is_right} ? -10 : 10"),
        )
        .encode(y=alt.value(7), text=alt.value(words)),
        grip.properties(name="limit_handle").mark_rule(
            color=theme.bad,
            strokeWidth=22,
            strokeOpacity=0.001,
            clip=True,
            cursor="ew-resize",
            # Vega-Lite lets no pointer reach a mark beside a selection that has no tooltip; the page shows none here.
            tooltip=alt.TooltipContent("data"),
        ),
    ]


def origin_note(scheme: Scheme) -> alt.Chart:
    """Return the words on figures that were not measured, which `fitting` puts in, where a front never is."""
    note: alt.Chart = (
        alt.Chart(alt.InlineData(values=[{}]), name="origin")
        .mark_text(
            align="right",
            baseline="bottom",
            fontSize=expr("width < 480 ? 10.5 : 12"),
            fontWeight=600,
            color=THEMES[scheme].warn,
        )
        .encode(
            x=alt.value(expr("width - 8")),
            y=alt.value(expr("height - 8")),
            text=alt.value(""),
        )
    )
    return note


def for_field(channel: Any, field: str) -> Any:
    """Return a channel for another field: the same scale and axis."""
    other = channel.copy()
    other.shorthand = f"{field}:Q"
    return other


def expr(text: str) -> alt.ExprRef:
    """Return an expression of Vega that is told anew whenever a parameter in it changes."""
    return alt.ExprRef(expr=text)
