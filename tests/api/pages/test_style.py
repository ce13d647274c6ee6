"""The colours of the style sheet: readable in both schemes on every ground that they stand on."""

from __future__ import annotations

import re
from importlib import resources

import pytest

SHEET = resources.files("api").joinpath("static", "style.css").read_text(encoding="utf-8")
#: Name to its colours in light and dark.
COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", SHEET)
}
#: Of text (WCAG 2.2, 1.4.3) and of what is no text but must be seen (1.4.11).
TEXT, SHAPE = 4.5, 3.0
GROUNDS = ("ground", "surface", "sunken")
WORDS = ("text", "quiet", "accent", "good", "warn", "bad", "idle")


def luminance(colour: str) -> float:
    """Return relative luminance as WCAG 2.2 defines it."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2.2 defines it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


PAIRS = [
    *((word, ground, TEXT) for word in WORDS for ground in GROUNDS),
    *((word, f"{word}-ground", TEXT) for word in ("accent", "good", "warn", "bad", "idle")),
    *(("text", f"{tint}-ground", TEXT) for tint in ("accent", "good", "warn", "bad")),
    ("quiet", "warn-ground", TEXT),
    ("on-accent", "accent", TEXT),
    ("on-accent", "accent-strong", TEXT),
    *((f"series-{number}", ground, TEXT) for number in range(1, 9) for ground in ("ground", "surface")),
    *(("rule-strong", ground, SHAPE) for ground in ("ground", "surface")),
]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_colour_can_be_read_on_its_grounds(scheme: int) -> None:
    """Text, states and series have a contrast of at least 4.5 to their grounds, borders of fields at least 3."""
    too_faint = [
        (name, ground, round(ratio, 2))
        for name, ground, least in PAIRS
        if (ratio := contrast(COLOURS[name][scheme], COLOURS[ground][scheme])) < least
    ]
    assert too_faint == []


def test_the_series_are_different_colours() -> None:
    """No two series share a colour, in neither scheme."""
    for scheme in (0, 1):
        assert len({COLOURS[f"series-{number}"][scheme] for number in range(1, 9)}) == 8


def test_every_custom_property_that_is_used_is_defined() -> None:
    """A misspelt token would silently fall back to nothing."""
    defined = set(re.findall(r"(--[a-z0-9-]+):", SHEET))
    assert set(re.findall(r"var\((--[a-z0-9-]+)", SHEET)) <= defined
