"""Jobs over HTTP: those on simulated devices are taken and run, everything else is refused and leaves nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import submit
from api.app import create_app
from api.bodies import MAX_BODY_BYTES
from api.errors import TooManyJobs
from api.job_run import run_job
from api.operator_file import Operator
from api.settings import Settings
from api.stores import Stores
from api.submit import Submissions
from db.job import JobState

JSON = {"content-type": "application/json"}
UNWRITABLE = "'\\ud800' holds a control character or half of a surrogate pair; remove it"
ONLY_SIMULATED = (
    "over HTTP name a simulated device, as simulated:h100-sxm, or one of the operator's: WATTFRONT_OPERATOR_FILE names "
    "none"
)
TWIN = "no file is read for a job over HTTP; use `wattfront tune` for a twin, or choose simulated:h100-sxm"


def body(**changes: Any) -> dict[str, Any]:
    """Return a job of seconds: four points of a small model on one H100."""
    return {
        "model": "llama-3.1-8b",
        "device": "simulated:h100-sxm",
        "sla": {"ttft_p99_ms": 500, "tpot_p99_ms": 30},
        "workload": {"prompt_tokens": "32-64", "output_tokens": "16-32"},
        "knobs": {"max_batch": [4, 16], "sm_clock_cap_mhz": [1200, 1980]},
        "window": {"warmup_s": 1, "window_s": 2, "min_requests": 4, "max_window_s": 10, "idle_s": 0},
        "budget": {"trials": 4},
    } | changes


@pytest.fixture
def client(stores: Stores) -> Iterator[TestClient]:
    with TestClient(create_app(stores), base_url="http://127.0.0.1:8710") as client:
        yield client


def problem(answer: Any) -> tuple[int, str, str]:
    """Return status, title and detail of an answer that must be a problem."""
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert (told["type"], told["status"]) == ("about:blank", answer.status_code)
    return answer.status_code, told["title"], told["detail"]


def test_a_posted_job_is_run_and_labelled(client: TestClient, stores: Stores, settings: Settings) -> None:
    """A posted job waits in the queue, a worker runs it, and its front says that it is simulated."""
    answer = client.post("/v1/jobs", json=body(name="what if"))
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/jobs/{job['id']}")
    assert (job["state"], job["engine"], job["name"]) == ("queued", "simulated", "what if")
    assert client.get(answer.headers["location"]).json() == job
    claim = stores.jobs.claim_next("host:1:1", 60.0)
    assert claim is not None
    run_job(stores, claim, settings)
    ended = client.get(answer.headers["location"]).json()
    assert (ended["state"], ended["trials"], ended["device_uuid"]) == ("finished", {"complete": 4}, "SIM-H100-SXM-X1")
    points = client.get(f"/v1/jobs/{job['id']}/front").json()["points"]
    assert points
    assert {(point["energy_method"], point["is_estimate"]) for point in points} == {("simulated", True)}
    assert {set(point["knobs"]) >= {"max_batch", "sm_clock_cap_mhz"} for point in points} == {True}


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"device": "cpu"}, f"device is 'cpu': {ONLY_SIMULATED}"),
        ({"device": "auto"}, f"device is 'auto': {ONLY_SIMULATED}"),
        ({"device": "GPU-1,simulated:b200"}, f"device is 'GPU-1,simulated:b200': {ONLY_SIMULATED}"),
        ({"device": "simulated:/etc/twin.json"}, f"device is 'simulated:/etc/twin.json': {TWIN}"),
        ({"device": "simulated:twin.json:8@aic"}, f"device is 'simulated:twin.json:8@aic': {TWIN}"),
        (
            {"device": "simulated:h100-sxm:5000"},
            "'simulated:h100-sxm:5000' asks for '5000' GPUs; give 1 to 4608",
        ),
        ({"engine": "embedded"}, "engine is 'embedded': "),
        (
            {"device": "simulated:b200:4608", "knobs": {"max_batch": [100_000]}},
            "knobs.max_batch is 460800000: over HTTP give at most 100000",
        ),
        (
            {"workload": {"scenario": "server", "rate_per_s": 100_000}},
            "workload.rate_per_s is 100000: over HTTP give at most 1538",
        ),
        ({"engine": "vllm; rm -rf /"}, "engine is 'vllm; rm -rf /': "),
        (
            {"model": "/etc/passwd"},
            "model is '/etc/passwd': over HTTP name one of the catalogue, as ",
        ),
        ({"model": "~/model/config.json"}, "model is '~/model/config.json': over HTTP name one of the catalogue, as "),
        (
            {"model": "llama-3.1-9b"},
            "model is 'llama-3.1-9b': over HTTP name one of the catalogue, as llama-3.1-8b, ",
        ),
        ({"model": "https://example.org/m"}, "model is 'https://example.org/m': over HTTP name one of the catalogue, "),
        ({"model": " "}, "model is ' ': name a model"),
        ({"model": None}, "model is None: input should be a valid string"),
        (
            {"quality": {"tasks": ["/etc"]}},
            "quality.tasks is ['/etc']: a job over HTTP runs no tasks, which read files and bring code; leave them out",
        ),
        (
            {"quality": {"max_kl": 0.01}},
            "quality.max_kl is 0.01: NVIDIA H100 SXM (simulated) computes no answers that could be judged; remove it",
        ),
        (
            {"workload": {"scenario": "trace", "trace_file": "/etc/passwd"}},
            "workload.trace_file is '/etc/passwd': no file is read for a job over HTTP; use `wattfront tune`, or "
            "upload it (POST /v1/workloads) and name it as uploaded:NAME",
        ),
        ({"workload": {"scenario": "trace"}}, "workload.trace_file is None: trace needs it; name it"),
        ({"workload": {"scenario": "server"}}, "workload.rate_per_s is None: server needs it; name it"),
        ({"workload": {"prompt_tokens": "900000"}}, "workload is 'up to 900048 prompt + output tokens': "),
        ({"workload": {"prompt_tokens": "x" * 5000}}, f"workload.prompt_tokens is '{'x' * 900}"),
        ({"budget": {"trials": 1001}}, "budget.trials is 1001: over HTTP give at most 1000"),
        (
            {"repeats": {"windows": 100, "finalists": 9}, "budget": {"trials": 200}},
            "repeats.windows is 100: with 9 finalists and their baselines that makes 1300 windows in all; over HTTP "
            "give at most 1000",
        ),
        (
            {"sampler": "gp", "budget": {"trials": 201}},
            "budget.trials is 201: over HTTP give sampler gp at most 200",
        ),
        ({"budget": {"trials": 0}}, "budget.trials is 0: give 1 to 100000"),
        ({"budget": {"trials": "4"}}, "budget.trials is '4': input should be a valid integer"),
        ({"window": {"window_s": 3601}}, "window.max_window_s is 3601: over HTTP give at most 3600"),
        ({"window": {"warmup_s": 3601}}, "window.max_warmup_s is 3601: over HTTP give at most 3600"),
        ({"knobs": {"max_batch": [4, 4]}}, "knobs.max_batch is [4, 4]: remove the repeated value"),
        ({"knobs": {"max_batch": []}}, "knobs.max_batch is []: give at least one value"),
        ({"knobs": {"fan": [1]}}, "knobs is 'fan': there is no such knob; "),
        (
            {"knobs": {"max_batch": list(range(1, 1001)), "prefill_chunk": list(range(64, 1064))}},
            "knobs is '1000000 points': over HTTP give values for at most 100000",
        ),
        ({"sla": {"ttft_p42_ms": 1}}, "sla is 'ttft_p42_ms': choose "),
        ({"sla": {"ttft_p99_ms": -1}}, "sla.ttft_p99_ms is -1: give a positive number"),
        ({"shell": "id"}, "shell is not a field of a job; there are model, "),
        ({"budget": {"hours": 1}}, "budget.hours is not a field of budget; there are trials, minutes"),
        ({"seed": -1}, "seed is -1: input should be greater than or equal to 0"),
        ({"name": "x" * 201}, "name is 'xxxxxxxx"),
        ({"name": "a\x1b[2Jb"}, "'a\\x1b[2Jb' holds a control character"),
    ],
)
def test_a_job_that_may_not_be_is_refused(
    client: TestClient, stores: Stores, changes: dict[str, Any], detail: str
) -> None:
    """What is not simulated, comes from a file, costs too much or is no job gets 422 with the field's name."""
    status, title, words = problem(client.post("/v1/jobs", json=body(**changes)))
    assert (status, title, words[: len(detail)]) == (422, "request refused", detail)
    assert len(words) <= 1_000
    assert stores.jobs.list(limit=1) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"repeats": {"windows": 100, "finalists": 1000}},
        {"repeats": {"windows": 10, "finalists": 60}, "budget": {"trials": 300}},
        {"sampler": "gp", "budget": {"trials": 200}},
        {"budget": {"trials": 1000}},
    ],
    ids=["few points", "within", "gp", "no repeats"],
)
def test_repeats_within_the_bound_are_taken(stores: Stores, changes: dict[str, Any]) -> None:
    """Windows of the finals count as trials do, of no more finalists than there are trials; up to 1000 are taken."""
    submit.check(submit.read_request(body(**changes)), Operator(), stores.workloads)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (b"", (400, "not JSON", "the body is not JSON: Expecting value, line 1, column 1")),
        (b"{", (400, "not JSON", "the body is not JSON: Expecting property name enclosed in double quotes, line 1, ")),
        (b"model: llama-3.1-8b", (400, "not JSON", "the body is not JSON: Expecting value, line 1, column 1")),
        (b'{"model": "\xff"}', (400, "not JSON", "the body is not UTF-8 text (byte 11)")),
        (b'{"seed": NaN}', (400, "not JSON", "NaN is not JSON; give a number")),
        (b"[" * 200_000, (400, "not JSON", "the body is nested too deeply")),
        (b"[]", (422, "request refused", 'a job is an object, as in {"model": ')),
        (b"null", (422, "request refused", 'a job is an object, as in {"model": ')),
        (b"{}", (422, "request refused", "model is missing; name it")),
        (b'{"model": "a", "model": "b"}', (422, "request refused", "'model' is given twice; keep one")),
        (b'{"seed": 1' + b"0" * 400 + b"}", (422, "request refused", "100000000000000000... has more than 18 digits")),
        (b'{"model": "\\ud800"}', (422, "request refused", UNWRITABLE)),
        (
            b'{"model": "a", "\\ud800": 1}',
            (422, "request refused", UNWRITABLE),
        ),
        (b'{"model": "a", "budget": {"minutes": 1e999}}', (422, "request refused", "budget.minutes is inf: ")),
    ],
)
def test_what_is_no_job_in_json_is_refused(
    client: TestClient, stores: Stores, text: bytes, refusal: tuple[int, str, str]
) -> None:
    """Broken, deep, ambiguous or outsized JSON is answered with what is wrong with it, and stores nothing."""
    status, title, words = problem(client.post("/v1/jobs", content=text, headers=JSON))
    assert (status, title, words[: len(refusal[2])]) == refusal
    assert stores.jobs.list(limit=1) == []


