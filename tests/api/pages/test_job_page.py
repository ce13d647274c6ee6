"""A job's page in a browser: a limit is moved, a command copied, trials are looked through, a run is followed live."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import Page, Route, expect
from starlette.testclient import TestClient

from api.app import create_app
from api.stores import Stores
from db.service import Scope
from probes.device import Method
from probes.device import Scope as EnergyScope
from tests.api.pages.browser import Pages, faults_in_every_view
from tests.api.pages.scenes import add_trial, finish, finished_job, make_trials, running_job
from tests.db.factories import make_measurement, make_point, make_reading, make_request, make_trial
from tuner.request import Limit
from tuner.trial import Trial, TrialState

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LIMITS = (Limit(metric="tpot_p99_ms", bound_ms=30.0),)
#: Finds the dashed line of the limit by its colour, the only red in the chart; returns where its handle is.
FIND_LIMIT = """() => {
  const canvas = document.querySelector("#front-chart canvas");
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  let top = null;
  for (let y = 0; y < height && !top; y += 1)
    for (let x = 0; x < width && !top; x += 1) {
      const [r, g, b, a] = data.slice(4 * (y * width + x), 4 * (y * width + x) + 4);
      if (a > 200 && r > 160 && g < 60 && b < 60) top = [x, y];
    }
  const box = canvas.getBoundingClientRect();
  const scale = box.width / width;
  return [box.left + top[0] * scale, box.top + (top[1] + 4) * scale];
}"""


def drawn(page: Page) -> Page:
    """Wait until chart and table are there."""
    page.wait_for_selector("#job[data-drawn][data-listed]")
    return page


def many_trials(count: int) -> list[Trial]:
    """Return trials of which every third misses a limit and the last failed."""
    figures = [(8 + i, 2.0 + i / 10, 10.0 + i / 5) for i in range(count)]
    trials = [
        replace(trial, state=TrialState.INFEASIBLE, reason="sla:tpot_p99_ms", detail=f"too slow in trial {i}")
        if i % 3 == 1
        else trial
        for i, trial in enumerate(make_trials(figures))
    ]
    failed = replace(trials[-1], state=TrialState.FAILED, reason="oom", detail="out of memory", measurement=None)
    return [*trials[:-1], failed]


def test_every_view_is_clean(open_page: Pages, stores: Stores) -> None:
    """At every width, light and dark, axe finds nothing on a finished job's page and nothing scrolls sideways."""
    page = drawn(open_page(f"/jobs/{finished_job(stores, sla=LIMITS)}"))
    expect(page.locator("#explanation li").first).to_be_visible()
    assert faults_in_every_view(page) == []


def test_a_trials_drawer_is_clean(open_page: Pages, stores: Stores) -> None:
    """An opened trial has its figures, its trace is drawn, and axe finds nothing at any width."""
    page = drawn(open_page(f"/jobs/{finished_job(stores, sla=LIMITS)}"))
    page.get_by_role("button", name="Open trial 1").click()
    drawer = page.get_by_role("dialog")
    expect(drawer).to_contain_text("3 tok/J 2.91 to 3.09")
    expect(drawer).to_contain_text("total energy counter")
    expect(drawer.locator("canvas")).to_be_visible()
    assert faults_in_every_view(page) == []
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(page.get_by_role("button", name="Open trial 1")).to_be_focused()


