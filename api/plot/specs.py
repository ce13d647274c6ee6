"""The charts' specifications by name, as JSON for the page: Altair makes each once, then it is remembered.

What a chart needs to know before it has rows stands in `Asked`; rows and limits the page sets itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from api.plot.axes import Origin, ScaleType
from api.plot.fitting import Legends, fitted
from api.plot.theme import Scheme

Name = Literal["front", "hypervolume", "trace", "comparison"]
Unit = Literal["s", "min", "h"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What decides about a specification; each chart takes of it what concerns it."""

    scheme: Scheme = "light"
    origin: Origin = "measured"
    #: Latency metric of the axis.
    metric: str = "tpot_p99_ms"
    x: ScaleType = "linear"
    y: ScaleType = "linear"
    #: Of device time.
    unit: Unit = "min"
    has_clock: bool = True
    #: Of the front chart: those that have entries.
    legends: Legends = ()


@lru_cache(maxsize=256)
def spec_json(name: Name, asked: Asked) -> bytes:
    """Return a chart without rows."""
    return json.dumps(_spec(name, asked), separators=(",", ":")).encode()


def _spec(name: Name, asked: Asked) -> dict[str, Any]:
    # Altair takes a second and 70 MB to import: `import api.app` must not, as most commands draw nothing.
    from api.plot import comparison_chart, front_chart, hypervolume_chart, trace_chart

    types = (asked.x, asked.y)
    if name == "front":
        return fitted(front_chart.template(asked.scheme), asked.metric, types, asked.origin, asked.legends)
    if name == "comparison":
        return fitted(comparison_chart.template(asked.scheme), asked.metric, types, asked.origin)
    if name == "hypervolume":
        return hypervolume_chart.template(asked.unit, asked.origin, asked.scheme)
    return trace_chart.template(asked.has_clock, asked.origin, asked.scheme)
