"""The table of bad requests, each with the exact answer: status, title and the sentence that says what to correct."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.testclient import TestClient

from api.submit import PostedJob

JSON = {"content-type": "application/json"}
JOB: dict[str, Any] = {"model": "llama-3.1-8b", "device": "simulated:h100-sxm"}
JOBS = "/v1/jobs"

# Sentences and parts of them that several answers have.
KEY_REMEDY = "; send `Authorization: Bearer KEY` with a key of `wattfront keys create NAME --scope read`"
HOSTS = (
    "this service answers to 127.0.0.1, [::1], localhost; ask for one of them, or let the operator add "
    "the name to WATTFRONT_ALLOWED_HOSTS"
)
FOREIGN = "pages of other sites may not post here; use a program, as curl"
JOB_IDS = "give an id from the list of jobs, or its first 4 characters"
CATALOGUE = "over HTTP name one of the catalogue, as"
DEVICES = "over HTTP name a simulated device, as simulated:h100-sxm, or one of the operator's: rack3-gpu0"
CONTROL = "holds a control character or half of a surrogate pair; remove it"
OBJECT = 'a job is an object, as in {"model": "llama-3.1-8b", "device": "simulated:h100-sxm"}'
CONFIG = "; use `wattfront tune` for a config.json"
FIELDS = f"there are {', '.join(PostedJob.model_fields)}"

ENGINES = "this version has embedded, simulated, vllm, sglang, trtllm, dynamo, llamacpp, openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One bad request and its answer."""

    name: str
    method: str = "GET"
    path: str = JOBS
    #: Fields that a good job has otherwise; None sends `content`.
    changes: Mapping[str, Any] | None = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The key that is sent: of one of the scopes, a word of its own, or none.
    key: str | None = "tune"
    status: int
    title: str
    detail: str

    def send(self, client: TestClient, keys: Mapping[str, str]) -> Any:
        """Send the request and return the answer."""
        headers = dict(self.headers)
        if self.key is not None:
            headers.setdefault("authorization", f"Bearer {keys.get(self.key, self.key)}")
        content = self.content if self.changes is None else json.dumps(JOB | dict(self.changes)).encode()
        if content is not None:
            headers = JSON | headers
        return client.request(self.method, self.path, content=content, headers=headers)


def job(name: str, detail: str, /, **changes: Any) -> Case:
    """Return a posted job with wrong fields."""
    return Case(name=name, method="POST", changes=changes, status=422, title="request refused", detail=detail)


def text(name: str, content: bytes, status: int, detail: str) -> Case:
    """Return a posted body that is no job."""
    title = {400: "not JSON", 413: "body too large", 422: "request refused"}[status]
    return Case(name=name, method="POST", content=content, status=status, title=title, detail=detail)


def get(name: str, path: str, status: int, title: str, detail: str, **more: Any) -> Case:
    """Return a wrong question."""
    return Case(name=name, path=path, status=status, title=title, detail=detail, **more)


