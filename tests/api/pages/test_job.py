"""A job's page as the server writes it: what it tells of the front, of energy, of an end without points."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.stores import Stores
from db.job import JobState
from probes.device import Method, Scope
from tests.api.commands import FinishedJob
from tests.api.pages.scenes import finished_job as store_finished_job
from tests.api.scripted import claimed
from tests.db.factories import (
    make_conditions,
    make_device,
    make_measurement,
    make_point,
    make_reading,
    make_request,
    make_trial,
)
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


@pytest.mark.parametrize("at", ["/", "/jobs/{}"])
def test_text_is_shown_as_text(client: TestClient, stores: Stores, at: str) -> None:
    """A name, a knob's value, a reason and a message that look like markup are shown, not run."""
    point = make_point(precision=SCRIPT)
    failed = make_trial(point=point, state=TrialState.FAILED, reason="engine_error", detail=SCRIPT, measurement=None)
    job_id = job_with(stores, failed, name=SCRIPT)
    page = client.get(at.format(job_id)).text
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_an_estimate_is_labelled(client: TestClient, stores: Stores) -> None:
    """Where nothing was measured, the page says so at its head, beside scope and method, and on each part."""
    reading = make_reading(scope=Scope.CPU_SHARE, method=Method.ESTIMATE)
    page = client.get(f"/jobs/{job_with(stores, make_trial(measurement=make_measurement(reading=reading)))}").text
    assert "<b>Estimate:</b> nothing was measured." in page
    assert "Energy scope <b>cpu_share</b>, method <b>estimate</b>" in page
    assert "Estimate, energy was not measured." in page.partition("<h2")[0]
    assert page.count('<span class="tag estimate">estimate</span>') == 7  # of the job, and of each part with figures


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
    assert ": no feasible point." in answer.text
    nearest = answer.text.partition("No configuration meets the limits. Nearest:")[2]
    assert "trial 0:" in nearest
    assert "max_batch" in nearest
    assert detail in nearest
    assert "there is none to run" in answer.text


def test_a_job_without_trials_is_a_page(client: TestClient, stores: Stores) -> None:
    """A job that has only been submitted has a page that says so."""
    job = stores.jobs.create(make_request())
    page = client.get(f"/jobs/{job.id}").text
    assert "Waits for a worker" in page
    assert "<code>wattfront worker</code>" in page
    assert "No trial has begun" in page


def test_a_job_of_failed_trials_says_how_many(client: TestClient, stores: Stores) -> None:
    """Trials whose engine died are counted, and the page says that none gave a usable measurement."""
    failed = make_trial(
        state=TrialState.FAILED, reason="engine_died", detail="engine process 7 ended", measurement=None
    )
    claim = claimed(stores, make_request())
    stores.trials.finish(stores.trials.start(claim, 0, failed.point), failed)
    stores.jobs.finish(claim, JobState.FAILED, "engine_died", "the engine died again and again")
    page = client.get(f"/jobs/{claim.job_id}").text
    assert "<small>1 failed</small>" in page
    assert "No trial gave a usable measurement" in page
    assert '<p class="notice bad">the engine died again and again</p>' in page


def test_a_cancelled_job_says_how_to_go_on(client: TestClient, stores: Stores) -> None:
    """Its page has the command that resumes it; that of a running job has a button that cancels it instead."""
    job = stores.jobs.create(make_request())
    assert 'id="cancel"' in client.get(f"/jobs/{job.id}").text
    stores.jobs.request_cancel(job.id)
    page = client.get(f"/jobs/{job.id}").text
    assert f"wattfront tune --resume {job.id[:8]}" in page
    assert 'id="cancel"' not in page


def test_the_point_to_run_is_the_most_frugal(client: TestClient, stores: Stores) -> None:
    """The recommendation of the first paint is the point with the most tokens per joule, as the explanation's is."""
    job_id = store_finished_job(stores)
    page = client.get(f"/jobs/{job_id}").text
    use = page.partition('id="use"')[2].partition("</section>")[0]
    assert "<dt>Trial</dt><dd>2</dd>" in use
    assert '<span class="gain better">1.80×</span>' in use
    assert f'href="/v1/jobs/{job_id}/export?form=vllm"' in use
    assert client.get(f"/v1/jobs/{job_id}/explanation").json()["recommended"]["trial"] == 2