@pytest.mark.parametrize("media", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "json"])
def test_only_json_is_taken(client: TestClient, stores: Stores, media: str) -> None:
    """A form or plain text, which any web page may post, gets 415 though its text be a job."""
    answer = client.post("/v1/jobs", content=json.dumps(body()), headers={"content-type": media})
    words = f"Content-Type is {media!r}: the body must be application/json; say so in the header"
    assert problem(answer) == (415, "wrong media type", words)
    assert stores.jobs.list(limit=1) == []


def test_json_may_name_its_encoding(client: TestClient) -> None:
    """A parameter of the media type, in any case, changes nothing."""
    media = {"content-type": "Application/JSON; charset=utf-8"}
    assert client.post("/v1/jobs", content=json.dumps(body()), headers=media).status_code == 201


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:3000", "null"])
def test_a_page_of_another_site_may_not_post(client: TestClient, stores: Stores, origin: str) -> None:
    """A browser names the page's origin, and any but ours gets 403 and no leave to ask again."""
    answer = client.post("/v1/jobs", json=body(), headers={"origin": origin})
    words = f"Origin is {origin!r}: pages of other sites may not post here; use a program, as curl"
    assert problem(answer) == (403, "foreign origin", words)
    asked = {"origin": origin, "access-control-request-method": "POST"}
    assert client.options("/v1/jobs", headers=asked).status_code == 405
    assert stores.jobs.list(limit=1) == []