CASES: tuple[Case, ...] = (
    # who asks
    get("no key", JOBS, 401, "key needed", f"no key was sent{KEY_REMEDY}", key=None),
    get(
        "a made-up key",
        JOBS,
        401,
        "key needed",
        f"the key is wrong, revoked or expired{KEY_REMEDY}",
        key="wf_0123456789ab_" + "0" * 64,
    ),
    get(
        "a key of another make",
        JOBS,
        401,
        "key needed",
        f"the key is wrong, revoked or expired{KEY_REMEDY}",
        key="sk-live-123",
    ),
    get(
        "an endless key",
        JOBS,
        401,
        "key needed",
        f"the key is wrong, revoked or expired{KEY_REMEDY}",
        key="wf_" + "a" * 5_000,
    ),
    get("a revoked key", JOBS, 401, "key needed", f"the key is wrong, revoked or expired{KEY_REMEDY}", key="revoked"),
    get("an expired key", JOBS, 401, "key needed", f"the key is wrong, revoked or expired{KEY_REMEDY}", key="expired"),
    get(
        "a password",
        JOBS,
        401,
        "key needed",
        f"the key is wrong, revoked or expired{KEY_REMEDY}",
        key=None,
        headers={"authorization": "Basic dXNlcjpwYXNz"},
    ),
    get("a key in the query", "/v1/jobs?key=wf_1_2", 401, "key needed", f"no key was sent{KEY_REMEDY}", key=None),
    get(
        "a wrong cookie",
        JOBS,
        401,
        "key needed",
        f"the key is wrong, revoked or expired{KEY_REMEDY}",
        key=None,
        headers={"cookie": "wattfront_key=wf_1_2"},
    ),
    get(
        "the audit log by tune",
        "/v1/audit",
        403,
        "scope too small",
        "the key 'tune' has scope tune, and this needs admin; use a key of `wattfront keys create NAME --scope admin`",
    ),
    Case(
        name="a job by read",
        method="POST",
        changes={},
        key="read",
        status=403,
        title="scope too small",
        detail=(
            "the key 'read' has scope read, and this needs tune; use a key of `wattfront keys create NAME --scope tune`"
        ),
    ),
    Case(
        name="a cancel by read",
        method="POST",
        path="/v1/jobs/0000/cancel",
        key="read",
        status=403,
        title="scope too small",
        detail=(
            "the key 'read' has scope read, and this needs tune; use a key of `wattfront keys create NAME --scope tune`"
        ),
    ),
    # from where
    get(
        "a foreign host",
        JOBS,
        400,
        "unknown host",
        f"Host is 'evil.example': {HOSTS}",
        headers={"host": "evil.example"},
    ),
    get(
        "a host that ends in ours",
        JOBS,
        400,
        "unknown host",
        f"Host is 'localhost.evil.example': {HOSTS}",
        headers={"host": "localhost.evil.example"},
    ),
    get("no host", JOBS, 400, "unknown host", f"Host is '': {HOSTS}", headers={"host": ""}),
    Case(
        name="a foreign origin",
        method="POST",
        changes={},
        headers={"origin": "http://evil.example"},
        status=403,
        title="foreign origin",
        detail=f"Origin is 'http://evil.example': {FOREIGN}",
    ),
    Case(
        name="an origin without a name",
        method="POST",
        changes={},
        headers={"origin": "null"},
        status=403,
        title="foreign origin",
        detail=f"Origin is 'null': {FOREIGN}",
    ),
    Case(
        name="another port's page",
        method="POST",
        changes={},
        headers={"origin": "http://localhost:3000"},
        status=403,
        title="foreign origin",
        detail=f"Origin is 'http://localhost:3000': {FOREIGN}",
    ),
    Case(
        name="a cross-site fetch",
        method="POST",
        changes={},
        headers={"sec-fetch-site": "cross-site"},
        status=403,
        title="foreign origin",
        detail=f"Sec-Fetch-Site is 'cross-site': {FOREIGN}",
    ),
    Case(
        name="a cross-site cancel",
        method="POST",
        path="/v1/jobs/0000/cancel",
        headers={"origin": "http://evil.example"},
        status=403,
        title="foreign origin",
        detail=f"Origin is 'http://evil.example': {FOREIGN}",
    ),
    # sizes
    get(
        "endless headers",
        JOBS,
        431,
        "headers too large",
        "the header fields have 40196 bytes; send at most 32000",
        headers={"x-long": "x" * 40_000},
    ),
    get(
        "an endless query",
        f"/v1/jobs?name={'x' * 9_000}",
        414,
        "query too long",
        "path and query have 9013 bytes; send at most 8000",
    ),
    get(
        "an endless path",
        f"/v1/jobs/{'x' * 9_000}",
        414,
        "query too long",
        "path and query have 9009 bytes; send at most 8000",
    ),
    text("a large body", b" " * 1_000_001, 413, "the body is larger than 1000000 bytes; send less"),
    Case(
        name="a body told to be huge",
        method="POST",
        content=b"{}",
        headers={"content-length": "99999999999"},
        status=413,
        title="body too large",
        detail="the body is larger than 64000000 bytes; send less",
    ),
    # which resource
    get(
        "an unknown path",
        "/v1/nothing",
        404,
        "not found",
        "there is nothing at '/v1/nothing'; /openapi.json lists what there is",
    ),
    get(
        "a path up",
        "/static/../../etc/passwd",
        404,
        "not found",
        "there is nothing at '/etc/passwd'; /openapi.json lists what there is",
    ),
    get(
        "an encoded path up",
        "/static/%2e%2e/%2e%2e/etc/passwd",
        404,
        "not found",
        "there is nothing at '/static/../../etc/passwd'; /openapi.json lists what there is",
    ),
    get(
        "a NUL in a path", "/v1/jobs/a%00b", 400, "unreadable URL", "path or query holds a control character; remove it"
    ),
    get(
        "a line end in a query",
        "/v1/jobs?name=a%0d%0ab",
        400,
        "unreadable URL",
        "path or query holds a control character; remove it",
    ),
    get("an unknown job", "/v1/jobs/0000", 404, "no such job", f"there is no job '0000'; {JOB_IDS}"),
    get("a job's id too short", "/v1/jobs/0", 404, "no such job", f"there is no job '0'; {JOB_IDS}"),
    get(
        "SQL as an id",
        "/v1/jobs/0000'%20OR%20'1'='1",
        404,
        "no such job",
        f"there is no job \"0000' OR '1'='1\"; {JOB_IDS}",
    ),
    get("a pattern as an id", "/v1/jobs/%25%25%25%25", 404, "no such job", f"there is no job '%%%%'; {JOB_IDS}"),
    get(
        "an id in another script",
        "/v1/jobs/%D9%A1%D9%A2%D9%A3%D9%A4",
        404,
        "no such job",
        f"there is no job '١٢٣٤'; {JOB_IDS}",
    ),
    get(
        "an unknown device",
        "/v1/devices/GPU-0",
        404,
        "no such device",
        "device GPU-0 was never stored: no job has run on it",
    ),
    Case(
        name="deleting jobs",
        method="DELETE",
        status=405,
        title="method not allowed",
        detail="DELETE is not possible at '/v1/jobs'; use GET, POST",
    ),
    Case(
        name="putting a job",
        method="PUT",
        path="/v1/jobs/0000",
        status=405,
        title="method not allowed",
        detail="PUT is not possible at '/v1/jobs/0000'; use GET",
    ),
    Case(
        name="cancelling by GET",
        path="/v1/jobs/0000/cancel",
        status=405,
        title="method not allowed",
        detail="GET is not possible at '/v1/jobs/0000/cancel'; use POST",
    ),
    Case(
        name="cancelling an unknown job",
        method="POST",
        path="/v1/jobs/0000/cancel",
        status=404,
        title="no such job",
        detail=f"there is no job '0000'; {JOB_IDS}",
    ),
    # questions
    get(
        "a limit of nothing",
        "/v1/jobs?limit=0",
        422,
        "request refused",
        "query parameter limit is '0': input should be greater than or equal to 1",
    ),
    get(
        "two page sizes",
        "/v1/jobs?limit=1&state=queued&limit=2",
        422,
        "request refused",
        "query parameter limit is given 2 times; give it once",
    ),
    get(
        "three limits on one latency",
        "/v1/recommendations?model=m&device=d&tpot_p99_ms=1&tpot_p99_ms=2&tpot_p99_ms=3",
        422,
        "request refused",
        "query parameter tpot_p99_ms is given 3 times; give it once",
    ),
    get(
        "a limit in words",
        "/v1/jobs?limit=many",
        422,
        "request refused",
        "query parameter limit is 'many': input should be a valid integer, unable to parse string as an integer",
    ),
    get(
        "a limit that is no number",
        "/v1/jobs?limit=nan",
        422,
        "request refused",
        "query parameter limit is 'nan': input should be a valid integer, unable to parse string as an integer",
    ),
    get(
        "a huge limit",
        f"/v1/jobs?limit={'9' * 400}",
        422,
        "request refused",
        (
            "query parameter limit is "
            "'9999999999999999999999999999999999999...99999999999999999999999999999999999999': input should be "
            "less than or equal to 500"
        ),
    ),
    get(
        "an unknown state",
        "/v1/jobs?state=lost",
        422,
        "request refused",
        "query parameter state is 'lost': input should be 'queued', 'running', 'finished', 'failed' or 'cancelled'",
    ),
    get("a cursor of no job", "/v1/jobs?before=0000", 404, "no such job", f"there is no job '0000'; {JOB_IDS}"),
    get(
        "a long cursor",
        f"/v1/jobs?before={'a' * 65}",
        422,
        "request refused",
        (
            "query parameter before is 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa': "
            "string should have at most 64 characters"
        ),
    ),
    get(
        "a cursor of the audit log",
        "/v1/audit?before=-1",
        422,
        "request refused",
        "query parameter before is '-1': input should be greater than or equal to 1",
        key="admin",
    ),
    get(
        "a huge cursor",
        "/v1/audit?before=9223372036854775808",
        422,
        "request refused",
        "query parameter before is '9223372036854775808': input should be less than or equal to 2147483647",
        key="admin",
    ),
    # bodies
    Case(
        name="plain text",
        method="POST",
        changes={},
        headers={"content-type": "text/plain"},
        status=415,
        title="wrong media type",
        detail="Content-Type is 'text/plain': the body must be application/json; say so in the header",
    ),
    Case(
        name="a form",
        method="POST",
        content=b"model=a",
        headers={"content-type": "application/x-www-form-urlencoded"},
        status=415,
        title="wrong media type",
        detail=(
            "Content-Type is 'application/x-www-form-urlencoded': the body must be application/json; say so in "
            "the header"
        ),
    ),
    Case(
        name="no media type",
        method="POST",
        changes={},
        headers={"content-type": ""},
        status=415,
        title="wrong media type",
        detail="Content-Type is '': the body must be application/json; say so in the header",
    ),
    text("nothing", b"", 400, "the body is not JSON: Expecting value, line 1, column 1"),
    text(
        "half an object",
        b"{",
        400,
        "the body is not JSON: Expecting property name enclosed in double quotes, line 1, column 2",
    ),
    text("YAML", b"model: llama-3.1-8b", 400, "the body is not JSON: Expecting value, line 1, column 1"),
    text("Latin-1", b'{"model": "\xff"}', 400, "the body is not UTF-8 text (byte 11)"),
    text(
        "a byte order mark",
        b"\xef\xbb\xbf{}",
        400,
        "the body is not JSON: Unexpected UTF-8 BOM (decode using utf-8-sig), line 1, column 1",
    ),
    text("NaN", b'{"seed": NaN}', 400, "NaN is not JSON; give a number"),
    text("minus infinity", b'{"seed": -Infinity}', 400, "-Infinity is not JSON; give a number"),
    text("a deep nest", b"[" * 200_000, 400, "the body is nested too deeply; no field is deeper than four levels"),
    text("a list", b"[]", 422, OBJECT),
    text("a word", b'"job"', 422, OBJECT),
    text("an empty job", b"{}", 422, "model is missing; name it, as in `model: smollm2-135m`"),
    text("a field given twice", b'{"model": "a", "model": "b"}', 422, "'model' is given twice; keep one"),
    text(
        "a field of a block given twice",
        b'{"budget": {"trials": 1, "trials": 2}}',
        422,
        "'trials' is given twice; keep one",
    ),
    text(
        "a number of many digits",
        b'{"seed": 1' + b"0" * 400 + b"}",
        422,
        "100000000000000000... has more than 18 digits; give a smaller number",
    ),
    text("half a surrogate pair", b'{"model": "\\ud800"}', 422, f"'\\ud800' {CONTROL}"),
    text("a NUL", b'{"model": "a\\u0000"}', 422, f"'a\\x00' {CONTROL}"),
    text(
        "more than a float holds",
        b'{"model": "a", "budget": {"minutes": 1e999}}',
        422,
        "budget.minutes is inf: input should be a finite number",
    ),
    # jobs: types and ranges
    job("a number for a text", "model is 8: input should be a valid string", model=8),
    job("a text for a number", "budget.trials is '4': input should be a valid integer", budget={"trials": "4"}),
    job("a truth for a number", "seed is True: input should be a valid integer", seed=True),
    job(
        "a fraction for a whole number", "budget.trials is 1.5: input should be a valid integer", budget={"trials": 1.5}
    ),
    job(
        "an object for a list",
        "knobs.max_batch is {'4': 4}: input should be a valid list",
        knobs={"max_batch": {"4": 4}},
    ),
    job("a list for a block", "budget is [1]: input should be a valid dictionary or instance of BudgetIn", budget=[1]),
    job("a list in a list", "knobs.max_batch.0 is [4]: input should be a valid integer", knobs={"max_batch": [[4]]}),
    job("nothing for a text", "model is None: input should be a valid string", model=None),
    job("no trials", "budget.trials is 0: give 1 to 100000", budget={"trials": 0}),
    job("too many trials", "budget.trials is 1001: over HTTP give at most 1000", budget={"trials": 1_001}),
    job("a negative seed", "seed is -1: input should be greater than or equal to 0", seed=-1),
    job(
        "a seed of 32 bits and more",
        "seed is 2147483649: input should be less than or equal to 2147483648",
        seed=2**31 + 1,
    ),
    job(
        "a limit below nothing",
        "sla.ttft_p99_ms is -1: give a positive number of milliseconds",
        sla={"ttft_p99_ms": -1},
    ),
    job(
        "an unknown limit",
        "sla is 'ttft_p42_ms': choose ttft|tpot|itl|e2e _ mean|p50|p90|p95|p99 _ms, as in ttft_p99_ms",
        sla={"ttft_p42_ms": 1},
    ),
    job("an unknown field", f"shell is not a field of a job; {FIELDS}", shell="id"),
    job(
        "an unknown field of a block",
        "budget.hours is not a field of budget; there are trials, minutes, device_hours, joules, plateau_trials",
        budget={"hours": 1},
    ),
    job(
        "an unknown knob",
        (
            "knobs is 'fan': there is no such knob; the engine has max_batch, precision, prefill_chunk, "
            "kv_precision, policy, max_prefill_fraction, tensor_parallel, pipeline_parallel, data_parallel, "
            "expert_parallel, prefill_gpus, a device sm_clock_cap_mhz, power_cap_w, cpu_clock_cap_mhz"
        ),
        knobs={"fan": [1]},
    ),
    job("a knob without values", "knobs.max_batch is []: give at least one value", knobs={"max_batch": []}),
    job(
        "a knob's value given twice",
        "knobs.max_batch is [4, 4]: remove the repeated value",
        knobs={"max_batch": [4, 4]},
    ),
    job(
        "too many points",
        "knobs is '1000000 points': over HTTP give values for at most 100000",
        knobs={"max_batch": list(range(1, 1001)), "prefill_chunk": list(range(64, 1064))},
    ),
    job("a priority out of range", "priority is 101: input should be less than or equal to 100", priority=101),
    job("a priority in words", "priority is 'high': input should be a valid integer", priority="high"),
    job(
        "a name of many letters",
        "name is 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...': give at most 200 characters",
        name="x" * 201,
    ),
    job("a name with an escape sequence", f"'a\\x1b[2Jb' {CONTROL}", name="a\x1b[2Jb"),
    job("a window of a day", "window.max_window_s is 86400: over HTTP give at most 3600", window={"window_s": 86_400}),
    # jobs: what would reach the machine
    job(
        "a path for a model",
        f"model is '/etc/passwd': {CATALOGUE} llama-3.1-8b, llama-3.1-70b, llama-3.3-70b{CONFIG}",
        model="/etc/passwd",
    ),
    job(
        "a path up for a model",
        f"model is '../../etc/passwd': {CATALOGUE} llama-3.1-8b, llama-3.1-70b, llama-3.3-70b{CONFIG}",
        model="../../etc/passwd",
    ),
    job(
        "a URL for a model",
        f"model is 'https://example.org/m': {CATALOGUE} llama-3.1-8b, llama-3.1-70b, llama-3.3-70b{CONFIG}",
        model="https://example.org/m",
    ),
    job(
        "a name that is almost one",
        f"model is 'llama-3.1-9b': {CATALOGUE} llama-3.1-8b, llama-3.1-70b, llama-3.1-405b{CONFIG}",
        model="llama-3.1-9b",
    ),
    job(
        "a name in lookalike letters",
        f"model is 'llama-3.1-8Ь': {CATALOGUE} llama-3.1-8b, llama-3.1-70b, llama-3.1-405b{CONFIG}",
        model="llama-3.1-8Ь",
    ),
    job("a pickle for a model", f"model is 'model.pkl': {CATALOGUE} deepseek-r1{CONFIG}", model="model.pkl"),
    job("a real device", f"device is 'cuda:0': {DEVICES}", device="cuda:0"),
    job("a real device's UUID", f"device is 'GPU-8f6b1c9e': {DEVICES}", device="GPU-8f6b1c9e"),
    job("any device", f"device is 'auto': {DEVICES}", device="auto"),
    job(
        "a file for a device",
        (
            "device is 'simulated:/etc/twin.json': no file is read for a job over HTTP; use `wattfront tune` for "
            "a twin, or choose simulated:h100-sxm"
        ),
        device="simulated:/etc/twin.json",
    ),
    job(
        "an unknown simulated device",
        (
            "there is no simulated 'h900'; choose one of a100-sxm-80, h100-pcie, h100-sxm, h100-nvl, h200-sxm, "
            "b200, b300, gb200-nvl72, gb300-nvl72, vera-rubin-nvl72, l40s, rtx-4090, rtx-pro-6000, or give the "
            "path of a file that `wattfront calibrate` wrote (.json)"
        ),
        device="simulated:h900",
    ),
    job(
        "a command for an engine",
        "engine is 'vllm; rm -rf /': " + ENGINES,
        engine="vllm; rm -rf /",
    ),
    job(
        "a template for a name of an engine",
        "engine is '{{ 7 * 7 }}': " + ENGINES,
        engine="{{ 7 * 7 }}",
    ),
    job(
        "a model of the catalogue on a real device",
        "model is 'llama-3.1-8b': over HTTP name one of the operator's models: chat-8b",
        device="rack3-gpu0",
    ),
    job(
        "clocks of a device that may not be set",
        (
            "allow_device_control is True: the operator lets nobody set rack3-gpu0 over HTTP; leave it out, and "
            "the device is only observed"
        ),
        device="rack3-gpu0",
        model="chat-8b",
        allow_device_control=True,
    ),
    job(
        "a server that the operator does not name",
        "server is 'staging': over HTTP name one of the operator's: prod",
        device="rack3-gpu0",
        model="chat-8b",
        engine="vllm",
        server="staging",
    ),
    job(
        "a server of another engine",
        "server is 'prod': it is of kind vllm; give engine 'vllm', or another name",
        device="rack3-gpu0",
        model="chat-8b",
        engine="sglang",
        server="prod",
    ),
    job(
        "a file for a trace",
        (
            "workload.trace_file is '/etc/passwd': no file is read for a job over HTTP; use `wattfront tune`, or "
            "upload it (POST /v1/workloads) and name it as uploaded:NAME"
        ),
        workload={"scenario": "trace", "trace_file": "/etc/passwd"},
    ),
    job(
        "a file for texts",
        (
            "quality.text_file is '/etc/shadow': a job over HTTP reads no files; leave it out, or run it with "
            "wattfront tune"
        ),
        quality={"text_file": "/etc/shadow"},
    ),
    Case(
        name="an estimate of nothing",
        method="POST",
        path="/v1/jobs/estimate",
        content=b"[]",
        key="read",
        status=422,
        title="request refused",
        detail=OBJECT,
    ),
    Case(
        name="an estimate of a job that begins with none that there is",
        method="POST",
        path="/v1/jobs/estimate",
        changes={"previous_job": "0000"},
        key="read",
        status=422,
        title="request refused",
        detail=f"previous_job is '0000': there is no job '0000'; {JOB_IDS}",
    ),
    get(
        "knobs of a device that nobody named",
        "/v1/knobs?model=chat-8b&device=cuda:0",
        422,
        "request refused",
        f"device is 'cuda:0': {DEVICES}",
    ),
    get(
        "a calendar without a zone",
        "/v1/calendar?cron=0+2+*+*+*",
        422,
        "request refused",
        "query parameter timezone is missing; give it",
    ),
    Case(
        name="an empty idempotency key",
        method="POST",
        changes={},
        headers={"idempotency-key": ""},
        status=422,
        title="request refused",
        detail="Idempotency-Key has 0 characters; give 1 to 255",
    ),
    Case(
        name="a long idempotency key",
        method="POST",
        changes={},
        headers={"idempotency-key": "k" * 256},
        status=422,
        title="request refused",
        detail="Idempotency-Key has 256 characters; give 1 to 255",
    ),
)
