"""Recommendations and exports over HTTP, from a job that a worker ran on a simulated device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
import yaml
from fastapi.testclient import TestClient

from api.app import create_app
from api.export.forms import FORMS
from api.routes.exports import FormName
from api.stores import Stores
from tests.db.factories import START, make_measurement, make_trial
from tuner.measurement import Estimate
from tuner.pareto import front_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest

ASK = "/v1/recommendations?model=llama-3.1-8b&device=simulated:h100-sxm"


@pytest.fixture
def client(stores: Stores) -> Iterator[TestClient]:
    with TestClient(create_app(stores), base_url="http://localhost") as opened:
        yield opened


@pytest.fixture
def job_id(stores: Stores) -> str:
    """A job of two points, one of which locks the clock."""
    request = TuneRequest(model="llama-3.1-8b", engine="simulated", device="simulated:h100-sxm")
    trials = [
        make_trial(number=0, point=OperatingPoint.of({"max_batch": 256, "sm_clock_cap_mhz": 1980})),
        make_trial(
            number=1,
            point=OperatingPoint.of({"max_batch": 64, "sm_clock_cap_mhz": 1410}),
            measurement=make_measurement(tok_per_j=Estimate(3.0, 2.9, 3.1)),
        ),
    ]
    job = stores.jobs.create(request)
    stores.results.save(job.id, trials, front_of(trials, "tpot_p99_ms", created_at=START))
    stores.jobs.request_cancel(job.id)
    return job.id


def test_the_best_point_is_answered_as_json(client: TestClient, job_id: str) -> None:
    """The answer names job, trial, label and commands, and every export that it links is there."""
    answer = client.get(f"{ASK}&tpot_p99_ms=100")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    best = answer.json()["recommended"]
    assert (best["job"], best["trial"], best["label"].split(":")[0]) == (job_id, 1, "SIMULATED")
    assert best["run"]["nvidia_smi"] == "nvidia-smi --lock-gpu-clocks=0,1410\n"
    assert set(best["exports"]) == set(FORMS)
    for path in best["exports"].values():
        assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("model=x&device=y", 404, "no finished job has results"),
        ("device=y", 422, "model"),
        ("model=x&device=y&ttft_p99_ms=-1", 422, "ttft_p99_ms"),
        ("model=x&device=y&ttft_p99_ms=nan", 422, "ttft_p99_ms"),
        ("model=x&device=y&power_w=1e999", 422, "power_w"),
        ("model=x&device=y&min_quality=2", 422, "min_quality"),
        ("model=x&device=y&workload=abc", 422, "workload"),
        ("model=x&device=y&ttft=5", 422, "ttft"),
        (f"model={'x' * 301}&device=y", 422, "model"),
    ],
)
def test_a_bad_question_is_refused_by_name(client: TestClient, query: str, status: int, words: str) -> None:
    """Unknown, missing and impossible parameters are problems that name the parameter."""
    answer = client.get(f"/v1/recommendations?{query}")
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert words in answer.json()["detail"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_be_fetched(client: TestClient, job_id: str, form: str) -> None:
    """Each form has its media type and a file name, is of the recommended point, and is labelled."""
    answer = client.get(f"/v1/jobs/{job_id[:8]}/export?form={form}")
    assert answer.headers["content-type"] == FORMS[form].media_type
    assert f'filename="wattfront-{job_id[:8]}-1-{form}{FORMS[form].suffix}"' in answer.headers["content-disposition"]
    assert "SIMULATED" in answer.text


def test_a_point_is_named_by_its_trial(client: TestClient, job_id: str) -> None:
    """`number` exports another point than the recommended one."""
    manifest = yaml.safe_load(client.get(f"/v1/jobs/{job_id}/export?form=dynamo&number=0").text)
    words = manifest["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]["args"]
    assert words[words.index("--max-num-seqs") + 1] == "256"


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("form=helm", 422, "form"),
        ("", 422, "form"),
        ("form=vllm&number=7", 422, "number is 7: job"),
        ("form=vllm&number=-1", 422, "number"),
    ],
)
def test_a_bad_export_is_refused(client: TestClient, job_id: str, query: str, status: int, words: str) -> None:
    """An unknown form and a trial that is no point are problems that name what there is."""
    answer = client.get(f"/v1/jobs/{job_id}/export?{query}")
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True)


def test_an_unknown_job_is_not_found(client: TestClient) -> None:
    """A job that is not there has no export."""
    assert client.get("/v1/jobs/ffffffff/export?form=vllm").status_code == 404


def test_the_document_names_every_form() -> None:
    """The forms that a caller may name are those that there are."""
    assert list(get_args(FormName)) == list(FORMS)
