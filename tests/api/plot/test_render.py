"""Charts as pictures. One test draws; V8 takes a second to start."""

from __future__ import annotations

import struct

from api.plot.front_chart import build
from api.plot.render import MEDIA_TYPES, Heading, rendered, titled
from api.plot.rows import front_rows
from tests.api.plot.figures import make_figures

HEADING = Heading(title="<script>alert(1)</script>", lines=["SIMULATED, nothing was measured", "two"])


def test_pictures_have_the_size_asked_for_and_say_what_was_simulated() -> None:
    """A PNG is one, of the size asked for; an SVG says that it is simulated and holds HTML in names as text."""
    spec = build(front_rows(make_figures()), "light", width=640, height=400)
    png = rendered(spec, HEADING, "png", "light")
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == (640, 400)
    svg = rendered(spec, HEADING, "svg", "light").decode()
    assert 'width="640" height="400"' in svg
    assert "SIMULATED, nothing was measured" in svg
    assert "&lt;script&gt;" in svg
    assert "<script" not in svg
    assert set(MEDIA_TYPES) == {"png", "svg"}


def test_long_words_are_cut_and_lines_stay_lines() -> None:
    """A name of any length or with line breaks stays in one line that ends inside the picture."""
    spec = build(front_rows(make_figures()), "dark", width=480, height=400)
    title = titled(spec, Heading(title="a\nb" * 400, lines=["x" * 900]), "dark")["title"]
    assert "\n" not in title["text"]
    assert title["text"].endswith("…")
    assert len(title["subtitle"][0]) < 80
