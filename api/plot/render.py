"""A chart as PNG or SVG, by vl-convert: titled, and told in words where its figures come from.

Each takes a core for half a second, and V8 100 MB once: a server draws one at a time. Knows nothing of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from api.plot.theme import PICTURE_FONTS, THEMES, Scheme

Form = Literal["png", "svg"]
#: What a browser is told of each.
MEDIA_TYPES: dict[Form, str] = {"png": "image/png", "svg": "image/svg+xml"}
#: A character of a subtitle is about so wide.
_CHARACTER_PX = 6.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What stands above a chart."""

    title: str
    #: A line each; longer ones are cut where the picture ends.
    lines: Sequence[str]


def rendered(spec: dict[str, Any], heading: Heading, form: Form, scheme: Scheme) -> bytes:
    """Return a chart as a picture of exactly the width and height that its specification names."""
    # Not with the module: `import api.app` must not load V8, which a server that draws nothing need not have.
    import vl_convert

    whole = titled(spec, heading, scheme)
    if form == "png":
        return bytes(vl_convert.vegalite_to_png(whole, scale=1, allowed_base_urls=[]))
    return str(vl_convert.vegalite_to_svg(whole, allowed_base_urls=[])).encode()


def titled(spec: dict[str, Any], heading: Heading, scheme: Scheme) -> dict[str, Any]:
    """Return a chart with its heading, in fonts that every machine has."""
    longest = max(8, int((spec["width"] - 24) / _CHARACTER_PX))
    title = {
        "text": _cut(heading.title, int(longest * 0.72)),
        "subtitle": [_cut(line, longest) for line in heading.lines],
        "subtitleColor": THEMES[scheme].quiet,
    }
    return {**spec, "title": title, "config": {**spec["config"], "font": PICTURE_FONTS}}


def _cut(text: str, longest: int) -> str:
    """Return a text in one line; names of jobs may hold anything."""
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
