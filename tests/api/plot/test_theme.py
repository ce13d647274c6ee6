"""The colours of charts: those of the page, and readable."""

from __future__ import annotations

import re

import pytest

from api.plot.theme import FONTS, LETTERS, SCHEMES, THEMES, Scheme, colour_of, config, ordered
from engine.settings import PRECISIONS
from tests.db.factories import REPOSITORY

SHEET = (REPOSITORY / "api" / "static" / "style.css").read_text(encoding="utf-8")


def page_colour(name: str, scheme: Scheme) -> str:
    """Return a custom property of the page in one scheme."""
    found = re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", SHEET)
    assert found is not None, name
    return found[SCHEMES.index(scheme) + 1]


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_charts_have_the_colours_of_the_page(scheme: Scheme) -> None:
    """Every colour of a chart is a custom property of style.css, and the fonts are the page's."""
    theme = THEMES[scheme]
    shown = {
        "surface": theme.ground,
        **{name: getattr(theme, name) for name in ("text", "quiet", "rule", "bad", "warn")},
    }
    assert {name: page_colour(name, scheme) for name in shown} == shown
    assert tuple(page_colour(f"series-{i + 1}", scheme) for i in range(len(theme.series))) == theme.series
    assert f"--sans: {FONTS};" in SHEET


@pytest.mark.parametrize("scheme", SCHEMES)
def test_words_and_series_can_be_read(scheme: Scheme) -> None:
    """Text, quiet text, warnings and every series have the contrast that WCAG AA asks of text."""
    theme = THEMES[scheme]
    for colour in (theme.text, theme.quiet, theme.bad, theme.warn, *theme.series):
        assert contrast(colour, theme.ground) >= 4.5, colour
    assert config(scheme)["background"] == theme.ground


def test_a_precision_has_one_colour_everywhere() -> None:
    """Each precision has a colour of its own, whichever others stand beside it, and legends go from wide to narrow."""
    assert len({colour_of(precision, "light") for precision in PRECISIONS}) == len(PRECISIONS)
    assert ordered(["nvfp4", "odd", "bf16", "fp8", "bf16"]) == ["bf16", "fp8", "nvfp4", "odd"]
    assert len(LETTERS) <= len(THEMES["light"].series)
