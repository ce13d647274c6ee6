"""The HTTP service: jobs, trials, fronts, health, problems and headers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import delete, update
from starlette.testclient import TestClient

from api.app import ROUTERS, create_app
from api.stores import Stores
from db import migrate
from db.job import JobState
from db.service_tables import EventRow
from db.tables import JobRow
from probes.device import Method, Scope
from tests.api.commands import FinishedJob, environment
from tests.api.scripted import claimed
from tests.db.factories import make_measurement, make_point, make_reading, make_request, make_trial
from tuner.measurement import Distribution, Estimate
from tuner.trial import Trial, TrialState


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def store_trials(stores: Stores, *trials: Trial) -> str:
    """Store a running job with trials that have ended."""
    claim = claimed(stores, make_request())
    for trial in trials:
        stores.trials.finish(stores.trials.start(claim, trial.number, trial.point), trial)
    return claim.job_id


def test_no_jobs_is_an_empty_list(client: TestClient) -> None:
    """A fresh database has no jobs and nothing to go on with."""
    assert client.get("/v1/jobs").json() == {"items": [], "next": None}


def test_jobs_come_in_pages(client: TestClient, stores: Stores) -> None:
    """Following `next` shows every job once, newest first, and the last page says that it is the last."""
    made = [stores.jobs.create(make_request(name=str(i))).id for i in range(5)]
    seen: list[str] = []
    before: str | None = None
    for _ in range(3):
        page = client.get("/v1/jobs", params={"limit": 2} | ({"before": before} if before else {})).json()
        seen += [job["id"] for job in page["items"]]
        before = page["next"]
    assert made[::-1] == seen
    assert before is None


def test_a_full_last_page_is_the_last(client: TestClient, stores: Stores) -> None:
    """A page that holds exactly the rest does not promise another one."""
    stores.jobs.create(make_request())
    assert client.get("/v1/jobs", params={"limit": 1}).json()["next"] is None


def test_jobs_are_filtered_by_state(client: TestClient, stores: Stores) -> None:
    """Only jobs in the state that was asked for are listed."""
    waiting = stores.jobs.create(make_request())
    running = claimed(stores, make_request()).job_id
    for state, job_id in (("queued", waiting.id), ("running", running)):
        assert [job_id] == [job["id"] for job in client.get("/v1/jobs", params={"state": state}).json()["items"]]
    assert client.get("/v1/jobs", params={"state": "failed"}).json()["items"] == []


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=-1", "limit=many", "limit=nan", "state=lost", f"before={'a' * 65}"]
)
def test_a_bad_query_is_refused(client: TestClient, query: str) -> None:
    """A query outside its bounds is answered with 422 and names the field."""
    answer = client.get(f"/v1/jobs?{query}")
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.text


def test_a_job_is_found_by_the_start_of_its_id(client: TestClient, stores: Stores) -> None:
    """A job is shown by its id or its first characters, with times that carry their offset (BUG-29)."""
    job = stores.jobs.create(make_request())
    shown = client.get(f"/v1/jobs/{job.id[:6]}").json()
    assert client.get(f"/v1/jobs/{job.id}").json() == shown
    assert (job.id, "nightly", "queued", {"ttft_p99_ms": 500.0}) == (
        shown["id"],
        shown["name"],
        shown["state"],
        shown["sla"],
    )
    assert shown["created_at"].endswith(("Z", "+00:00"))


@pytest.mark.parametrize("path", ["", "/trials", "/front"])
def test_an_unknown_job_is_a_problem(client: TestClient, path: str) -> None:
    """What belongs to no job is answered with 404 and a problem body that says what to give."""
    answer = client.get(f"/v1/jobs/0000{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    problem = answer.json()
    assert (problem["title"], problem["status"]) == ("no such job", 404)
    assert "there is no job '0000'" in problem["detail"]


def test_an_unknown_page_is_a_problem(client: TestClient) -> None:
    """Going on from a job that is not there is a 404, not an empty list."""
    assert client.get("/v1/jobs?before=0000").status_code == 404


def test_an_ambiguous_id_is_a_problem(client: TestClient, stores: Stores) -> None:
    """A start that fits two jobs is answered with 409 and both ids."""
    ids = ["abcd" + digit * 28 for digit in "12"]
    for job_id in ids:
        job = stores.jobs.create(make_request())
        with stores.database.transaction() as session:
            session.execute(delete(EventRow))  # they name the job
            session.execute(update(JobRow).where(JobRow.id == job.id).values(id=job_id))
    answer = client.get("/v1/jobs/abcd")
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    assert all(job_id in answer.json()["detail"] for job_id in ids)


def test_trials_are_listed_with_every_attempt(client: TestClient, stores: Stores) -> None:
    """An interrupted attempt, its repetition and a trial that runs now are all listed, with or without figures."""
    claim = claimed(stores, make_request())
    first = stores.trials.start(claim, 0, make_point())
    interrupted = make_trial(state=TrialState.INTERRUPTED, reason="worker_lost", measurement=None)
    stores.trials.finish(first, interrupted)
    stores.trials.finish(stores.trials.start(claim, 0, make_point()), make_trial())
    stores.trials.start(claim, 1, make_point(16))
    items = client.get(f"/v1/jobs/{claim.job_id}/trials").json()["items"]
    assert [(item["number"], item["attempt"], item["state"]) for item in items] == [
        (0, 1, "interrupted"),
        (0, 2, "complete"),
        (1, 1, "running"),
    ]
    assert [item["measurement"] is not None for item in items] == [False, True, False]


def test_a_front_carries_intervals_and_where_its_joules_come_from(client: TestClient, stores: Stores) -> None:
    """Each point has its intervals, energy scope and method, and says that an estimate is one."""
    reading = make_reading(scope=Scope.CPU_SHARE, method=Method.ESTIMATE)
    job_id = store_trials(stores, make_trial(measurement=make_measurement(reading=reading)))
    front = client.get(f"/v1/jobs/{job_id}/front").json()
    assert (front["latency_metric"], front["is_final"], front["nearest_misses"]) == ("tpot_p99_ms", False, [])
    point = front["points"][0]
    assert point["tok_per_j"] == {"value": 2.0, "low": 1.9, "high": 2.1}
    assert point["latency_ms"] == {"value": 31.0, "low": 25.0, "high": None}
    assert (point["energy_scope"], point["energy_method"], point["is_estimate"]) == ("cpu_share", "estimate", True)
    assert point["knobs"] == {"max_batch": 8, "precision": "fp32"}


def test_an_empty_front_lists_the_nearest_misses(client: TestClient, stores: Stores) -> None:
    """A job whose limits nothing meets is answered with 200 and what came nearest (BUG-15b)."""
    slow = replace(make_measurement(), ttft=Distribution(count=9, p99=Estimate(600.0)))
    job_id = store_trials(
        stores,
        make_trial(state=TrialState.INFEASIBLE, reason="sla:ttft_p99_ms", detail="too slow", measurement=slow),
    )
    answer = client.get(f"/v1/jobs/{job_id}/front")
    assert (answer.status_code, answer.json()["points"]) == (200, [])
    assert [miss | {"missed_by": round(miss["missed_by"], 6)} for miss in answer.json()["nearest_misses"]] == [
        {
            "trial": 0,
            "knobs": {"max_batch": 8, "precision": "fp32"},
            "detail": "too slow",
            "missed_by": 0.2,
            "is_cut": False,
        }
    ]


def test_a_real_job_is_served(finished_job: FinishedJob) -> None:
    """What a job measured in another process is served with its trials, its front and its engine."""
    client = TestClient(create_app(finished_job.stores), base_url="http://localhost")
    job = client.get(f"/v1/jobs/{finished_job.id}").json()
    trials = client.get(f"/v1/jobs/{finished_job.id}/trials").json()["items"]
    assert (job["budget_trials"], sum(job["trials"].values())) == (2, 2)
    assert [trial["number"] for trial in trials] == [0, 1]
    assert {trial["measurement"]["engine"]["engine"] for trial in trials} == {"embedded"}
    assert all(trial["measurement"]["output_tokens"] > 0 for trial in trials)
    assert client.get(f"/v1/jobs/{finished_job.id}/front").json()["is_final"]


def test_health(client: TestClient) -> None:
    """The process and its database answer."""
    assert {"status": "ok"} == client.get("/healthz").json() == client.get("/readyz").json()


def test_an_outdated_database_is_not_ready(client: TestClient, stores: Stores) -> None:
    """While the tables are not of this version the process lives, but is not ready, and says why."""
    migrate.downgrade(stores.database, "base")
    assert client.get("/healthz").status_code == 200
    answer = client.get("/readyz")
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert "the database has no tables yet" in answer.json()["detail"]


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/jobs", "/v1/jobs/0000", "/v1/devices", "/v1/devices/0", "/healthz", "/static/style.css", "/nothing"],
)
def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    """Pages, data, problems and files forbid foreign scripts, framing and guessing of types."""
    headers = client.get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "testserver", "10.0.0.7:8710", ""])
def test_a_foreign_host_name_is_refused(client: TestClient, host: str) -> None:
    """A page elsewhere whose name resolves to loopback gets 400 (DNS rebinding)."""
    assert client.get("/v1/jobs", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "localhost:8710", "127.0.0.1:8710", "[::1]:8710", "[::1]"])
def test_loopback_names_are_served(client: TestClient, host: str) -> None:
    """Every name of this machine's loopback is answered, with any port."""
    assert client.get("/v1/jobs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/0000", "/v1/devices", "/v1/audit"])
