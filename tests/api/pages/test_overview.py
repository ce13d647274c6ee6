"""The overview: what it shows of a store, and how it looks and behaves in a browser."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.stores import Stores
from db.job import JobState
from probes.device import Method
from tests.api.pages.browser import Pages, faults_in_every_view
from tests.api.pages.scenes import add_trial, finish, finished_job, make_trials, night_with_drift, running_job
from tests.db.factories import make_measurement, make_reading, make_request, make_trial

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def test_a_first_run_is_told_what_to_do(client: TestClient) -> None:
    """Without anything stored the page has the command that starts a job without hardware, and the form's link."""
    page = client.get("/").text
    assert "wattfront tune --device simulated:" in page
    assert 'href="/jobs/new">Set up a job' in page
    assert "Running now" not in page


def test_a_running_job_shows_how_far_it_is(client: TestClient, stores: Stores) -> None:
    """Trials that ended of those that may be made, the best until now and its gain over the default are shown."""
    running_job(stores, make_request(name="nightly"), trials=make_trials()[:2])
    page = client.get("/").text
    assert '2 of 4<progress value="2" max="4"' in page
    assert '3&nbsp;<span class="unit">tok/J</span>' in page
    assert '<span class="gain better">1.50×</span>' in page


def test_a_device_in_use_shows_the_power_of_the_last_window(client: TestClient, stores: Stores) -> None:
    """Where a job runs, the power is that of its last whole window, and is called so."""
    running_job(stores, trials=make_trials()[:2])
    page = client.get("/").text
    assert '316&nbsp;<span class="unit">W</span> in its last window' in page
    assert "in use" in page


def test_what_was_found_has_figures_and_a_picture(client: TestClient, stores: Stores) -> None:
    """A finished job shows its best point with gain, interval, latency and power, and its front."""
    job_id = finished_job(stores, name="found")
    page = client.get("/").text.partition("Found lately")[2]
    assert f'<a href="/jobs/{job_id}">found</a>' in page
    assert '3.6&nbsp;<span class="unit">tok/J</span>' in page
    assert "1.80×" in page
    assert '21&nbsp;<span class="unit">ms</span><span class="sub">tpot p99</span>' in page
    assert '332&nbsp;<span class="unit">W</span>' in page
    assert page.count("<circle") == 3


def test_estimates_are_marked(client: TestClient, stores: Stores) -> None:
    """A job that was measured has no mark; one whose energy comes from a formula has one."""
    finished_job(stores)
    assert "tag estimate" not in client.get("/").text
    running_job(stores, trials=[make_trial(measurement=make_measurement(reading=make_reading(method=Method.ESTIMATE)))])
    assert '<span class="tag estimate">estimate</span>' in client.get("/").text


def test_drift_of_the_last_night_is_an_alert(client: TestClient, stores: Stores) -> None:
    """A schedule whose last night moved is shown with its first sentence and a link that compares the two nights."""
    before = finished_job(stores)
    night = night_with_drift(stores, before=before)
    page = client.get("/").text
    assert "tokens per joule fell by 6 %" in page.partition("Last nights")[0]
    assert f'href="/compare?job={before}&amp;job={night.job_id}"' in page


def test_a_night_that_held_is_no_alert(client: TestClient, stores: Stores) -> None:
    """A night whose points held is among the last nights only."""
    night_with_drift(stores, has_moved=False, before=finished_job(stores))
    page = client.get("/").text
    assert ">Drift<" not in page
    assert "3 of 3 points held." in page.partition("Last nights")[2]


def test_jobs_that_nobody_takes_are_told(client: TestClient, stores: Stores) -> None:
    """A job that waits without a worker is said to, with the command; a worker that is there silences it."""
    stores.jobs.create(make_request())
    assert "no worker is there" in client.get("/").text
    stores.workers.register("host:1:1", host="host", version="0", devices=["*"], engines=["embedded"])
    assert "no worker is there" not in client.get("/").text


