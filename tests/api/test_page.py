"""The web view: the list of jobs, and one job with its front."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.page import MAX_JOBS
from api.stores import Stores
from db.job import JobState
from probes.device import Method, Scope
from tests.api.commands import FinishedJob
from tests.api.scripted import claimed
from tests.db.factories import make_measurement, make_point, make_reading, make_request, make_trial
from tuner.measurement import Distribution, Estimate
from tuner.pareto import front_of
from tuner.trial import Trial, TrialState

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def job_with(stores: Stores, *trials: Trial, name: str = "nightly") -> str:
    """Store a running job with trials that have ended."""
    claim = claimed(stores, make_request(name=name))
    for trial in trials:
        stores.trials.finish(stores.trials.start(claim, trial.number, trial.point), trial)
    return claim.job_id


def test_without_jobs_the_page_says_how_to_start_one(client: TestClient) -> None:
    """An empty list shows the command that fills it."""
    assert "wattfront tune --model" in client.get("/").text


def test_jobs_are_listed_newest_first(client: TestClient, stores: Stores) -> None:
    """The list links every job, the newest at the top, and says when there are more than it shows."""
    ids = [stores.jobs.create(make_request(name=f"job {i}")).id for i in range(3)]
    page = client.get("/").text
    assert sorted(ids, key=lambda job_id: -ids.index(job_id)) == sorted(ids, key=page.index)
    assert "older ones by" not in page
    for _ in range(MAX_JOBS - 3):
        stores.jobs.create(make_request())
    assert f"The newest {MAX_JOBS}; older ones by" in client.get("/").text


@pytest.mark.parametrize("at", ["/", "/jobs/{}"])
def test_text_is_shown_as_text(client: TestClient, stores: Stores, at: str) -> None:
    """A name, a knob's value, a reason and a message that look like markup are shown, not run."""
    point = make_point(precision=SCRIPT)
    failed = make_trial(point=point, state=TrialState.FAILED, reason="engine_error", detail=SCRIPT, measurement=None)
    job_id = job_with(stores, failed, name=SCRIPT)
    page = client.get(at.format(job_id)).text
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_no_page_loads_anything_from_elsewhere(client: TestClient, stores: Stores) -> None:
    """Pages have no scripts, no inline style, and no address of another site."""
    page = client.get(f"/jobs/{job_with(stores, make_trial())}").text
    for foreign in ("<script", "style=", "http://", "https://", "//cdn"):
        assert foreign not in page


def test_an_estimate_is_labelled(client: TestClient, stores: Stores) -> None:
    """Where nothing was measured, the page says so beside scope and method and on the axis."""
    reading = make_reading(scope=Scope.CPU_SHARE, method=Method.ESTIMATE)
    page = client.get(f"/jobs/{job_with(stores, make_trial(measurement=make_measurement(reading=reading)))}").text
    assert "<b>Estimate:</b> nothing was measured." in page
    assert "Energy scope <b>cpu_share</b>, method <b>estimate</b>" in page
    assert "tokens per joule, estimate" in page


def test_a_measurement_is_not_labelled_as_an_estimate(client: TestClient, stores: Stores) -> None:
    """Figures of a counter are told as measured, with the counter's scope."""
    page = client.get(f"/jobs/{job_with(stores, make_trial())}").text
    assert "<b>Measured.</b>" in page
    assert "Energy scope <b>gpu</b>, method <b>counter</b>" in page
    assert "estimate" not in page.lower()


def test_a_job_that_meets_no_limit_says_so(client: TestClient, stores: Stores) -> None:
    """The page of a job without a feasible point is a page: why it ended, and the nearest misses (BUG-15b)."""
    slow = replace(make_measurement(), ttft=Distribution(count=9, p99=Estimate(600.0)))
    detail = "ttft_p99_ms is 600, the limit is 500"
    claim = claimed(stores, make_request())
    trial = make_trial(state=TrialState.INFEASIBLE, reason="sla:ttft_p99_ms", detail=detail, measurement=slow)
    stores.trials.finish(stores.trials.start(claim, 0, trial.point), trial)
    stores.fronts.save(claim.job_id, front_of([trial], "tpot_p99_ms", created_at=trial.started_at))
    stores.jobs.finish(claim, JobState.FINISHED, "no_feasible_point", f"no configuration meets the limits; {detail}")
    answer = client.get(f"/jobs/{claim.job_id}")
    assert answer.status_code == 200
    assert "Ended because: no feasible point." in answer.text
    assert "No configuration meets the limits. Nearest:" in answer.text
    assert 'trial 0: <span class="knob">max_batch <b>8</b></span>' in answer.text
    assert detail in answer.text


def test_a_job_without_trials_is_a_page(client: TestClient, stores: Stores) -> None:
    """A job that has only been submitted has a page that says so."""
    job = stores.jobs.create(make_request())
    page = client.get(f"/jobs/{job.id}").text
    assert "No trial has ended yet." in page
    assert "None yet." in page


def test_failed_trials_are_shown_with_their_reason(client: TestClient, stores: Stores) -> None:
    """A trial whose engine died is listed with the sentence that tells how, and has no figures."""
    failed = make_trial(
        state=TrialState.FAILED, reason="engine_died", detail="engine process 7 ended", measurement=None
    )
    page = client.get(f"/jobs/{job_with(stores, failed)}").text
    assert 'failed<span class="quiet">: engine process 7 ended</span>' in page
    assert "<figure>" not in page


def test_every_figure_of_the_front_has_its_interval(client: TestClient, stores: Stores) -> None:
    """The table gives the 95 % interval beside each figure, with a question mark for a bound nobody knows."""
    page = client.get(f"/jobs/{job_with(stores, make_trial())}").text
    assert "1.9 to 2.1" in page
    assert "25 to ?" in page


def test_a_real_job_has_a_page(finished_job: FinishedJob) -> None:
    """The page of a job that ran shows its trials, and whether its energy was measured or estimated."""
    client = TestClient(create_app(finished_job.stores), base_url="http://localhost")
    page = client.get(f"/jobs/{finished_job.id[:8]}").text
    assert "<h1>the first</h1>" in page
    assert page.count("prefill_chunk <b>") >= 2
    assert ("Estimate:" in page) != ("Measured." in page)


@pytest.mark.parametrize("name", ["style.css", "icon.svg"])
def test_the_pages_files_are_there(client: TestClient, name: str) -> None:
    """What the pages refer to is served."""
    assert client.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize("path", ["/static/../settings.py", "/static/..%2fsettings.py", "/static/%2e%2e/cli.py"])
def test_only_the_pages_files_are_there(client: TestClient, path: str) -> None:
    """No path leads out of the folder of the pages' files."""
    assert client.get(path).status_code == 404