def test_nothing_is_changed(client: TestClient, path: str) -> None:
    """Jobs can be posted; what jobs are and found, devices and the audit log cannot be changed by anybody."""
    methods = ("PUT", "DELETE", "PATCH") + (() if path == "/v1/jobs" else ("POST",))
    assert {405} == {client.request(method, path).status_code for method in methods}


def test_the_service_and_lists_load_neither_torch_nor_optuna() -> None:
    """What serves or lists jobs starts without what only an engine, a search, a chart or a simulation needs."""
    modules = "api.app, api.cli, api.console, api.records, api.stores"
    names: tuple[str, ...] = ("torch", "optuna", "transformers", "scipy", "altair", "vl_convert", "alembic", "httpx")
    names += ("tuner.explain", "tuner.simulation", "tuner.space", "engine.simulated.engine", "probes.simulated.device")
    code = f"import {modules}, sys; print([name for name in {names} if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


def test_the_schema_is_published(client: TestClient) -> None:
    """The OpenAPI document describes every route of the REST interface, and none of the page's."""
    paths = client.get("/openapi.json").json()["paths"]
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert {route.path for route in routes if route.include_in_schema} == set(paths)
    assert {"/v1/jobs", "/v1/jobs/{job_id}/cancel", "/v1/audit", "/healthz", "/readyz"} <= set(paths)
    assert {"/", "/login"}.isdisjoint(paths)


def test_a_state_is_one_of_ours() -> None:
    """Every state a job can have may be asked for by its name."""
    assert {"queued", "running", "finished", "failed", "cancelled"} == set(JobState)