def test_no_page_loads_anything_from_elsewhere(client: TestClient, stores: Stores) -> None:
    """Pages have no inline script or style, and no address of another site."""
    finished_job(stores)
    pages = "".join(client.get(path).text for path in ("/", "/jobs", "/devices", "/login"))
    for foreign in ("<script>", "style=", "<style", "http://", "https://", "//cdn", "onclick", "javascript:"):
        assert foreign not in pages


def test_text_is_shown_as_text(open_page: Pages, stores: Stores) -> None:
    """A job's, a device's and a schedule's name that look like markup are read, not run."""
    night_with_drift(stores, name=SCRIPT[:100], before=finished_job(stores, name=SCRIPT, model="<b>bold</b>"))
    running_job(stores, make_request(name=f"{SCRIPT}2"))
    page = open_page("/")
    assert page.get_by_role("link", name=SCRIPT, exact=True).count() >= 2
    assert "<b>bold</b>" in page.inner_text("main")
    assert page.locator("main script, main b").count() == 0


def test_it_works_at_every_width_in_both_schemes(open_page: Pages, stores: Stores) -> None:
    """With jobs, nights, drift and devices to show, axe finds nothing, and the page never scrolls sideways.

    On paper there is no navigation and no button, and tables are whole.
    """
    night_with_drift(stores, before=finished_job(stores, name="a job with a name that is rather long for a phone"))
    running_job(stores, trials=make_trials()[:2])
    stores.jobs.create(make_request())
    page = open_page("/")
    assert faults_in_every_view(page) == []
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert not page.get_by_role("link", name="New job").first.is_visible()
    assert page.locator("#found table").is_visible()


def test_the_first_run_works_at_every_width_in_both_schemes(open_page: Pages) -> None:
    """The page of an empty store is as accessible, and its command can be copied."""
    page = open_page("/", permissions=["clipboard-read", "clipboard-write"])
    assert faults_in_every_view(page) == []
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("wattfront tune --device simulated:")


def test_every_page_is_reached_by_keyboard(open_page: Pages) -> None:
    """Tab goes to the skip link, then through the pages in order, each with a visible focus; Enter follows."""
    page = open_page("/", 360)
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert reached == ["Skip to content", "Wattfront", "Overview", "Jobs", "Compare", "Schedules", "Devices", "New job"]
    for _ in range(4):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs")
    assert page.locator("nav [aria-current=page]").inner_text() == "Jobs"


def test_it_works_without_scripts(open_page: Pages, stores: Stores) -> None:
    """Without scripts links lead on, figures are there, and no button promises what only a script can do."""
    finished_job(stores, name="found")
    page = open_page("/", has_scripts=False)
    assert page.locator("button").count() == 0
    page.get_by_role("link", name="Devices", exact=True).first.click()
    assert page.get_by_role("heading", level=1).inner_text() == "Devices"


def test_a_running_job_is_followed(open_page: Pages, stores: Stores) -> None:
    """A trial that ends shows without a reload, then the end of the job does; the page itself stays."""
    trials = make_trials()
    claim = running_job(stores, make_request(name="followed"), trials=trials[:1])
    page = open_page("/")
    page.evaluate("window.isSamePage = true")
    add_trial(stores, claim, trials[1])
    page.locator("#running progress[value='2']").wait_for()
    assert "3\N{NO-BREAK SPACE}tok/J" in page.locator("#running tbody tr").inner_text()
    add_trial(stores, claim, trials[2])
    finish(stores, claim, trials)
    page.locator("#found").get_by_role("link", name="followed").wait_for()
    page.locator("#running").get_by_role("link", name="followed").wait_for(state="detached")
    assert page.evaluate("window.isSamePage")


def test_a_lost_server_is_told(open_page: Pages, stores: Stores) -> None:
    """While the server does not answer the page says so and keeps what it has; it recovers by itself."""
    claim = running_job(stores, make_request(name="followed"))
    page = open_page("/")
    page.route("**/", lambda route: route.abort())
    add_trial(stores, claim, make_trials()[0])
    page.get_by_text("The server does not answer").wait_for()
    page.unroute("**/")
    stores.jobs.finish(claim, JobState.CANCELLED, "stopped")
    page.locator("#live-status").wait_for(state="hidden")
    page.locator("#running").get_by_role("link", name="followed").wait_for(state="detached")