def test_the_limit_is_dragged_and_the_command_copied(open_page: Pages, stores: Stores) -> None:
    """Dragged past the best point, the limit makes another one the point to run, whose command can be copied."""
    job_id = finished_job(stores, sla=LIMITS)
    page = drawn(open_page(f"/jobs/{job_id}", permissions=["clipboard-read", "clipboard-write"]))
    use = page.locator("#use")
    expect(use).to_contain_text("1.80×")
    x, y = page.evaluate(FIND_LIMIT)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y, steps=4)
    page.mouse.move(x - 300, y, steps=4)
    page.mouse.up()
    limit = page.get_by_label("TPOT p99 at most, ms")
    expect(use).to_contain_text("1.50×")
    assert 14.0 <= float(limit.input_value()) < 21.0
    expect(use).to_contain_text("Trial1")
    command = page.locator("#command-panel code")
    expect(command).to_contain_text("trial 1")
    page.get_by_role("tab", name="SGLang").click()
    expect(command).to_contain_text("sglang")
    page.locator("#command-panel").get_by_role("button", name="Copy").click()
    page.locator("#command-panel").get_by_role("button", name="Copied").click()  # again, before it said Copy
    expect(page.locator("#command-panel").get_by_role("button", name="Copy", exact=True)).to_be_visible()
    exported = TestClient(create_app(stores), base_url="http://localhost").get(
        f"/v1/jobs/{job_id}/export", params={"form": "sglang", "number": 1}
    )
    assert page.evaluate("navigator.clipboard.readText()") == exported.text


def test_the_limit_is_typed(open_page: Pages, stores: Stores) -> None:
    """A limit that no point meets names the fastest; none at all gives the most frugal; nonsense changes nothing."""
    page = drawn(open_page(f"/jobs/{finished_job(stores, sla=LIMITS)}"))
    limit, use = page.get_by_label("TPOT p99 at most, ms"), page.locator("#use")
    limit.fill("3")
    expect(use).to_contain_text("No point of the front is inside 3 ms")
    expect(use).to_contain_text("trial 0 with 10 ms")
    expect(page.locator("#commands")).to_be_hidden()
    limit.fill("-4")
    expect(limit).to_have_attribute("aria-invalid", "true")
    expect(use).to_contain_text("inside 3 ms")
    limit.fill("")
    expect(use).to_contain_text("Trial2")
    expect(use).to_contain_text("own limit is 30 ms")


