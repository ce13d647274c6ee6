"""The pages of schedules: what repeats, what became of the nights, and how a person makes, pauses and changes one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from starlette.testclient import TestClient

from api.access import COOKIE
from api.app import create_app
from api.drift_schemas import DriftOut, FigureDriftOut, PointDriftOut, ProvenanceChangeOut
from api.schemas import EstimateOut
from api.stores import Stores, utc_now
from db.service import ScheduleState, Scope
from tests.api.night_watch import make_spec
from tests.api.pages.browser import Pages, axe, faults_in_every_view
from tests.api.pages.scenes import finished_job, night_with_drift
from tests.tuner.simulated import make_simulated

NASTY = "<script>alert(1)</script>"


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def report(before: str) -> DriftOut:
    """Return what moved between two nights, with a driver to blame."""
    figure = FigureDriftOut(
        before=EstimateOut(value=2.0, low=1.9, high=2.1),
        after=EstimateOut(value=1.8, low=1.7, high=1.9),
        change=-0.1,
        has_moved=True,
    )
    point = PointDriftOut(
        knobs={"max_batch": 8}, state="moved", reason=None, tok_per_j=figure, latency_ms=None, interval_of="sessions"
    )
    cause = ProvenanceChangeOut(name="driver", before="580", after="590", words=f"the driver is 590, was 580 {NASTY}")
    return DriftOut(
        compared_with=before,
        is_simulated=True,
        latency_metric="tpot_p99_ms",
        has_moved=True,
        points=[point],
        changes=[cause],
        sentences=["1 of 1 points moved beyond their intervals", "tokens per joule fell by 10 %"],
    )


def test_without_schedules_the_page_says_how_to_make_one(client: TestClient) -> None:
    """An empty list has the command and the form's link."""
    page = client.get("/schedules").text
    assert "wattfront schedules create" in page
    assert 'href="/schedules/new">Set up a schedule' in page


def test_the_list_tells_when_and_what_became_of_the_last_night(client: TestClient, stores: Stores) -> None:
    """A line has the next run in the schedule's zone, the last night's outcome and whether points moved."""
    night = night_with_drift(stores, name="chat", before=finished_job(stores))
    stores.schedules.create(make_spec(name="new", cron="0 2 * * *"))
    page = client.get("/schedules").text
    assert "01:00 to 05:00 every night" in page
    assert "cron 0 2 * * *" in page
    assert f'href="/jobs/{night.job_id}"' in page
    assert 'class="state drifted">moved' in page
    of_the_form, by_id = "/schedules/new", stores.schedules.get("new").id
    assert f'<a class="strong" href="/schedules/{by_id}">new</a>' in page
    assert f'<a class="strong" href="{of_the_form}">new</a>' not in page


def test_a_night_s_report_is_readable(client: TestClient, stores: Stores) -> None:
    """A night shows its points, changes and causes as text, and leads to its job and to the comparison."""
    before = finished_job(stores)
    night = night_with_drift(stores, name="chat", before=before)
    stores.nights.run_now(stores.schedules.get("chat").id, now=utc_now() + timedelta(seconds=5))
    with stores.database.transaction() as session:
        session.connection().exec_driver_sql("UPDATE nights SET drift = NULL WHERE id = ?", (night.id,))
    stores.nights.set_drift(night.id, report(before).model_dump(mode="json"))
    page = client.get("/schedules/chat").text
    assert f'href="/compare?job={before}&amp;job={night.job_id}"' in page
    assert "the driver is 590, was 580 &lt;script&gt;" in page
    assert NASTY not in page
    assert "-10.0" in page
    assert "2 → 1.8" in page
    assert "not compared yet" in page
    assert client.get("/schedules/none-of-that-name").status_code == 404


def test_a_key_that_reads_changes_nothing(client: TestClient, stores: Stores) -> None:
    """With a key of scope read every button is disabled, on the list, the page and the forms, with the reason."""
    stores.schedules.create(make_spec(name="chat"))
    _, key = stores.keys.create("reader", Scope.READ)
    for path in ("/schedules", "/schedules/chat", "/schedules/new", "/schedules/chat/edit"):
        page = client.get(path, headers={"cookie": f"{COOKIE}={key}"}).text
        assert "Your key only reads." in page
        assert page.count("data-act=") == page.count(" disabled>")
    assert "disabled aria-describedby" in page


def test_a_person_makes_a_schedule_and_pauses_it(open_page: Pages, stores: Stores) -> None:
    """The form shows the next runs as times are typed; what is made can be paused, resumed and, once asked, deleted."""
    page = open_page("/schedules/new", timezone_id="Asia/Tokyo")
    page.locator("#knobs fieldset").first.wait_for()
    page.get_by_label("Name", exact=True).fill("llama-weekdays")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("by a cron line").check()
    page.get_by_role("textbox", name="Cron line").fill("30 2 * * 1-5")
    page.locator("#dues li").first.wait_for()
    dues = page.locator("#dues li").all_inner_texts()
    assert len(dues) == 6
    assert all(" 02:30 +0" in due and "Asia/Tokyo" in due for due in dues)
    assert "Clocks go" in page.locator("#changes").inner_text()
    page.get_by_role("button", name="Create the schedule").click()
    page.wait_for_url("**/schedules/llama-weekdays")
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("llama-weekdays is paused.").wait_for()
    assert stores.schedules.get("llama-weekdays").state is ScheduleState.PAUSED
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Keep it").click()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("runs again").wait_for()
    made = stores.schedules.get("llama-weekdays")
    assert (made.state, made.spec.cron, made.spec.timezone) == (ScheduleState.ACTIVE, "30 2 * * 1-5", "Europe/Berlin")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    page.wait_for_url("**/schedules")
    page.get_by_text("llama-weekdays was deleted.").wait_for()
    assert stores.schedules.list(limit=1) == []


def test_a_change_is_of_a_version(open_page: Pages, stores: Stores) -> None:
    """Only what was changed is sent; who changes what somebody changed meanwhile is told so, and changes nothing."""
    spec = make_spec(name="chat", request=make_simulated(), keep_nights=14)
    schedule = stores.schedules.create(spec)
    page, late = (open_page("/schedules/chat/edit") for _ in range(2))
    for one in (page, late):
        one.locator("#knobs fieldset").first.wait_for()
        one.locator("#dues li").first.wait_for()
    assert axe(page) == []
    page.get_by_label("From").fill("02:00")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/schedules/chat")
    changed = stores.schedules.get("chat")
    assert (changed.version, changed.spec.window_start) == (2, "02:00")
    assert (changed.spec.request, changed.spec.keep_nights) == (schedule.spec.request, 14)
    late.get_by_label("From").fill("03:00")
    late.get_by_role("button", name="Save").click()
    late.get_by_text("Somebody changed this schedule meanwhile").wait_for()
    assert stores.schedules.get("chat").version == 2
    open_page.forgive("412 for")


@pytest.mark.parametrize("path", ["/schedules", "/schedules/chat"])
def test_they_work_at_every_width_in_both_schemes(open_page: Pages, stores: Stores, path: str) -> None:
    """With nights of every kind axe finds nothing, and no page scrolls sideways."""
    before = finished_job(stores)
    night_with_drift(stores, name="chat", before=before)
    stores.schedules.create(make_spec(name="a-rather-long-name-of-a-schedule.for-weekdays", cron="0 2 * * 1-5"))
    stores.schedules.pause("a-rather-long-name-of-a-schedule.for-weekdays")
    page = open_page(path)
    if path == "/schedules/chat":
        page.get_by_text("Report").first.click()
    assert faults_in_every_view(page) == []
