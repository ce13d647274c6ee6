"""A chart's specification fitted to what is known before it has rows: metric, kinds of axes, origin, legends. Pure.

Altair takes most of a second to make a front chart, so that it makes one for each scheme, and this does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from api.plot.axes import Origin, ScaleType, latency_title, origin_words, tok_per_j_title

#: Of what dots of a front differ in, beside their places.
Legend = Literal["precision", "batch", "states"]
Legends = tuple[Legend, ...]

_CHANNELS: dict[Legend, str] = {"precision": "color", "batch": "size", "states": "shape"}
#: A dot's area in square pixels where batches are not told.
_PLAIN_SIZE = 70
#: Free above the data, for the words of the limit.
_ROOM_PX = 24
_ROOMY: dict[ScaleType, str] = {
    "linear": f"[y_domain[0], y_domain[1] + (y_domain[1] - y_domain[0]) * {_ROOM_PX} / (height - {_ROOM_PX})]",
    "log": f"[y_domain[0], y_domain[1] * pow(y_domain[1] / y_domain[0], {_ROOM_PX} / (height - {_ROOM_PX}))]",
}


def fitted(
    spec: Mapping[str, Any],
    metric: str,
    types: tuple[ScaleType, ScaleType],
    origin: Origin,
    legends: Legends = ("precision", "batch", "states"),
) -> dict[str, Any]:
    """Return a chart over latency and tokens per joule with its titles, kinds of axes and legends.

    `types` are those of the horizontal and of the vertical axis. Legends without entries must be left out: Vega gives
    an empty one a height that is no number, and draws nothing.
    """
    titles = (latency_title(metric, origin), tok_per_j_title(origin))
    layers = []
    for layer in spec["layer"]:
        encoding = dict(layer["encoding"])
        for name, kind, title in zip(("x", "y"), types, titles, strict=True):
            if "scale" in encoding.get(name, {}):
                encoding[name] = _axis(encoding[name], kind, title)
                if name == "y":
                    encoding[name]["scale"]["domain"] = {"expr": _ROOMY[kind]}
        for legend, channel in _CHANNELS.items():
            if legend not in legends and "legend" in encoding.get(channel, {}):
                encoding[channel] = (
                    {"value": _PLAIN_SIZE} if legend == "batch" else {**encoding[channel], "legend": None}
                )
        if layer.get("name") == "origin":
            encoding["text"] = {"value": origin_words(origin)}
        layers.append({**layer, "encoding": encoding})
    return {**spec, "layer": layers}


def _axis(channel: Mapping[str, Any], kind: ScaleType, title: str) -> dict[str, Any]:
    scale = {**channel["scale"], "type": kind}
    if kind == "log":  # which has no zero to be kept out
        del scale["zero"]
    return {**channel, "scale": scale, "axis": {**channel["axis"], "title": title}}
