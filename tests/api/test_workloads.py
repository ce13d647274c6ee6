"""Workloads over HTTP: uploaded, named by jobs, and replayed by the worker that runs those."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.job_run import run_job
from api.settings import Settings
from api.stores import Stores
from api.workload_cache import materialised
from db.job import JobState
from tests.api.test_submit import body, problem
from tuner.errors import InvalidRequest, TraceChanged
from tuner.request import WorkloadSpec

ROWS = [(second, 40 + second % 20, 16) for second in range(0, 60, 2)]
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02},{prompt},{output}\n" for second, prompt, output in ROWS
)
CSV = {"content-type": "text/csv"}


@pytest.fixture
def client(stores: Stores) -> Iterator[TestClient]:
    with TestClient(create_app(stores), base_url="http://127.0.0.1:8710") as client:
        yield client


def uploaded(client: TestClient, name: str = "monday", content: str = TRACE) -> Any:
    return client.post(f"/v1/workloads?name={name}", content=content, headers=CSV)


def replaying(name: str = "monday", **changes: Any) -> dict[str, Any]:
    """Return a job of two points that replays an uploaded trace."""
    workload = {"scenario": "trace", "trace_file": f"uploaded:{name}", "time_scale": 0.2}
    knobs = {"max_batch": [4, 16], "sm_clock_cap_mhz": [1980]}
    return body(workload=workload, knobs=knobs, budget={"trials": 2}, sla={}) | changes


def test_a_file_is_uploaded_once(client: TestClient, stores: Stores) -> None:
    """The first upload makes it, the same again changes nothing, another under its name is refused (BUG-28)."""
    first = uploaded(client)
    assert (first.status_code, first.headers["location"]) == (201, "/v1/workloads/monday")
    told = first.json()
    assert (told["form"], told["num_rows"], told["duration_s"], told["longest_tokens"]) == ("azure", 30, 58.0, 74)
    assert told["sha256"] == hashlib.sha256(TRACE.encode()).hexdigest()
    again = uploaded(client)
    assert (again.status_code, again.json()) == (200, told)
    status, title, words = problem(uploaded(client, content=TRACE.replace(",16", ",17")))
    assert (status, title) == (409, "name in use")
    assert "choose another name, or delete that one first" in words
    assert [entry.action for entry in stores.audit.list(limit=9)] == ["workload.create"]


def test_files_are_listed_shown_and_deleted(client: TestClient, stores: Stores) -> None:
    """Lists go on by name, one file is shown by its own, and a deleted one is gone and written down."""
    for name in ("one", "two"):
        uploaded(client, name)
    page = client.get("/v1/workloads?limit=1").json()
    assert ([item["name"] for item in page["items"]], page["next"]) == (["two"], "two")
    rest = client.get("/v1/workloads?limit=1&before=two").json()
    assert (rest["items"], rest["next"]) == ([client.get("/v1/workloads/one").json()], None)
    assert client.delete("/v1/workloads/one").status_code == 204
    assert problem(client.get("/v1/workloads/one"))[:2] == (404, "no such workload")
    assert problem(client.delete("/v1/workloads/one"))[:2] == (404, "no such workload")
    assert stores.audit.list(limit=1)[0].subject == "workload/one"


def test_bad_rows_are_listed(client: TestClient) -> None:
    """A file with faults is refused as a problem that lists its rows, and nothing is stored."""
    answer = uploaded(client, content=TRACE + "noon,1,2\n2023-11-16 18:17:00,0,2\n")
    status, title, words = problem(answer)
    assert (status, title) == (422, "rows that cannot be read")
    assert words == "2 rows cannot be read; row 32, TIMESTAMP is 'noon': give a date and time"
    assert answer.json()["num_errors"] == 2
    assert answer.json()["errors"] == [
        {"row": 32, "column": "TIMESTAMP", "value": "'noon'", "expected": "a date and time"},
        {"row": 33, "column": "ContextTokens", "value": "0", "expected": "1 to 1000000"},
    ]
    assert client.get("/v1/workloads").json() == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [
        ("name=a/b", CSV, 422),
        ("name=", CSV, 422),
        ("", CSV, 422),
        ("name=a", {"content-type": "application/json"}, 415),
        ("name=a", CSV | {"origin": "http://evil.example"}, 403),
    ],
)
def test_uploads_that_are_refused(client: TestClient, query: str, headers: dict[str, str], expected: int) -> None:
    """Names that could be paths, other media and other sites' pages are refused as problems."""
    assert problem(client.post(f"/v1/workloads?{query}", content=TRACE, headers=headers))[0] == expected