def test_trials_are_sorted_filtered_and_walked(open_page: Pages, stores: Stores) -> None:
    """Only rows in view are in the page; sorting, both filters and the keys reach every trial."""
    page = drawn(open_page(f"/jobs/{finished_job(stores, sla=LIMITS, trials=many_trials(60))}"))
    table, count = page.get_by_role("table", name="Trials"), page.locator("#trials-count")
    rows = table.locator("tbody tr:visible")
    expect(table).to_have_attribute("aria-rowcount", "61")
    assert rows.count() < 45
    page.get_by_role("button", name="tok/J", exact=True).click()
    expect(table.locator("tr[data-index='0']")).to_contain_text("7.8")
    expect(table.locator("th[aria-sort='descending']")).to_contain_text("tok/J")
    page.get_by_label("State", exact=True).select_option("infeasible")
    expect(count).to_have_text("20 of 60 trials")
    page.get_by_label("Trials that contain").fill("max_batch=9 SLOW")
    expect(count).to_have_text("1 of 60 trials")
    expect(rows.first).to_contain_text("too slow in trial 1")
    page.get_by_label("Trials that contain").fill("nowhere")
    page.get_by_role("button", name="Clear the filter").click()
    expect(count).to_have_text("60 trials")
    page.get_by_role("button", name="#", exact=True).click()
    table.locator("tr[data-index='0'] button").focus()
    page.keyboard.press("End")
    expect(page.get_by_role("button", name="Open trial 59")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("out of memory")


def test_markup_is_text_everywhere(open_page: Pages, stores: Stores) -> None:
    """A model's name, a knob's value and an error that hold markup are shown as they are, by server and scripts."""
    point = make_point(precision=MARKUP)
    failed = make_trial(
        number=1, point=point, state=TrialState.FAILED, reason="engine_error", detail=MARKUP, measurement=None
    )
    good = make_trial(number=0, point=point, measurement=make_measurement())
    request = make_request(model=MARKUP, name=MARKUP, sla=())
    claim = running_job(stores, request, trials=[good, failed])
    stores.jobs.finish(claim, stores.jobs.get(claim.job_id).state.FAILED, "engine_error", MARKUP)
    page = drawn(open_page(f"/jobs/{claim.job_id}"))
    expect(page.get_by_role("heading", level=1)).to_have_text(MARKUP)
    expect(page.locator("#use")).to_contain_text(MARKUP)
    expect(page.locator("#trials")).to_contain_text(MARKUP)
    page.get_by_role("button", name="Open trial 1").click()
    expect(page.get_by_role("dialog")).to_contain_text(MARKUP)
    assert page.locator("main img:not(#front-picture), main script").count() == 0
    open_page.forgive("422 for")  # such a precision is in no engine's words


def test_a_run_is_followed_live(open_page: Pages, stores: Stores) -> None:
    """Trials come into tiles, table and recommendation as they end, without loading the page again, until the end."""
    first, *others = make_trials()
    claim = running_job(stores, make_request(sla=LIMITS), trials=[first])
    page = drawn(open_page(f"/jobs/{claim.job_id}"))
    page.evaluate("window.isSamePage = true")
    page.get_by_label("Trials that contain").fill("max_batch")
    expect(page.locator("#part-progress")).to_contain_text("1 of 4 trials")
    for number, trial in enumerate(others, start=2):
        add_trial(stores, claim, trial)
        expect(page.locator("#part-progress")).to_contain_text(f"{number} of 4 trials")
        expect(page.locator("#trials-count")).to_have_text(f"{number} trials")
    expect(page.locator("#use")).to_contain_text("1.80×")
    expect(page.locator("#part-points tbody tr")).to_have_count(3)
    stores.trials.start(claim, 9, make_point(64))
    expect(page.locator("#now")).to_contain_text("Trial 9 runs: max_batch 64")
    finish(stores, claim, [first, *others])
    expect(page.locator("#part-head .state")).to_have_text("finished")
    expect(page.locator("#part-progress")).to_have_count(0)
    assert page.evaluate("window.isSamePage")
    assert page.get_by_label("Trials that contain").input_value() == "max_batch"


def test_a_lost_connection_is_told_and_mended(open_page: Pages, stores: Stores) -> None:
    """While the stream of events cannot be had the page says so; afterwards it takes up what it missed."""
    first, second, _ = make_trials()
    claim = running_job(stores, make_request(sla=LIMITS), trials=[first])
    page = open_page("/login")
    page.route("**/events?*", lambda route: route.abort())
    page.goto(f"/jobs/{claim.job_id}")
    lost = page.locator("#connection")
    expect(lost).to_contain_text("connection is lost")
    add_trial(stores, claim, second)
    page.unroute("**/events?*")
    expect(lost).to_be_hidden()
    expect(page.locator("#trials-count")).to_have_text("2 trials")


def test_who_must_log_in_is_sent_there(open_page: Pages, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page whose key is no longer taken loses none of its parts for the form's, but leads to the form and back."""
    monkeypatch.setattr("api.access.BELIEVED_S", 0.0)
    first, second, _ = make_trials()
    claim = running_job(stores, make_request(sla=LIMITS), trials=[first])
    page = drawn(open_page(f"/jobs/{claim.job_id}"))
    stores.keys.create("reader", Scope.READ)
    add_trial(stores, claim, second)
    page.wait_for_url(f"**/login?next=%2Fjobs%2F{claim.job_id}")
    open_page.forgive("401 for")


def test_a_page_that_nobody_looks_at_keeps_no_connection(open_page: Pages, stores: Stores) -> None:
    """A hidden tab gives its stream of events back, of which browsers have six for all tabs, and catches up later."""
    first, second, _ = make_trials()
    claim = running_job(stores, make_request(sla=LIMITS), trials=[first])
    page = open_page("/login")
    page.add_init_script(
        "window.closed = 0; EventSource.prototype.close = new Proxy(EventSource.prototype.close, "
        "{ apply: (close, stream) => { window.isClosed = true; return Reflect.apply(close, stream, []); } });"
    )
    page.goto(f"/jobs/{claim.job_id}")
    drawn(page)
    hide = """(isHidden) => {
      Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    assert page.evaluate("window.isClosed")
    add_trial(stores, claim, second)
    page.evaluate(hide, False)
    expect(page.locator("#trials-count")).to_have_text("2 trials")


def test_an_estimate_is_labelled_once_it_is_one(open_page: Pages, stores: Stores) -> None:
    """A page that was opened before the first trial labels each part when that trial turns out to be an estimate."""
    claim = running_job(stores, make_request(sla=LIMITS))
    page = open_page(f"/jobs/{claim.job_id}")
    expect(page.locator("#front-chart")).to_contain_text("The first trial that ends is drawn here")
    assert page.locator(".tag.estimate").count() == 0
    reading = make_reading(scope=EnergyScope.CPU_SHARE, method=Method.ESTIMATE)
    add_trial(stores, claim, make_trial(number=0, measurement=make_measurement(reading=reading)))
    expect(page.locator("#part-head .tag.estimate")).to_be_visible()
    for title in ("Front", "What to run", "Points of the front", "Hypervolume over device time", "Trials"):
        expect(page.get_by_role("heading", name=f"{title} estimate", exact=True)).to_be_visible()
    expect(page.locator("#part-energy")).to_contain_text("nothing was measured")


def test_the_report_has_the_chart_on_white(open_page: Pages, stores: Stores) -> None:
    """Printing asks for the front's picture at the limit of the page first; until then no picture is asked for."""
    page = open_page("/login", scheme="dark")
    page.add_init_script("window.print = () => document.body.classList.add('printed')")
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(
            body="<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", content_type="image/svg+xml"
        )

    page.route("**/front.svg?*", answer)
    page.goto(f"/jobs/{finished_job(stores, sla=LIMITS)}")
    drawn(page).get_by_label("TPOT p99 at most, ms").fill("15")
    assert asked == []
    page.get_by_role("button", name="Print").click()
    page.wait_for_selector("body.printed")
    assert asked[-1].endswith("limit_ms=15")
    page.emulate_media(media="print")
    expect(page.locator("#front-picture")).to_be_visible()
    expect(page.locator("#front-chart")).to_be_hidden()


def test_figures_that_cannot_be_loaded_can_be_asked_for_again(open_page: Pages, stores: Stores) -> None:
    """An answer with an error stands in the chart's place in the server's words, with a button that helps."""
    page = open_page("/login")
    problem = {"title": "database", "status": 503, "detail": "the disk is full; free some space"}
    page.route("**/figures", lambda route: route.fulfill(status=503, json=problem))
    page.goto(f"/jobs/{finished_job(stores, sla=LIMITS)}")
    expect(page.locator("#front-chart")).to_contain_text("the disk is full; free some space")
    page.unroute("**/figures")
    page.locator("#front-chart").get_by_role("button", name="Try again").click()
    drawn(page)
    open_page.forgive("503 for")


def test_a_job_is_cancelled(open_page: Pages, stores: Stores) -> None:
    """The button asks first; then the job is cancelled, and the page has the command that resumes it."""
    job = stores.jobs.create(make_request())
    page = open_page(f"/jobs/{job.id}")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel job").click()
    expect(page.locator("#part-head .state")).to_have_text("cancelled")
    expect(page.locator("#part-notices")).to_contain_text(f"wattfront tune --resume {job.id[:8]}")


def test_without_scripts_the_front_is_a_table(open_page: Pages, stores: Stores) -> None:
    """With scripts off the points of the front, the point to run and links to the rest are there."""
    page = open_page(f"/jobs/{finished_job(stores, sla=LIMITS)}", has_scripts=False)
    expect(page.locator("#part-points tbody tr")).to_have_count(3)
    expect(page.get_by_role("link", name="vLLM").first).to_be_visible()
    expect(page.locator("#trials")).to_contain_text("The trials as data")
