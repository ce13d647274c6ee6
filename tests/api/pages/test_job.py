"""The web view: the list of jobs, and one job with its front."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.pages.overview import MAX_JOBS
from api.stores import Stores
from db.job import JobState
from probes.device import Method, Scope
from tests.api.commands import FinishedJob
from tests.api.scripted import claimed
from tests.db.factories import (
    make_capability,
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
    stores.devices.seen(make_device(), [make_capability()])
    stores.devices.set_control("GPU-1", "restore_failed", "not permitted")
    page = client.get("/").text + client.get(f"/jobs/{job_with(stores, make_trial())}").text
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


def test_the_index_lists_the_devices(client: TestClient, stores: Stores) -> None:
    """Each device has its name, where its energy comes from (not a knob it has), and who sets it."""
    assert "<h2>Devices</h2>" not in client.get("/").text
    knob = make_capability(name="sm_clock_cap_mhz", reason="210 to 1980 MHz")
    absent = make_capability(name="NVML total energy counter", is_available=False, reason="not supported")
    field = make_capability(name="NVML instant power of the gpu, field 186", reason="reads 300.0 W")
    stores.devices.seen(make_device(), [knob, absent, field])
    stores.devices.seen(make_device(uuid="CPU-1", name="EPYC"), [absent])
    stores.devices.set_control("GPU-1", "controlled", "the guard")
    page = client.get("/").text.partition("<h2>Devices</h2>")[2]
    assert "NVML instant power of the gpu, field 186" in page
    assert "total energy counter" not in page
    assert '<span class="quiet">nothing</span>' in page
    assert '<span class="state controlled">controlled</span> <span class="quiet">the guard</span>' in page
    assert '<span class="state observed">observed</span>' in page


def test_clocks_are_shown_where_there_are_any(client: TestClient, stores: Stores) -> None:
    """A trial on a GPU has its mean clock, and says where the power limit held it down; a CPU's table has no column."""
    assert "Mean clock" not in client.get(f"/jobs/{job_with(stores, make_trial())}").text
    limited = make_reading(conditions=(make_conditions(),), notes=("power_limited",))
    unknown = make_reading(conditions=(make_conditions(mean_clock_mhz=None),))
    job_id = job_with(
        stores,
        make_trial(measurement=make_measurement(reading=limited)),
        make_trial(number=1, measurement=make_measurement(reading=unknown)),
        make_trial(number=2, state=TrialState.FAILED, reason="engine_died", measurement=None),
    )
    page = client.get(f"/jobs/{job_id}").text
    assert "Mean clock, MHz" in page
    assert '<td class="n">1398 <span class="quiet">power limited</span></td>' in page
    rows = page.partition("<h2>Trials</h2>")[2].split("<tr")[1:]
    assert [row.count("<td") + row.count("<th") - row.count("<thead") for row in rows] == [11, 11, 11, 11]


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
    """A point that stays by a tie has a ring, the trial that it is tied with, and a sentence; else none."""
    near = make_measurement(tok_per_j=Estimate(1.98, 1.9, 2.1))
    other = make_trial(number=1, point=make_point(16), measurement=near)
    page = client.get(f"/jobs/{job_with(stores, make_trial(), other)}").text
    assert page.count('class="ring"') == 1
    assert '<td>#0 <span class="quiet">behind</span></td>' in page
    assert "1 of 2 points is on the front by a tie" in page
    alone = client.get(f"/jobs/{job_with(stores, make_trial())}").text
    assert 'class="ring"' not in alone
    assert "Tied with" not in alone


def test_repeats_of_a_point_are_one_dot(client: TestClient, stores: Stores) -> None:
    """Three windows of one point are one row and one dot at their mean, and the row says how many they are."""
    repeats = [
        make_trial(number=i, session=f"s{i}", measurement=make_measurement(tok_per_j=Estimate(2.0 + i)))
        for i in range(3)
    ]
    page = client.get(f"/jobs/{job_with(stores, *repeats)}").text
    assert page.count("<circle") == 1
    assert "3 tok/J, 31 ms, mean of 3 windows" in page
    assert '<td class="n">3<span class="quiet"> in ' in page


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
