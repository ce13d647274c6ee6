"""The list of jobs: filters, orders, pages, and how it looks in a browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

from api.app import create_app
from api.stores import Stores
from db.job import JobState
from tests.api.pages.browser import Pages, faults_in_every_view
from tests.api.pages.scenes import add_trial, finished_job, make_trials, running_job
from tests.db.factories import make_request


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def rows_of(page: str) -> str:
    """Return the part of a page that has the jobs."""
    return page.partition("<tbody")[2].partition("</tbody>")[0]


def test_without_jobs_the_page_says_how_to_start_one(client: TestClient) -> None:
    """An empty list has the command that fills it and the form's link, and no filters."""
    page = client.get("/jobs").text
    assert "wattfront tune --device simulated:" in page
    assert 'href="/jobs/new">Set up a job' in page
    assert "<form" not in page


def test_jobs_are_listed_newest_first(client: TestClient, stores: Stores) -> None:
    """Every job has a line with its link, the newest at the top."""
    ids = [stores.jobs.create(make_request(name=f"job {number}")).id for number in range(3)]
    rows = rows_of(client.get("/jobs").text)
    assert ids[::-1] == sorted(ids, key=rows.index)


def test_a_line_shows_state_progress_and_gain(client: TestClient, stores: Stores) -> None:
    """Finished jobs have their best, gain with interval and front; others how far they are, and what they have."""
    finished_job(stores, name="done")
    running_job(stores, make_request(name="going"), trials=make_trials()[:2])
    rows = rows_of(client.get("/jobs").text)
    going, done = rows.partition('">done</a>')[::2]
    assert 'class="state running"' in going
    assert '<progress value="2" max="4"' in going
    assert "until now" in going
    assert 'class="state finished"' in done
    assert "1.80×" in done
    assert "3 points" in done
    assert "until now" not in done


def test_filters_are_in_the_address(client: TestClient, stores: Stores) -> None:
    """Each field narrows the list, an empty one asks for nothing, and the form shows what was asked for."""
    for name, model in (("one", "llama"), ("two", "qwen"), ("twofold", "qwen")):
        stores.jobs.create(make_request(name=name, model=model))
    stores.jobs.request_cancel(stores.jobs.list(limit=1)[0].id)
    for query, names in (
        ("text=two", {"two", "twofold"}),
        ("text=two&state=queued", {"two"}),
        ("model=llama", {"one"}),
        ("device=auto&model=qwen&state=", {"two", "twofold"}),
    ):
        rows = rows_of(client.get(f"/jobs?{query}").text)
        assert names == {name for name in ("one", "two", "twofold") if f">{name}</a>" in rows}, query
    page = client.get("/jobs?model=llama&text=on").text
    assert "<option selected>llama</option>" in page
    assert 'value="on"' in page


def test_a_filter_that_nothing_meets_offers_a_way_out(client: TestClient, stores: Stores) -> None:
    """A list that is empty for its filters says so, and links to all jobs."""
    stores.jobs.create(make_request())
    page = client.get("/jobs?text=nowhere").text
    assert "No job is like that" in page
    assert '<a class="button primary" href="/jobs">Show all jobs</a>' in page


def test_jobs_are_in_the_order_that_is_asked_for(client: TestClient, stores: Stores) -> None:
    """By gain the job that gained most comes first, and the column says that it sorts."""
    finished_job(stores, name="little", trials=make_trials(((8, 2.0, 10.0), (16, 2.2, 14.0))))
    finished_job(stores, name="much", trials=make_trials(((8, 2.0, 10.0), (16, 5.0, 14.0))))
    finished_job(stores, name="some", trials=make_trials(((8, 2.0, 10.0), (16, 3.0, 14.0))))
    page = client.get("/jobs?order=gain").text
    assert sorted(("little", "much", "some"), key=lambda name: page.index(f">{name}</a>")) == ["much", "some", "little"]
    assert 'aria-sort="descending"><a href="/jobs?order=gain">Gain' in page


def test_a_long_list_has_pages(client: TestClient, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job is on one page, the filters go along, and the last page leads back to the first."""
    monkeypatch.setattr("api.pages.jobs.PAGE_SIZE", 3)
    for number in range(5):
        stores.jobs.create(make_request(name=f"job {number:03}", model="llama"))
    first = client.get("/jobs?model=llama").text
    assert "First page" not in first
    address = first.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    assert "model=llama" in address
    second = client.get(address).text
    assert 'href="/jobs?model=llama">First page' in second
    assert 'rel="next"' not in second
    assert (rows_of(first).count("<tr>"), rows_of(second).count("<tr>")) == (3, 2)


def test_a_wrong_address_is_refused(client: TestClient, stores: Stores) -> None:
    """What no form of ours sends is answered as a page that names it, not with a fault."""
    stores.jobs.create(make_request())
    for query, status in (("state=lost", 422), ("order=luck", 422), ("after=zzzz", 404), ("text=%00", 400)):
        answer = client.get(f"/jobs?{query}", headers={"accept": "text/html"})
        assert answer.status_code == status, query
        assert answer.headers["content-type"].startswith(("text/html", "application/problem+json"))


def test_it_works_at_every_width_in_both_schemes(open_page: Pages, stores: Stores) -> None:
    """With jobs in every state axe finds nothing, and the page never scrolls sideways."""
    finished_job(stores, name="a job with a name that is rather long for a phone", model="org/a-model-with-a-long-name")
    running_job(stores, trials=make_trials()[:2])
    stores.jobs.create(make_request(name=""))
    claim = stores.jobs.create_claimed(make_request(name="x" * 120), "host:1:1", 60.0)
    stores.jobs.finish(claim, JobState.FAILED, "error", "the engine died")
    assert faults_in_every_view(open_page("/jobs")) == []


def test_ticked_jobs_are_compared(open_page: Pages, stores: Stores) -> None:
    """Jobs with a front can be ticked, stay so while the list follows a run, and are compared side by side."""
    jobs = [finished_job(stores, name="one"), finished_job(stores, name="other")]
    first, second, _ = make_trials()
    claim = running_job(stores, make_request(name="runs"), trials=[first])
    page = open_page("/jobs")
    assert page.get_by_role("checkbox").count() == 2
    for name in ("one", "other"):
        page.get_by_label(f"Compare {name}", exact=True).check()
    add_trial(stores, claim, second)
    expect(page.locator("#lines")).to_contain_text("2 of 4")
    page.get_by_role("button", name="Compare ticked jobs").click()
    page.wait_for_url("**/compare?job=*")
    assert {letter.get_attribute("data-job") for letter in page.locator("#best tr[data-job]").all()} == set(jobs)


def test_the_form_filters_without_scripts(open_page: Pages, stores: Stores) -> None:
    """Filling in the form and pressing Enter leads to the filtered list; Clear leads back."""
    for name in ("wanted", "other"):
        stores.jobs.create(make_request(name=name))
    page = open_page("/jobs", 360, has_scripts=False)
    page.get_by_label("Name, model, device or id").fill("wanted")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?text=wanted*")
    assert page.locator("tbody tr a").all_inner_texts() == ["wanted"]
    page.get_by_role("link", name="Clear").click()
    assert page.locator("tbody tr").count() == 2
