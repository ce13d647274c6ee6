"""`POST /v1/jobs/estimate`: judged as a post is, told what it would cost, and nothing is stored."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.jobfile import read_job
from api.settings import Settings
from api.stores import Stores
from api.submit import read_request
from db.service import Scope
from tests.api.test_submit import body, problem
from tests.db.factories import make_trial
from tuner.knobs import SIMULATED, launch_s

ESTIMATE = "/v1/jobs/estimate"
OPERATOR = "devices: {rack3-gpu0: {device: GPU-1}}\nmodels: {chat-8b: /models/llama}\n"
#: Of the body's window.
LAUNCH_S = launch_s(SIMULATED)


@pytest.fixture
def client(stores: Stores, settings: Settings, tmp_path: Path) -> Iterator[TestClient]:
    """A service whose operator named a device and a model."""
    path = tmp_path / "operator.yaml"
    path.write_text(OPERATOR, encoding="utf-8")
    app = create_app(stores, settings.model_copy(update={"operator_file": path, "nightly": False}))
    with TestClient(app, base_url="http://127.0.0.1:8710") as client:
        yield client


def told(client: TestClient, **changes: Any) -> dict[str, Any]:
    """Return the estimate of a job."""
    answer = client.post(ESTIMATE, json=body(**changes))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_device_time_is_windows_and_launches(client: TestClient) -> None:
    """Time is trials by warm-up and window, and a launch for each combination of launch knobs; at most, one a trial."""
    found = told(client)
    assert (found["num_points"], found["num_possible"], found["num_trials"], found["num_launches"]) == (4, 4, 4, 2)
    assert found["device_s"] == 4 * (1 + 2) + 2 * LAUNCH_S
    assert found["device_s_at_most"] == 4 * (120 + 10) + 4 * LAUNCH_S
    assert found["is_simulated"] is True


def test_repeats_and_idle_power_cost_too(client: TestClient) -> None:
    """Windows of the finals come on top, each in a launch of its own, and idle power once."""
    once = told(client)
    found = told(client, repeats={"windows": 3, "finalists": 2}, window=body()["window"] | {"idle_s": 30})
    repeats = found["num_repeats"]
    assert repeats > 2 * 2
    assert found["num_launches"] == once["num_launches"] + repeats
    assert found["device_s"] == once["device_s"] + repeats * (1 + 2 + LAUNCH_S) + 30


def test_device_hours_bound_the_time(client: TestClient) -> None:
    """What the budget does not allow is not counted, and the words say that it may end the job early."""
    found = told(client, budget={"trials": 4, "device_hours": 0.01})
    assert (found["device_s"], found["device_s_at_most"]) == (36, 36)
    assert "The budget of 0.01 device-hours may end it before all trials." in found["how"]


def test_what_does_not_fit_is_left_out(client: TestClient) -> None:
    """A precision whose weights the device has no room for makes fewer points possible, and so fewer trials."""
    found = told(client, model="llama-3.1-70b", knobs={"max_batch": [1, 2], "precision": ["bf16", "fp8"]})
    assert (found["num_points"], found["num_possible"], found["num_trials"]) == (4, 2, 2)
    assert "2 of 4 points are left out: the weights do not fit." in found["how"]


def test_energy_is_known_from_past_jobs_alone(client: TestClient, stores: Stores) -> None:
    """Without a past job joules are null with the reason, under the power limit; with one, at its mean power."""
    first = told(client)
    assert (first["joules"], first["joules_at_most"]) == (None, 700 * first["device_s_at_most"])
    assert first["joules_from"] == "no past job of llama-3.1-8b on simulated:h100-sxm to go by"
    stores.jobs.create(read_request(body()))
    claim = stores.jobs.claim_next("host:1:1", 60.0)
    assert claim is not None
    trial = make_trial()
    started = stores.trials.start(claim, 0, trial.point)
    stores.trials.finish(started, replace(trial, device_s=50.0, device_j=20_000.0))
    found = told(client)
    assert found["joules"] == 400 * found["device_s"]
    assert found["joules_from"] == "simulated power of 400 W, of 1 trials of 1 past job of this model and device"
    assert told(client, budget={"trials": 4, "joules": 500})["joules"] == 500


def test_of_a_real_device_only_its_worker_knows(client: TestClient) -> None:
    """What a real device cannot do, and what it may draw, is null; the engine's usual values make the space."""
    answer = client.post(ESTIMATE, json={"model": "chat-8b", "device": "rack3-gpu0"}).json()
    assert (answer["num_points"], answer["num_possible"], answer["joules_at_most"]) == (6 * 3 * 5, None, None)
    assert (answer["is_simulated"], answer["num_launches"]) == (False, 18)
    assert "What this device cannot do is known when its worker opens it." in answer["how"]


