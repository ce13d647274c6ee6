"""The form of a job: what it offers and begins with, and how a person gets from it to a job."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page
from starlette.testclient import TestClient

from api.access import COOKIE
from api.app import create_app
from api.jobfile import read_job
from api.stores import Stores
from api.submit import read_request
from db.service import Scope
from tests.api.pages.browser import Pages, faults_in_every_view
from tests.db.factories import make_device

NASTY = "<script>alert(1)</script><b>x</b>'\""
JOB: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "device": "simulated:h200-sxm:4",
    "name": NASTY,
    "sla": {"e2e_p95_ms": 900},
    "knobs": {"max_batch": [4, 16], "kv_precision": ["auto", "fp8"]},
    "workload": {"scenario": "server", "rate_per_s": 2.5, "prompt_tokens": 128},
    "budget": {"trials": 3, "minutes": 5},
    "window": {"stops_early": False},
}


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def start_of(page: str) -> dict[str, Any]:
    """Return the fields that a form begins with."""
    found = re.search(r'data-start="([^"]*)"', page)
    assert found is not None
    fields: dict[str, Any] = json.loads(html.unescape(found[1]))
    return fields


def settled(page: Page) -> None:
    """Wait until the form has its knobs and what it shows is of what stands in it."""
    page.locator("#knobs fieldset").first.wait_for()
    page.locator('#preview[aria-busy="false"]').wait_for()


def test_a_copy_begins_with_the_job_s_fields(client: TestClient, stores: Stores) -> None:
    """`?like=` gives the fields of that job, whatever stands in its texts, and `?model=` goes before them."""
    job = stores.jobs.create(read_request(JOB), priority=4)
    page = client.get(f"/jobs/new?like={job.id}").text
    assert start_of(page) == JOB | {"priority": 4}
    assert NASTY not in page
    assert start_of(client.get(f"/jobs/new?like={job.id[:8]}&model=qwen3-32b").text)["model"] == "qwen3-32b"
    assert client.get("/jobs/new?like=0000").status_code == 404


def test_devices_that_nobody_named_are_shown_but_cannot_be_chosen(client: TestClient, stores: Stores) -> None:
    """A device that was seen is in the list, disabled, as jobs over HTTP may not name it."""
    stores.devices.seen(make_device(name=f"GPU {NASTY}"), [])
    page = client.get("/jobs/new").text
    assert f"<option disabled>GPU {html.escape(NASTY, quote=False)}"[:40] in page
    assert NASTY not in page
    assert '<option value="simulated:h100-sxm">' in page


def test_a_key_that_reads_cannot_start_anything(client: TestClient, stores: Stores) -> None:
    """With a key of scope read the button is disabled, and the reason is what describes it; without any, log in."""
    _, key = stores.keys.create("reader", Scope.READ)
    page = client.get("/jobs/new", headers={"cookie": f"{COOKIE}={key}"}).text
    assert 'id="submit" disabled aria-describedby="read-only"' in page
    assert "Your key only reads." in page
    answer = client.get("/jobs/new", headers={"accept": "text/html"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/jobs/new")


def test_a_person_makes_a_job(open_page: Pages, stores: Stores, tmp_path: Path) -> None:
    """A wrong field is told beside it and gets the focus; corrected, the file shown is the job that is then made."""
    page = open_page("/jobs/new")
    settled(page)
    page.get_by_label("Trials", exact=True).fill("none")
    page.get_by_role("button", name="Start the job").click()
    page.locator("#submit-state", has_text="Not started").wait_for()
    trials = page.get_by_label("Trials", exact=True)
    assert trials.get_attribute("aria-invalid") == "true"
    assert trials.evaluate("one => one === document.activeElement")
    described = [
        page.locator(f'[id="{name}"]').inner_text() for name in str(trials.get_attribute("aria-describedby")).split()
    ]
    assert "budget.trials is 'none'" in described[-1]
    open_page.forgive("422 for")
    trials.fill("4")
    page.get_by_role("button", name="Add a limit").click()
    page.keyboard.type("2000")
    page.get_by_label("Values of max_batch, with commas").fill("16, 64")
    page.get_by_role("checkbox", name="fp8").first.uncheck()
    page.locator("#est-points", has_text=re.compile(r"^60 points$")).wait_for()
    open_page.forgive("422 for") if any("422" in one for one in open_page.complaints) else None
    settled(page)
    (tmp_path / "job.yaml").write_text(page.locator("#as-yaml").inner_text(), encoding="utf-8")
    page.get_by_role("button", name="Start the job").click()
    page.wait_for_url(re.compile("/jobs/[0-9a-f]{32}$"))
    job = stores.jobs.list(limit=2)[0]
    assert job.id == page.url.rpartition("/")[2]
    assert job.request == read_job(tmp_path / "job.yaml", {})
    assert [(limit.metric, limit.bound_ms) for limit in job.request.sla] == [
        ("ttft_p99_ms", 500),
        ("tpot_p99_ms", 30),
        ("e2e_p99_ms", 2000),
    ]
    assert (job.request.budget.trials, job.submitted_by) == (4, "local")


def test_a_copy_is_the_same_job(open_page: Pages, stores: Stores) -> None:
    """A copy that is sent as it is asks for the same, what has no field included; texts with HTML stay texts."""
    first = stores.jobs.create(read_request(JOB))
    page = open_page(f"/jobs/new?like={first.id}", 360, "dark")
    settled(page)
    assert "window.stops_early false" in page.locator("#carried").inner_text()
    page.get_by_role("button", name="Start the job").click()
    page.wait_for_url(lambda url: "/new" not in url)
    jobs = stores.jobs.list(limit=3)
    assert len(jobs) == 2
    assert jobs[0].request == first.request


def test_knobs_follow_the_device_and_all_of_it_fits_every_view(open_page: Pages) -> None:
    """With several GPUs layouts can be chosen, with one they cannot and it says why; a choice that fits stays.

    With everything shown axe finds nothing, and the page never scrolls sideways.
    """
    page = open_page("/jobs/new")
    settled(page)
    page.get_by_label("Values of max_batch, with commas").fill("32")
    assert "tensor_parallel" in page.locator(".knob-barred").inner_text()
    page.get_by_label("GPUs", exact=True).fill("8")
    page.locator("#k-tensor_parallel-2").check()
    page.locator("#as-yaml", has_text="tensor_parallel: [4]").wait_for()
    settled(page)
    assert "device: simulated:h100-sxm:8" in page.locator("#as-yaml").inner_text()
    assert "max_batch: [32]" in page.locator("#as-yaml").inner_text()
    page.locator("#details summary").click()
    assert faults_in_every_view(page) == []