def test_a_page_of_ours_may_post(client: TestClient) -> None:
    """A post whose origin is the host it goes to is taken."""
    assert client.post("/v1/jobs", json=body(), headers={"origin": "http://127.0.0.1:8710"}).status_code == 201


def test_a_foreign_host_may_not_post(client: TestClient, stores: Stores) -> None:
    """A name elsewhere that resolves to loopback gets 400 (DNS rebinding)."""
    assert client.post("/v1/jobs", json=body(), headers={"host": "evil.example"}).status_code == 400
    assert stores.jobs.list(limit=1) == []


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_body_is_not_read_to_its_end(client: TestClient, is_chunked: bool) -> None:
    """More than the bound gets 413, whether or not the length was told before."""
    chunks = [b" " * 1000] * (MAX_BODY_BYTES // 1000 + 1)
    content = iter(chunks) if is_chunked else b"".join(chunks)
    refusal = (413, "body too large", f"the body is larger than {MAX_BODY_BYTES} bytes; send less")
    assert problem(client.post("/v1/jobs", content=content, headers=JSON)) == refusal


def test_a_body_of_the_bound_is_read(client: TestClient) -> None:
    """Blanks up to the very bound are a body like any other."""
    text = json.dumps(body()).encode().ljust(MAX_BODY_BYTES)
    assert client.post("/v1/jobs", content=text, headers=JSON).status_code == 201


def test_a_repeated_key_gives_the_first_job(client: TestClient, stores: Stores) -> None:
    """The same key and job again are answered with 200 and the job that is there, also once it has ended."""
    key = {b"idempotency-key": "a b/c é".encode()}
    first = client.post("/v1/jobs", json=body(), headers=key)
    again = client.post("/v1/jobs", json=body(engine="simulated"), headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.headers["location"] == again.headers["location"]
    stores.jobs.request_cancel(first.json()["id"])
    assert client.post("/v1/jobs", json=body(), headers=key).json()["state"] == "cancelled"
    assert len(stores.jobs.list(limit=9)) == 1


def test_a_key_of_another_job_is_refused(client: TestClient, stores: Stores) -> None:
    """The same key with a job that asks for something else gets 409 and the id of the first."""
    first = client.post("/v1/jobs", json=body(), headers={"idempotency-key": "night"}).json()
    other = client.post("/v1/jobs", json=body(seed=1), headers={"idempotency-key": "night"})
    words = (
        f"Idempotency-Key 'night' made job {first['id']}, which asks for something else; use a new key for another job"
    )
    assert problem(other) == (409, "idempotency key in use", words)
    assert [first["id"]] == [job.id for job in stores.jobs.list(limit=9)]


@pytest.mark.parametrize("length", [0, 256])
def test_a_key_has_its_bounds(client: TestClient, stores: Stores, length: int) -> None:
    """An empty key and an endless one are refused."""
    answer = client.post("/v1/jobs", json=body(), headers={"idempotency-key": "k" * length})
    assert problem(answer) == (422, "request refused", f"Idempotency-Key has {length} characters; give 1 to 255")
    assert stores.jobs.list(limit=1) == []


def test_jobs_without_a_key_are_apart(client: TestClient) -> None:
    """Two posts of one job without a key are two jobs."""
    made = [client.post("/v1/jobs", json=body()) for _ in range(2)]
    assert [answer.status_code for answer in made] == [201, 201]
    assert len({answer.json()["id"] for answer in made}) == 2


def test_a_full_queue_takes_no_more(client: TestClient, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many jobs waiting and running as may be the next gets 429, and one that ends makes room."""
    monkeypatch.setattr(submit, "MAX_OPEN_JOBS", 2)
    waiting = client.post("/v1/jobs", json=body()).json()["id"]
    assert stores.jobs.claim_next("host:1:1", 60.0) is not None
    client.post("/v1/jobs", json=body())
    full = client.post("/v1/jobs", json=body())
    words = (
        "2 jobs wait or run, and more are not taken; wait until some have ended, or end some with "
        "`wattfront cancel JOB`; a worker must be running"
    )
    assert problem(full) == (429, "too many open jobs", words)
    assert [job.state for job in stores.jobs.list(limit=9)] == [JobState.QUEUED, JobState.RUNNING]
    newest = stores.jobs.list(limit=1)[0].id
    assert newest != waiting
    stores.jobs.request_cancel(newest)
    assert client.post("/v1/jobs", json=body()).status_code == 201


def test_a_crowd_does_not_get_past_the_bound(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many posts at once exactly as many are taken as there is room for."""
    monkeypatch.setattr(submit, "MAX_OPEN_JOBS", 3)
    submissions, job, refused = Submissions(stores, Operator()), body(), []

    def post() -> None:
        try:
            submissions.submit(job, None, actor="local")
        except TooManyJobs as refusal:
            refused.append(refusal)

    crowd = [threading.Thread(target=post) for _ in range(8)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert (len(stores.jobs.list(limit=9)), len(refused)) == (3, 5)


def test_a_shape_is_taken_by_its_hugging_face_id(client: TestClient) -> None:
    """A model may be named as its makers do; the job keeps the name that was given."""
    answer = client.post("/v1/jobs", json=body(model="meta-llama/Llama-3.1-8B-Instruct"))
    assert (answer.status_code, answer.json()["model"]) == (201, "meta-llama/Llama-3.1-8B-Instruct")


def test_the_schema_tells_of_posting(client: TestClient) -> None:
    """The OpenAPI document has every field of a job in its place, an example that is taken, and every refusal."""
    document = client.get("/openapi.json").json()
    post = document["paths"]["/v1/jobs"]["post"]
    media = post["requestBody"]["content"]["application/json"]
    assert media["schema"]["properties"]["budget"]["properties"]["trials"]["default"] == 24
    assert "$ref" not in json.dumps(media["schema"])
    assert client.post("/v1/jobs", json=media["example"]).status_code == 201
    refusals = {"400", "401", "403", "409", "413", "414", "415", "422", "429", "431", "503"}
    assert {"200", "201", *refusals} == set(post["responses"])


def test_a_job_names_what_the_operator_named(stores: Stores, tmp_path: Path) -> None:
    """A device and a model of the operator's file are taken by name, clocks where they may be set; no path shows."""
    file = tmp_path / "operator.yaml"
    file.write_text(
        "devices: {gpu0: {device: GPU-8f6b, allow_device_control: true}}\nmodels: {chat: /models/secret/llama}\n"
    )
    app = create_app(stores, Settings(operator_file=file))
    asked = {"model": "chat", "device": "gpu0", "allow_device_control": True, "knobs": {"max_batch": [4, 8]}}
    with TestClient(app, base_url="http://127.0.0.1:8710") as client:
        answer = client.post("/v1/jobs", json=asked)
        assert (answer.status_code, answer.json()["device"], answer.json()["model"]) == (201, "gpu0", "chat")
        assert answer.json()["engine"] == "embedded"
        refused = problem(client.post("/v1/jobs", json=asked | {"model": "/models/secret/llama"}))
    words = "model is '/models/secret/llama': over HTTP name one of the operator's models: chat"
    assert refused == (422, "request refused", words)
    assert "GPU-8f6b" not in answer.text
