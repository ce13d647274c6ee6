"""One trial with its power trace, and a job as the file that would make it again."""

from __future__ import annotations

import pytest
import yaml
from fastapi.testclient import TestClient

from api.app import create_app
from api.job_schemas import JobIn
from api.stores import Stores
from tests.db.factories import make_measurement, make_point, make_reading, make_request, make_trial
from tuner.request import WorkloadSpec
from tuner.trial import TrialState


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def test_a_trial_comes_with_its_trace(client: TestClient, stores: Stores) -> None:
    """The last attempt is shown with everything measured, and its power from the window's start; others by number."""
    claim = stores.jobs.claim(stores.jobs.create(make_request()).id, "host:1", 1e9)
    cut_short = make_trial(state=TrialState.INTERRUPTED, reason="worker_lost", measurement=None)
    for trial in (cut_short, make_trial(attempt=2)):
        assert stores.trials.finish(stores.trials.start(claim, 0, trial.point), trial)
    path = f"/v1/jobs/{claim.job_id}/trials/0"
    last, first = client.get(path).json(), client.get(path, params={"attempt": 1}).json()
    assert (last["job"], last["attempt"], last["state"]) == (claim.job_id, 2, "complete")
    assert last["measurement"]["tok_per_j"]["value"] == 2.0
    assert last["trace"] == {"time_s": [0.0, 1.0, 2.0, 3.0, 4.0], "power_w": [9.5 + i / 7 for i in range(5)]}
    assert (first["attempt"], first["state"], first["trace"]) == (1, "interrupted", None)


def test_a_measurement_without_a_trace_has_none(client: TestClient, stores: Stores) -> None:
    """Where no power was kept the trace is null."""
    claim = stores.jobs.claim(stores.jobs.create(make_request()).id, "host:1", 1e9)
    trial = make_trial(point=make_point(), measurement=make_measurement(reading=make_reading(trace=())))
    assert stores.trials.finish(stores.trials.start(claim, 0, trial.point), trial)
    assert client.get(f"/v1/jobs/{claim.job_id}/trials/0").json()["trace"] is None


def test_a_trial_that_is_not_there_is_told(client: TestClient, stores: Stores) -> None:
    """An unknown number, and an attempt that there was not, are 404 with where to look."""
    claim = stores.jobs.claim(stores.jobs.create(make_request()).id, "host:1", 1e9)
    stores.trials.start(claim, 0, make_point())
    for path, words in (("trials/7", "has no trial 7"), ("trials/0?attempt=2", "has no attempt 2 of trial 0")):
        answer = client.get(f"/v1/jobs/{claim.job_id}/{path}")
        assert answer.status_code == 404
        assert words in answer.json()["detail"]
        assert "/trials" in answer.json()["detail"]


def test_the_file_makes_the_same_job(client: TestClient, stores: Stores) -> None:
    """A job's file, read as a job file is, gives its request again, and leaves out what nobody said."""
    workload = WorkloadSpec(prompt_tokens=(8, 16), output_tokens=(4, 8), concurrency=2, seed=7)
    request = make_request(workload=workload)
    answer = client.get(f"/v1/jobs/{stores.jobs.create(request).id}/file")
    assert answer.headers["content-type"].startswith("application/yaml")
    fields = yaml.safe_load(answer.text)
    assert JobIn.model_validate(fields).to_request() == request
    assert "window" not in fields