def test_a_job_replays_an_uploaded_trace(client: TestClient, stores: Stores, settings: Settings) -> None:
    """The worker writes the trace into its cache and searches under it; the stored job keeps name and hash."""
    told = uploaded(client).json()
    posted = client.post("/v1/jobs", json=replaying())
    assert posted.status_code == 201, posted.json()
    job = stores.jobs.get(posted.json()["id"])
    assert job.request.workload.trace_file == "uploaded:monday"
    assert job.request.workload.trace_sha256 == told["sha256"]
    assert problem(client.delete("/v1/workloads/monday"))[:2] == (409, "workload in use")
    claim = stores.jobs.claim(job.id, "host:1:1", 600.0)
    ended = run_job(stores, claim, settings)
    assert (ended.state, ended.ended_because) == (JobState.FINISHED, "exhausted")
    assert (settings.cache_dir / "workloads" / told["sha256"]).read_text() == TRACE
    assert client.get(f"/v1/jobs/{job.id}/front").json()["points"]
    assert client.get(f"/v1/jobs/{job.id}/explanation").status_code == 200
    assert client.delete("/v1/workloads/monday").status_code == 204


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": {"scenario": "trace", "trace_file": "uploaded:sunday"}}, "no uploaded workload of that name"),
        ({"workload": {"scenario": "trace", "trace_file": "uploaded:../../etc/passwd"}}, "no uploaded workload of"),
        ({"workload": {"scenario": "trace", "trace_file": "uploaded:prompts"}}, "of form prompts, without times"),
        ({"workload": {"scenario": "trace", "trace_file": "uploaded:long"}}, "up to 700000 prompt + output tokens"),
        (
            {"workload": {"scenario": "trace", "trace_file": "uploaded:monday", "time_scale": 1e-4}},
            "requests a second is 5172",
        ),
    ],
)
def test_jobs_that_name_a_trace_in_vain(client: TestClient, changes: dict[str, Any], words: str) -> None:
    """Unknown names, prompt files, traces beyond the model's context or of too many requests are refused at once."""
    uploaded(client)
    uploaded(client, "long", TRACE.replace(",40,16", ",600000,100000"))
    client.post("/v1/workloads?name=prompts", content="Why?", headers={"content-type": "text/plain"})
    status, _, told = problem(client.post("/v1/jobs", json=replaying(**changes)))
    assert status == 422
    assert words in told


def test_the_cache_is_never_believed(client: TestClient, stores: Stores, settings: Settings) -> None:
    """A damaged file in the cache is written anew; a trace that went or changed after submission is told (BUG-22)."""
    sha256 = uploaded(client).json()["sha256"]
    spec = WorkloadSpec(scenario="trace", trace_file="uploaded:monday", trace_sha256=sha256)
    found = materialised(spec, stores.workloads, settings.cache_dir)
    path = settings.cache_dir / "workloads" / sha256
    assert (found.trace_file, found.trace_sha256) == (str(path), sha256)
    path.write_text("damaged")
    assert materialised(spec, stores.workloads, settings.cache_dir) == found
    assert path.read_text() == TRACE
    assert [one.name for one in path.parent.iterdir()] == [sha256]
    path.unlink()
    stores.workloads.delete("monday")
    with pytest.raises(InvalidRequest, match="deleted after the job was submitted"):
        materialised(spec, stores.workloads, settings.cache_dir)
    uploaded(client, content=TRACE.replace(",16", ",17"))
    with pytest.raises(TraceChanged, match="not what was submitted"):
        materialised(spec, stores.workloads, settings.cache_dir)


def test_a_schedule_notes_the_hash(client: TestClient, stores: Stores) -> None:
    """A schedule that names an uploaded trace keeps its hash, and the trace stays as long as the schedule does."""
    sha256 = uploaded(client).json()["sha256"]
    posted = {"name": "nightly", "job": replaying(), "cron": "0 2 * * *", "timezone": "Europe/Berlin"}
    answer = client.post("/v1/schedules", json=posted)
    assert answer.status_code == 201, answer.json()
    assert stores.schedules.get("nightly").spec.request.workload.trace_sha256 == sha256
    assert problem(client.delete("/v1/workloads/monday"))[:2] == (409, "workload in use")


def test_a_clipped_trace_is_as_long_as_it_is_clipped_to(client: TestClient) -> None:
    """Requests beyond the model's context are taken where the workload cuts them to fit it."""
    uploaded(client, "long", TRACE.replace(",40,16", ",600000,100000"))
    workload = {"scenario": "trace", "trace_file": "uploaded:long", "time_scale": 0.2}
    clips = {"clip_prompt_tokens": 4096, "clip_output_tokens": 64}
    assert problem(client.post("/v1/jobs", json=replaying(workload=workload)))[0] == 422
    assert client.post("/v1/jobs", json=replaying(workload=workload | clips)).status_code == 201