def test_no_trial_is_decoded_for_a_finished_job(
    client: TestClient, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that has ended the page is written from its stored front, however many trials there are."""
    job_id = store_finished_job(stores)
    client.get(f"/jobs/{job_id}")  # stores the front's document
    client = TestClient(create_app(stores), base_url="http://localhost")
    monkeypatch.setattr("db.trials.trial_of", None)
    assert client.get(f"/jobs/{job_id}").status_code == 200


def test_what_is_not_for_eyes_alone_is_linked(client: TestClient, stores: Stores) -> None:
    """Without scripts the page has its table and plain links to pictures, files and data."""
    job_id = store_finished_job(stores)
    page = client.get(f"/jobs/{job_id}").text
    for name in ("file", "trials", "figures", "explanation", "front", "front.png", "front.svg", "export?form=csv"):
        assert f'href="/v1/jobs/{job_id}/{name}"' in page
    assert f'href="/compare?job={job_id}"' in page


@pytest.mark.parametrize("at", ["/", "/jobs/{}"])
def test_a_device_that_could_not_be_restored_is_on_every_page(client: TestClient, stores: Stores, at: str) -> None:
    """Each page names the device, what went wrong in escaped words, and the command; until then there is no banner."""
    for uuid in ("GPU-1", "GPU-2"):
        stores.devices.seen(make_device(uuid=uuid, name=f"NVIDIA {uuid}"), [])
    stores.devices.set_control("GPU-2", "controlled", "the guard")
    path = at.format(job_with(stores, make_trial()))
    assert "alarm" not in client.get(path).text
    stores.devices.set_control("GPU-1", "restore_failed", SCRIPT)
    banner = client.get(path).text.partition('role="alert"')[2].partition("</div>")[0]
    assert "<b>NVIDIA GPU-1</b>" in banner
    assert "&lt;script&gt;" in banner
    assert SCRIPT not in banner
    assert "<code>wattfront restore</code>" in banner
    assert "GPU-2" not in banner
    stores.devices.set_control("GPU-1", "observed", None)
    assert "alarm" not in client.get(path).text


def test_clocks_are_shown_where_there_are_any(client: TestClient, stores: Stores) -> None:
    """A point measured on a GPU has its mean clock, and says where power limited it; a CPU's table has no column."""
    assert "Mean clock" not in client.get(f"/jobs/{job_with(stores, make_trial())}").text
    limited = make_reading(conditions=(make_conditions(),), notes=("power_limited",))
    page = client.get(f"/jobs/{job_with(stores, make_trial(measurement=make_measurement(reading=limited)))}").text
    assert "Mean clock, MHz" in page
    assert '<td class="n">1398 <span class="quiet">power limited</span></td>' in page


def test_the_hosts_power_and_idle_power_are_shown_apart(client: TestClient, stores: Stores) -> None:
    """Beside a GPU's figures the host CPU's watts have a column, empty where they are not valid; idle power a line."""
    host = make_reading(scope=Scope.CPU_PACKAGE, energy_j=2490.0)
    broken = make_reading(scope=Scope.CPU_PACKAGE, energy_j=2490.0, reasons=("counter_reset",))
    page = client.get(
        "/jobs/"
        + job_with(
            stores,
            make_trial(measurement=make_measurement(host=host, idle_power_w=76.0)),
            make_trial(number=1, measurement=make_measurement(host=broken)),
        )
    ).text
    assert page.count("83.0") == 1
    assert "Host CPU, W" in page
    assert "scope <b>cpu_package</b>" in page
    assert "With the model loaded and no requests: 76.0 W, subtracted from nothing." in page


def test_a_counters_steps_are_no_systematic_uncertainty(client: TestClient, stores: Stores) -> None:
    """Only an estimate's uncertainty is common to all points; a counter's is told as its steps."""
    page = client.get(f"/jobs/{job_with(stores, make_trial())}").text
    assert "the steps of reading it are worth about ±0.17 %" in page
    assert "Systematic uncertainty" not in page
    estimated = make_reading(method=Method.ESTIMATE, uncertainty_j=165.0)
    page = client.get(f"/jobs/{job_with(stores, make_trial(measurement=make_measurement(reading=estimated)))}").text
    assert "Systematic uncertainty about ±55 %" in page


def test_every_figure_of_the_front_has_its_interval(client: TestClient, stores: Stores) -> None:
    """The table gives the 95 % interval beside each figure, with a question mark for a bound nobody knows."""
    page = client.get(f"/jobs/{job_with(stores, make_trial())}").text
    assert "1.9 to 2.1" in page
    assert "25 to ?" in page


def test_ties_are_marked(client: TestClient, stores: Stores) -> None:
    """A point that stays by a tie is called behind, beside the trial that it is tied with; else there is no column."""
    near = make_measurement(tok_per_j=Estimate(1.98, 1.9, 2.1))
    other = make_trial(number=1, point=make_point(16), measurement=near)
    page = client.get(f"/jobs/{job_with(stores, make_trial(), other)}").text
    assert '<td>#0 <span class="quiet">behind</span></td>' in page
    assert "1 of 2 points is on the front by a tie" in page
    assert "Tied with" not in client.get(f"/jobs/{job_with(stores, make_trial())}").text


def test_repeats_of_a_point_are_one_row(client: TestClient, stores: Stores) -> None:
    """Three windows of one point are one row of the front at their mean, and the row says how many they are."""
    repeats = [
        make_trial(number=i, session=f"s{i}", measurement=make_measurement(tok_per_j=Estimate(2.0 + i)))
        for i in range(3)
    ]
    page = client.get(f"/jobs/{job_with(stores, *repeats)}").text
    points = page.partition('id="part-points"')[2].partition("</table>")[0]
    assert points.count("<tr") == 2
    assert '<td class="n">3<span class="quiet"> in 3 launches</span></td>' in points


def test_a_real_job_has_a_page(finished_job: FinishedJob) -> None:
    """The page of a job that ran counts its trials, and says whether its energy was measured or estimated."""
    client = TestClient(create_app(finished_job.stores), base_url="http://localhost")
    page = client.get(f"/jobs/{finished_job.id[:8]}").text
    assert "<h1>the first</h1>" in page
    assert "<dt>Trials</dt><dd>2<" in page  # on a busy machine they may be invalid
    assert ("Estimate:" in page) != ("Measured." in page)


@pytest.mark.parametrize("name", ["style.css", "icon.svg"])
def test_the_pages_files_are_there(client: TestClient, name: str) -> None:
    """What the pages refer to is served."""
    assert client.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize("path", ["/static/../settings.py", "/static/..%2fsettings.py", "/static/%2e%2e/cli.py"])
def test_only_the_pages_files_are_there(client: TestClient, path: str) -> None:
    """No path leads out of the folder of the pages' files."""
    assert client.get(path).status_code == 404
