"""The figures of a job's trials as the rows that the front chart draws. Pure: columns of plain values in, rows out.

`figures` is what /v1/jobs/{job}/figures answers. js/front_rows.mjs makes the same rows on the page; a test holds the
two to each other. What has no figures on both axes is not drawn, only counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.plot.axes import Origin, Span, origin_of, span_of
from api.plot.theme import ONE_PRECISION, ordered

#: Of dots of a kind all are drawn up to this number; of more, one in each cell of a grid as fine as the dots are large.
MOST_DRAWN = 1500
_CELLS = (120, 60)

#: One dot, as Vega-Lite takes it: plain JSON values by field.
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontRows:
    """What the front chart draws, and how its axes lie."""

    metric: str
    origin: Origin
    #: Points of the front by latency, with the ends of their intervals.
    front: list[Row]
    #: Complete, but beaten by a point of the front.
    dominated: list[Row]
    #: Outside a limit or not to be used: the state says which.
    greyed: list[Row]
    #: The default configuration: one row, or none where it has no figures.
    default: list[Row]
    x: Span
    y: Span
    #: Precisions in the order of the legend.
    series: list[str]
    #: The largest batch; 0 where the job searches none.
    max_batch: float
    #: On the latency axis; None for no limit there.
    limit_ms: float | None
    #: Trials that have ended and have no figures on both axes.
    num_without_figures: int


def front_rows(figures: Mapping[str, Any], *, limit_ms: float | None = None) -> FrontRows:
    """Return the rows of a job's figures, with the job's own limit on the latency axis unless one is given."""
    trials, metric = figures["trials"], figures["latency_metric"]
    is_estimate = bool(figures["is_estimate"])
    limit_ms = figures["sla"].get(metric) if limit_ms is None else limit_ms
    front = [_front_row(trials, place) for place in _in_order(figures, trials)]
    default = _default_rows(figures, trials, front)
    dominated, greyed, num_without = _others(figures, trials)
    dots = [*front, *dominated, *greyed, *default]
    batches = [row["batch"] for row in dots if row["batch"] is not None]
    return FrontRows(
        metric=metric,
        origin=origin_of(is_simulated=bool(figures["is_simulated"]), is_estimate=is_estimate),
        front=front,
        dominated=dominated,
        greyed=greyed,
        default=default,
        x=span_of([row[end] for row in dots for end in ("x", "x_low", "x_high") if end in row], limit=limit_ms),
        y=span_of([row[end] for row in dots for end in ("y", "y_low", "y_high") if end in row]),
        series=ordered([row["series"] for row in (*front, *dominated)]),
        max_batch=max(batches, default=0),
        limit_ms=limit_ms,
        num_without_figures=num_without,
    )


def drawn(rows: list[Row], x: Span, y: Span) -> list[Row]:
    """Return the rows of dots beside the front that are drawn: of more than MOST_DRAWN one of a kind in each cell.

    Thousands that lie on each other look like one, and take seconds.
    """
    if len(rows) <= MOST_DRAWN:
        return rows
    cells: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        cell = (_cell(row["x"], x, _CELLS[0]), _cell(row["y"], y, _CELLS[1]), row["series"], row.get("state"))
        cells.setdefault(cell, row)
    return list(cells.values())


def _cell(value: float, span: Span, count: int) -> int:
    if span.type == "log":
        return math.floor(math.log(value / span.low) / math.log(span.high / span.low) * count)
    return math.floor((value - span.low) / (span.high - span.low) * count)


def _in_order(figures: Mapping[str, Any], trials: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], int]]:
    """Return the points of the front that can be drawn, by latency, with the place of their trials in the columns."""
    places = {number: place for place, number in enumerate(trials["number"])}
    drawn = [point for point in figures["front"] if _is_figure(point["latency_ms"]) and _is_figure(point["tok_per_j"])]
    found = [(point, places[point["trial"]]) for point in drawn if point["trial"] in places]
    return sorted(found, key=lambda one: one[0]["latency_ms"])


def _front_row(trials: Mapping[str, Any], found: tuple[Mapping[str, Any], int]) -> Row:
    """Return a point of the front: the mean over its windows. An end that is not known is where the dot is."""
    point, place = found
    x, y = point["latency_ms"], point["tok_per_j"]
    return {
        **_row(trials, place, x, y),
        "x_low": _or(point["latency_low_ms"], x),
        "x_high": _or(point["latency_high_ms"], x),
        "y_low": _or(point["tok_per_j_low"], y),
        "y_high": _or(point["tok_per_j_high"], y),
        "is_leading": bool(point["is_leading"]),
        "is_tied": bool(point["tied_with"]),
    }


def _default_rows(figures: Mapping[str, Any], trials: Mapping[str, Any], front: Sequence[Row]) -> list[Row]:
    """Return the mark of the default configuration: at its point of the front, else at its own window."""
    number = figures["default"]
    if number is None or number not in trials["number"]:
        return []
    place = trials["number"].index(number)
    same = _knobs_of(trials, place)
    for row in front:
        if _knobs_of(trials, row["place"]) == same:
            return [{**_row(trials, place, row["x"], row["y"]), "label": "default"}]
    x, y = trials["latencies_ms"][figures["latency_metric"]][place], trials["tok_per_j"][place]
    return [{**_row(trials, place, x, y), "label": "default"}] if _is_figure(x) and _is_figure(y) else []


def _others(figures: Mapping[str, Any], trials: Mapping[str, Any]) -> tuple[list[Row], list[Row], int]:
    """Return what is beaten, what does not count, and how many have no figures; windows of a front point are in it."""
    places = {number: place for place, number in enumerate(trials["number"])}
    on_front = {_knobs_of(trials, places[one["trial"]]) for one in figures["front"] if one["trial"] in places}
    latencies_ms = trials["latencies_ms"].get(figures["latency_metric"], [None] * len(trials["number"]))
    dominated: list[Row] = []
    greyed: list[Row] = []
    num_without = 0
    for place, state in enumerate(trials["state"]):
        x, y = latencies_ms[place], trials["tok_per_j"][place]
        if not (_is_figure(x) and _is_figure(y)):
            num_without += state not in ("running", "interrupted")
        elif state == "complete":
            if _knobs_of(trials, place) not in on_front:
                dominated.append(_row(trials, place, x, y))
        else:
            greyed.append({**_row(trials, place, x, y), "state": state})
    return dominated, greyed, num_without


def _row(trials: Mapping[str, Any], place: int, x: float, y: float) -> Row:
    """Return what every dot has; `place` is that of its trial in the columns."""
    knobs = trials["knobs"]
    batch = knobs["max_batch"][place] if "max_batch" in knobs else None
    series = knobs["precision"][place] if "precision" in knobs else None
    return {
        "place": place,
        "trial": trials["number"][place],
        "x": x,
        "y": y,
        "batch": batch,
        "series": ONE_PRECISION if series is None else str(series),
    }


def _knobs_of(trials: Mapping[str, Any], place: int) -> tuple[Any, ...]:
    return tuple(column[place] for column in trials["knobs"].values())


def _is_figure(value: Any) -> bool:
    """Tell whether a value can be drawn, on a logarithmic axis too."""
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _or(value: float | None, otherwise: float) -> float:
    """Return an interval's end; where it is not known or not above zero, where the dot is."""
    return value if value is not None and _is_figure(value) else otherwise
