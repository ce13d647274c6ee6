"""Where an axis begins and ends, whether it is logarithmic, and what it is called. Pure.

An axis is logarithmic when what it shows spans a factor of LOG_FROM or more: then a linear one would press most of it
into a tenth of its length (Wilke, Fundamentals of Data Visualization, 2019, chapter 3.2, takes logarithmic axes for
numbers of very different magnitudes). A linear one begins at zero when that costs no more than half of its length, so
that ratios can be read off where that is cheap; else at the data, as dots need no zero (Cleveland, The Elements of
Graphing Data, 1994, section 2.3). js/front_rows.mjs does the same for the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeGuard

#: One order of magnitude.
LOG_FROM = 10.0
#: Of the spread, left free at either end.
_MARGIN = 0.05
#: Words of metrics that are no abbreviations.
_ABBREVIATIONS = ("ttft", "tpot", "itl", "e2e")

ScaleType = Literal["linear", "log"]
#: `mixed`: of several jobs some were measured and others not.
Origin = Literal["measured", "estimate", "simulated", "mixed"]

#: What the title of an axis ends with.
_TAILS: dict[Origin, str] = {
    "measured": "",
    "estimate": ", estimate",
    "simulated": ", simulated",
    "mixed": ", not all measured",
}


@dataclass(frozen=True, slots=True)
class Span:
    """An axis: its kind and its ends."""

    type: ScaleType
    low: float
    high: float


def span_of(values: Iterable[float | None], *, limit: float | None = None, was_log: bool = False) -> Span:
    """Return the axis that shows some values; what is no number or not above zero does not count.

    A limit is shown as well, unless it is so far from the values that these would be pressed together.
    """
    shown = [value for value in values if _counts(value)]
    if _counts(limit) and (not shown or min(shown) / LOG_FROM <= limit <= max(shown) * LOG_FROM):
        shown.append(limit)
    if not shown:
        return Span("linear", 0.0, 1.0)
    low, high = min(shown), max(shown)
    if was_log or high / low >= LOG_FROM:
        factor = max(1.05, (high / low) ** _MARGIN)
        return Span("log", low / factor, high * factor)
    if low <= high / 2 or low == high:
        return Span("linear", 0.0, high * (1 + _MARGIN))
    margin = (high - low) * 2 * _MARGIN
    return Span("linear", low - margin, high + margin)


def _counts(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value > 0


def metric_words(metric: str) -> str:
    """Return a latency metric for people, as `TTFT p90` for `ttft_p90_ms`."""
    first, *rest = metric.removesuffix("_ms").split("_")
    return " ".join([first.upper() if first in _ABBREVIATIONS else first, *rest])


def latency_title(metric: str, origin: Origin) -> str:
    """Return the title of the latency axis."""
    return f"{metric_words(metric)} (ms){'' if origin == 'estimate' else _TAILS[origin]}: less is better"


def tok_per_j_title(origin: Origin) -> str:
    """Return the title of the axis of tokens per joule."""
    return f"tokens per joule (tok/J){_TAILS[origin]}"


def origin_of(*, is_simulated: bool, is_estimate: bool) -> Origin:
    """Return where figures come from, in the word that views show."""
    return "simulated" if is_simulated else "estimate" if is_estimate else "measured"


def origin_words(origin: Origin) -> str:
    """Return what must be said of figures that were not measured; empty for measured ones."""
    return {
        "measured": "",
        "estimate": "ESTIMATE: the energy was not measured",
        "simulated": "SIMULATED: nothing was measured",
        "mixed": "NOT ALL OF THIS WAS MEASURED: the table tells which",
    }[origin]
