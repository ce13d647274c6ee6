"""The charts' modules in a browser: drawn under our content policy, moved by hand, grown while a job runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from playwright.sync_api import Page

from api.plot.axes import Span
from api.plot.rows import drawn as drawn_of
from api.plot.rows import front_rows
from api.stores import Stores
from tests.api.commands import wait_until
from tests.api.pages.browser import Pages
from tests.api.plot.figures import make_figures, many_rows
from tests.api.test_fronts import store_job, trial_of

_DRAW = """async (figures) => {
    const { drawFront } = await import("/static/js/charts.mjs");
    const place = document.getElementById("chart");
    window.told = [];
    window.front = drawFront(place, figures, {
        onLimit: (metric, ms) => window.told.push([metric, ms]), onSelect: (trial) => window.told.push(trial) });
    await window.front.ready;
    window.view = window.front.chart.view;
}"""
_PLACE = """([x, y]) => [view.padding().left + view.origin()[0] + view.scale("x")(x),
    view.padding().top + view.origin()[1] + view.scale("y")(y)]"""


#: The hypervolume and a trial's power and clock, one after the other in the same place.
_OTHERS = """async (figures) => {
    const { drawHypervolume, drawTrace } = await import("/static/js/charts.mjs");
    const place = document.getElementById("chart");
    const growth = drawHypervolume(place, figures);
    await growth.ready;
    const grown = growth.chart.view.data("growth").length;
    growth.remove();
    const trace = drawTrace(place, { time_s: [0, 1, 2], power_w: [300, 310, null], clock_mhz: [1500, 1600, 1700],
        is_simulated: true, is_estimate: true });
    await trace.ready;
    return [grown, trace.chart.view.data("samples").length];
}"""


@pytest.fixture
def drawn(open_page: Pages, stores: Stores) -> Page:
    """A page that shows a front of `make_figures`, in the place of a comparison's."""
    page = open_page(f"/compare?job={store_job(stores, [trial_of(0)])}")
    page.wait_for_selector("#chart canvas")
    page.evaluate(_DRAW, make_figures())
    return page


def place_of(page: Page, x: float, y: float) -> tuple[float, float]:
    """Return where a point of the chart is in the window."""
    box = page.locator("#chart canvas").bounding_box()
    assert box is not None
    inside = page.evaluate(_PLACE, [x, y])
    return box["x"] + inside[0], box["y"] + inside[1]


def test_page_and_pictures_draw_the_same(open_page: Pages) -> None:
    """The page's rows, axes and legends are those that a picture has, also without limit, front or default."""
    page = open_page("/compare")
    script = 'async (figures) => (await import("/static/js/front_rows.mjs")).frontRows(figures)'
    without_front: dict[str, Any] = {"front": [], "is_simulated": False}
    variants: list[dict[str, Any]] = [{}, {"sla": {}}, {"default": 3}, without_front, {"sla": {"tpot_p99_ms": 9e4}}]
    for changes in variants:
        figures = make_figures(**changes)
        assert dataclasses.asdict(front_rows(figures)) == page.evaluate(script, figures)


def test_page_and_pictures_draw_the_same_of_many_dots(open_page: Pages) -> None:
    """Of thousands of dots both draw those that are seen, the same ones."""
    rows, x, y = many_rows(4_000), Span("linear", 0.0, 40.0), Span("linear", 0.0, 16.0)
    script = 'async (given) => (await import("/static/js/front_rows.mjs")).drawn(...given)'
    expected = drawn_of(rows, x, y)
    assert expected == open_page("/compare").evaluate(script, [rows, dataclasses.asdict(x), dataclasses.asdict(y)])


def test_the_limit_is_dragged_and_the_view_stays(drawn: Page) -> None:
    """Dragging the limit's line moves the signal and tells the page; the axes stay, and no console complains."""
    ends = drawn.evaluate('view.scale("x").domain()')
    x, y = place_of(drawn, 50.0, 1.0)
    left, _ = place_of(drawn, 25.0, 1.0)
    drawn.mouse.move(x, y)
    drawn.mouse.down()
    drawn.mouse.move(left, y, steps=4)
    drawn.mouse.up()
    drawn.evaluate("window.front.chart.work")
    assert drawn.evaluate('view.signal("limit_ms")') == pytest.approx(25.0, abs=0.2)
    assert drawn.evaluate("window.told.at(-1)") == ["tpot_p99_ms", pytest.approx(25.0, abs=0.2)]
    assert drawn.evaluate('view.scale("x").domain()') == ends


def test_a_dot_tells_its_knobs_and_can_be_chosen(drawn: Page) -> None:
    """Pointing at a dot shows its knobs and figures with units and intervals; pressing it names its trial."""
    drawn.mouse.move(*place_of(drawn, 20.0, 3.0))
    tip = drawn.locator(".chart-tip")
    tip.wait_for(state="visible")
    words = tip.inner_text()
    for part in ("Trial 1: on the front", "3 tok/J (2.5 to 3.5)", "20 ms (19 to ?)", "max_batch", "fp8", "Simulated"):
        assert part in words
    drawn.mouse.click(*place_of(drawn, 20.0, 3.0))
    assert drawn.evaluate("window.told") == [1]


def test_new_trials_keep_zoom_and_limit(drawn: Page) -> None:
    """A chart that was zoomed and whose limit was moved keeps both when figures come; a reset shows all again."""
    drawn.evaluate('window.front.setLimit("tpot_p99_ms", 33)')
    drawn.mouse.click(*place_of(drawn, 10.0, 5.5))
    drawn.mouse.wheel(0, -200)
    drawn.locator(".chart-reset").wait_for(state="visible")
    ends = drawn.evaluate('view.scale("x").domain()')
    figures = make_figures()
    figures["trials"]["state"][7] = "complete"
    figures["trials"]["tok_per_j"][7] = 1.0
    figures["trials"]["latencies_ms"]["tpot_p99_ms"][7] = 45.0
    drawn.evaluate("(figures) => window.front.update(figures)", figures)
    assert drawn.evaluate('[view.data("dominated").length, view.signal("limit_ms")]') == [2, 33]
    assert drawn.evaluate('view.scale("x").domain()') == ends
    drawn.locator(".chart-reset").click()
    wait_until(lambda: drawn.evaluate('front.chart.view.scale("x").domain()[0] === 0'), what="the whole view")


def test_charts_follow_scheme_and_width(drawn: Page) -> None:
    """When the system turns dark so does the chart, and it is as wide as its place; the other charts are drawn too."""
    drawn.emulate_media(color_scheme="dark")
    wait_until(lambda: drawn.evaluate('front.chart.view.background() === "#161b22"'), what="the dark chart")
    drawn.set_viewport_size({"width": 500, "height": 800})
    script = "Math.abs(document.querySelector('#chart canvas').clientWidth - chart.clientWidth) < 2"
    wait_until(lambda: drawn.evaluate(script), what="the narrow chart")
    assert drawn.evaluate(_OTHERS, make_figures()) == [9, 3]
