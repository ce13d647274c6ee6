"""Imported results over HTTP: posted, listed, shown, deleted, and refused with what to correct."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.routes import imports
from api.stores import Stores
from db.service import Scope
from tests.api.test_submit import problem
from tests.tuner.foreign.test_guidellm import benchmark, report
from tests.tuner.foreign.test_loadgen import SERVER
from tests.tuner.foreign.test_vllm_bench import SUMMARY

REPORT = json.dumps(report(benchmark({"type_": "constant", "rate": 2.0}), benchmark({"type_": "throughput"})))
JSON = {"content-type": "application/json"}


@pytest.fixture
def client(stores: Stores) -> Iterator[TestClient]:
    with TestClient(create_app(stores), base_url="http://127.0.0.1:8710") as client:
        yield client


def posted(client: TestClient, content: str | bytes = REPORT, name: str = "benchmarks.json", **headers: str) -> Any:
    return client.post("/v1/imports", params={"name": name}, content=content, headers=JSON | headers)


def test_a_file_is_imported_once(client: TestClient, stores: Stores) -> None:
    """The first post keeps its results with their label; the same file again changes nothing."""
    first = posted(client)
    assert (first.status_code, first.headers["location"]) == (201, "/v1/imports/1")
    told = first.json()
    assert (told["tool"], told["num_results"]) == ("guidellm", 2)
    assert told["origin"] == "imported from guidellm, not metered: no energy"
    assert told["sha256"] == hashlib.sha256(REPORT.encode()).hexdigest()
    assert [one["load"] for one in told["results"]] == ["constant", "throughput"]
    assert told["results"][0]["ttft_ms"] == {"mean": 104.0, "p50": 103.0, "p90": 105.0, "p95": None, "p99": 113.0}
    again = posted(client, name="another.json")
    assert (again.status_code, again.json()) == (200, told)
    assert [(entry.action, entry.subject) for entry in stores.audit.list(limit=9)] == [("import.create", "import/1")]


def test_no_result_has_energy(client: TestClient) -> None:
    """No field of an imported result is an energy or tokens per joule."""
    (result, _) = posted(client).json()["results"]
    assert [name for name in result if "_j" in name or "energy" in name or "watt" in name] == []


def test_files_are_listed_shown_and_deleted(client: TestClient, stores: Stores) -> None:
    """Lists go on by number, one file is shown with its results, and a deleted one is gone and written down."""
    posted(client)
    posted(client, json.dumps(SUMMARY), "bench.json")
    posted(client, SERVER, "mlperf_log_summary.txt", **{"content-type": "text/plain"})
    page = client.get("/v1/imports?limit=2").json()
    assert ([(one["id"], one["tool"]) for one in page["items"]], page["next"]) == ([(3, "loadgen"), (2, "vllm")], 2)
    rest = client.get("/v1/imports?limit=2&before=2").json()
    assert ([one["id"] for one in rest["items"]], rest["next"]) == ([1], None)
    shown = client.get("/v1/imports/2").json()
    assert (shown["name"], [one["model"] for one in shown["results"]]) == ("bench.json", ["tiny/llama"])
    assert client.delete("/v1/imports/2").status_code == 204
    assert problem(client.get("/v1/imports/2")) == (
        404, "no such import", "there is no import 2; `wattfront imports` and GET /v1/imports list them",
    )  # fmt: skip
    assert problem(client.delete("/v1/imports/2"))[:2] == (404, "no such import")
    assert stores.audit.list(limit=1)[0].action == "import.delete"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps(SUMMARY | {"duration": "long"}), "bench.json: duration is 'long': give a number, or leave it out"),
        (json.dumps(SUMMARY)[:-30], "bench.json: line 1, column "),
        ("{}", "bench.json: format is 'an empty object': it is not known; known are vLLM bench serve"),
        ("", "bench.json: format is 'an empty file': it is not known"),
    ],
)
def test_a_bad_file_is_refused(client: TestClient, content: str, words: str) -> None:
    """File, field, value and remedy stand in the problem, and nothing is kept."""
    status, _, told = problem(posted(client, content, "bench.json"))
    assert status == 422
    assert told.startswith(words)
    assert client.get("/v1/imports").json() == {"items": [], "next": None}


def test_what_cannot_be_posted(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another media type, another site's page, no name, an impossible number and too large a file are refused."""
    assert problem(posted(client, **{"content-type": "text/csv"}))[:2] == (415, "wrong media type")
    assert problem(posted(client, origin="http://evil.example"))[:2] == (403, "foreign origin")
    assert problem(client.post("/v1/imports", content=REPORT, headers=JSON))[0] == 422
    assert problem(client.get("/v1/imports/0"))[0] == 422
    assert problem(client.get("/v1/imports/99999999999"))[0] == 422
    monkeypatch.setattr(imports, "MAX_BYTES", 100)
    assert problem(posted(client)) == (413, "body too large", "the body is larger than 100 bytes; send less")


def test_reading_needs_less_than_importing(client: TestClient, stores: Stores) -> None:
    """A key of scope read lists and shows; importing and deleting need scope tune."""
    headers = {
        scope: {"authorization": f"Bearer {stores.keys.create(scope.value, scope)[1]}"}
        for scope in (Scope.READ, Scope.TUNE)
    }
    assert posted(client, **headers[Scope.READ]).status_code == 403
    assert posted(client, **headers[Scope.TUNE]).status_code == 201
    assert client.get("/v1/imports/1", headers=headers[Scope.READ]).json()["created_by"] == "tune"
    assert client.delete("/v1/imports/1", headers=headers[Scope.READ]).status_code == 403
    assert client.delete("/v1/imports/1", headers=headers[Scope.TUNE]).status_code == 204