def test_the_same_job_as_a_file_a_request_and_a_command(client: TestClient, tmp_path: Path) -> None:
    """The file asks for the same job, the request posts the same body, and the command names this server."""
    posted = body(name="it's <b>one</b>", priority=3)
    found = client.post(ESTIMATE, json=posted).json()
    (tmp_path / "job.yaml").write_text(found["yaml"], encoding="utf-8")
    plain = {name: value for name, value in posted.items() if name != "priority"}
    assert read_request(plain) == read_job(tmp_path / "job.yaml", {})
    words = shlex.split(found["curl"])
    assert posted == json.loads(words[words.index("-d") + 1])
    assert "http://127.0.0.1:8710/v1/jobs" in words
    assert found["command"] == "wattfront --server http://127.0.0.1:8710 tune job.yaml"


def test_faults_are_told_by_field(client: TestClient) -> None:
    """Every field that has another type is named with its sentence; of what does not fit together, the first."""
    answer = client.post(ESTIMATE, json=body(budget={"trials": "many"}, sla={"ttft_p99_ms": "fast"}))
    assert problem(answer)[0] == 422
    assert [one["field"] for one in answer.json()["errors"]] == ["sla.ttft_p99_ms", "budget.trials"]
    for changes, field in (
        ({"model": "nope"}, "model"),
        ({"device": "simulated:h99"}, "device"),
        ({"knobs": {"precision": ["nvfp4"]}}, "knobs.precision"),
        ({"previous_job": "abcdef"}, "previous_job"),
        ({"knobs": {"max_batch": [0]}}, "knobs"),
    ):
        answer = client.post(ESTIMATE, json=body(**changes))
        assert problem(answer)[0] == 422
        assert answer.json()["errors"] == [{"field": field, "detail": answer.json()["detail"]}]


def test_it_is_judged_as_a_post_is_and_stores_nothing(client: TestClient, stores: Stores) -> None:
    """What a post refuses is refused in the same words; what it takes leaves no trace here."""
    for changes in ({"sla": {"ttft": 1}}, {"device": "cpu"}, {"budget": {"trials": 5_000}}, {"nodes": 2}):
        told_here = client.post(ESTIMATE, json=body(**changes))
        assert problem(told_here) == problem(client.post("/v1/jobs", json=body(**changes)))
    told(client)
    assert (stores.jobs.list(limit=1), stores.audit.list(limit=1)) == ([], [])


def test_a_key_to_read_may_estimate(client: TestClient, stores: Stores) -> None:
    """An estimate changes nothing, so a key of scope read gets one, and still may not post the job."""
    _, key = stores.keys.create("reader", Scope.READ)
    headers = {"authorization": f"Bearer {key}"}
    assert client.post(ESTIMATE, json=body(), headers=headers).status_code == 200
    assert client.post("/v1/jobs", json=body(), headers=headers).status_code == 403


def test_a_posted_job_begins_with_the_results_of_another(client: TestClient, stores: Stores) -> None:
    """`previous_job` is taken by the start of its id, kept whole, and part of what an idempotency key is for."""
    first = client.post("/v1/jobs", json=body()).json()
    key = {"idempotency-key": "again"}
    second = client.post("/v1/jobs", json=body(previous_job=first["id"][:8]), headers=key)
    assert (second.status_code, second.json()["previous_job"]) == (201, first["id"])
    assert client.post("/v1/jobs", json=body(), headers=key).status_code == 409
    assert len(stores.jobs.list(limit=5)) == 2
