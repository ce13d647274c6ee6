"""The command line at a server: the same commands give the same output as on the server's own database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.errors import UsageError
from api.job_run import run_job
from api.remote import Remote, ServerRefused, ServerUnreachable, is_readable_on_the_way, key_from
from api.settings import Settings
from api.stores import Stores
from db.job import JobState
from db.service import Scope
from tests.api.commands import simulated_flags
from tests.api.conftest import Main
from tests.api.servers import serving, working
from tests.api.test_submit import body

JOB = """model: llama-3.1-8b
device: simulated:h100-sxm
workload: {prompt_tokens: 32-64, output_tokens: 16-32}
knobs: {max_batch: [4, 16], sm_clock_cap_mhz: [1980]}
window: {warmup_s: 1, window_s: 2, min_requests: 4, max_window_s: 10, idle_s: 0}
budget: {trials: 2}
"""


@pytest.fixture
def server(stores: Stores) -> Iterator[str]:
    with serving(stores) as url:
        yield url


@pytest.fixture
def finished(stores: Stores, settings: Settings) -> str:
    """A simulated job that ran to its end; its id."""
    from api.submit import read_request

    fields = body(knobs={"max_batch": [4, 16], "sm_clock_cap_mhz": [1980]}, budget={"trials": 2})
    job = stores.jobs.create(read_request(fields), submitted_by="local")
    assert run_job(stores, stores.jobs.claim(job.id, "host:1:1", 600.0), settings).state is JobState.FINISHED
    return job.id


def test_the_same_commands_give_the_same_output(main_with: Main, server: str, finished: str) -> None:
    """What lists, fronts, explanations, recommendations and exports print does not depend on where they are asked."""
    commands: list[list[object]] = [
        ["jobs"],
        ["jobs", "--format", "json"],
        ["front", finished[:8]],
        ["front", finished, "--format", "csv"],
        ["front", finished, "--format", "json"],
        ["explain", finished[:8]],
        ["explain", finished, "--format", "json"],
        ["export", finished, "--form", "vllm"],
        ["export", finished, "--form", "csv"],
        ["recommend", "--model", "llama-3.1-8b", "--device", "simulated:h100-sxm"],
        ["schedules", "list"],
    ]
    main_with("jobs")  # what the job logged before
    for command in commands:
        here, there = main_with(*command), main_with("--server", server, *command)
        assert (here.code, there.err) == (0, "")
        assert (there.code, there.out) == (here.code, here.out)


def test_a_job_is_tuned_at_a_server(
    main_with: Main, server: str, stores: Stores, settings: Settings, tmp_path: Path
) -> None:
    """`tune` posts the job, shows its trials as a worker there ends them, and prints the front; exit code 0."""
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    with working(stores, settings):
        ended = main_with("--server", server, "tune", file, "--name", "from afar")
    job = stores.jobs.list(limit=1)[0]
    assert (ended.code, job.state, job.name) == (0, JobState.FINISHED, "from afar")
    assert f"job {job.id[:8]} is queued at {server}: llama-3.1-8b on simulated:h100-sxm" in ended.out
    assert "trial   0" in ended.out
    assert "Pareto front of llama-3.1-8b" in ended.out
    assert ended.out.splitlines()[-1] == f"page of this job: {server}/jobs/{job.id}"


def test_ctrl_c_leaves_the_job_running(
    main_with: Main, server: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt detaches: it says how to look at the job and how to end it, which does end it; exit code 130."""

    def interrupt(*_: object) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Remote, "events", interrupt)
    ended = main_with("--server", server, "tune", *simulated_flags())
    job = stores.jobs.list(limit=1)[0]
    assert (ended.code, job.state) == (130, JobState.QUEUED)
    assert f"end it with: wattfront --server {server} cancel {job.id[:8]}" in ended.out
    cancelled = main_with("--server", server, "cancel", job.id[:8])
    assert (cancelled.code, cancelled.out) == (0, f"job {job.id[:8]} is cancelled\n")
    assert stores.jobs.get(job.id).state is JobState.CANCELLED


def test_schedules_are_kept_at_a_server(main_with: Main, server: str, stores: Stores, tmp_path: Path) -> None:
    """Every command of schedules works there as here: made, shown, paused, resumed, run, listed, deleted."""
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    at = ("--server", server, "schedules")
    made = main_with(*at, "create", "nightly", file, "--nightly", "01:00-05:00", "--zone", "Europe/Berlin")
    assert (made.code, made.err) == (0, "")
    assert main_with(*at, "show", "nightly").out == main_with("schedules", "show", "nightly").out
    assert main_with(*at, "pause", "nightly").out == "schedule 'nightly' is paused\n"
    assert main_with(*at, "resume", "nightly").out == "schedule 'nightly' is active\n"
    assert main_with(*at, "run", "nightly").out.endswith(f"follow it with: wattfront --server {server} jobs\n")
    assert main_with(*at, "nights", "nightly").out == main_with("schedules", "nights", "nightly").out
    assert main_with(*at, "delete", "nightly").out == "schedule 'nightly' is deleted; its jobs stay\n"
    assert stores.schedules.list(limit=9) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("doctor",), "`doctor` works on this machine alone; leave --server out"),
        (("worker",), "`worker` works on this machine alone"),
        (("serve",), "`serve` works on this machine alone"),
        (("keys", "list"), "`keys` works on this machine alone"),
        (("jobs", "--database", "sqlite:///x.db"), "leave out --database or --server"),
        (("tune", "--resume", "abcd"), "--resume is 'abcd': that works on the machine of the job alone"),
        (("front", "../../healthz"), "answers 404"),
        (("front", "no-such-job"), "there is no job 'no-such-job'"),
        (("front", "abcd\udcff"), "there is no job 'abcd?'"),
        (("tune", *simulated_flags(), "--name", "\udcff"), "is no UTF-8 text"),
        (("tune", "--model", "llama-3.1-8b", "--device", "cpu"), "over HTTP name a simulated device"),
        (("tune", "--model", "llama-3.1-8b", "--sla", "nonsense<=1"), "nonsense"),
    ],
)
def test_what_cannot_be_asked_there(main_with: Main, server: str, arguments: tuple[str, ...], words: str) -> None:
    """Commands of this machine refuse a server by name, and what the server refuses is told in its own words."""
    ended = main_with("--server", server, *arguments)
    assert ended.code == 2
    assert words in ended.complaint


def test_the_key_comes_from_the_environment_or_a_file(
    main_with: Main, server: str, stores: Stores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where keys are needed, one of the environment or a file opens; without one, the message says how to give it."""
    _, shown = stores.keys.create("ops", Scope.READ, expires_at=None)
    assert (
        "here it is read from WATTFRONT_API_KEY, --key-env or --key-file"
        in main_with("--server", server, "jobs").complaint
    )
    monkeypatch.setenv("OPS_KEY", shown)
    assert main_with("--server", server, "--key-env", "OPS_KEY", "jobs").code == 0
    file = tmp_path / "key"
    file.write_text(f"{shown}\n")
    assert main_with("--server", server, "--key-file", file, "jobs").code == 0
    monkeypatch.setenv("WATTFRONT_API_KEY", shown)
    refused = main_with("--server", server, "tune", *simulated_flags())
    assert "the key 'ops' has scope read, and this needs tune" in refused.complaint
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for flags, words in (
        (("--key-env", "NONE"), "not set"),
        (("--key-file", tmp_path / "none"), "No such file"),
        (("--key-file", empty), "it is empty; give a file with a key in it"),
    ):
        assert words in main_with("--server", server, *flags, "jobs").complaint
    assert "give --server URL too" in main_with("--key-env", "OPS_KEY", "jobs").complaint


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("tuning.example.org", "give a URL"),
        ("ftp://a", "give a URL"),
        ("http://", "give a URL"),
        ("http://user:secret@host", "give a URL"),
        ("http://[::1", "give a URL"),
        ("http://host:abc", "Invalid port"),
    ],
)
def test_what_is_no_server(main_with: Main, url: str, words: str) -> None:
    """A URL of another kind is refused before anything is asked."""
    assert f"--server is {url!r}: {words}" in main_with("--server", url, "jobs").complaint


@pytest.mark.parametrize(
    ("url", "is_readable"),
    [
        ("http://tuning:8710", True),
        ("https://tuning", False),
        ("http://127.0.0.1:8710", False),
        ("http://[::1]", False),
    ],
)
def test_a_key_that_can_be_read_on_the_way(url: str, is_readable: bool) -> None:
    """Only plain HTTP to another machine shows a key to others."""
    assert is_readable_on_the_way(url) == is_readable


def answering(*answers: httpx.Response | Exception) -> tuple[Remote, list[httpx.Request]]:
    """Return a server that gives these answers one after the other, and the requests that it gets."""
    asked: list[httpx.Request] = []
    left = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        given = next(left)
        if isinstance(given, Exception):
            raise given
        return given

    return Remote("http://server", transport=httpx.MockTransport(answer), wait_s=0.0), asked


def frames(*events: tuple[int, str, dict[str, Any]]) -> httpx.Response:
    text = "".join(f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for number, kind, data in events)
    return httpx.Response(200, text=f"retry: 2000\n\n: still there\n\n{text}")


def test_events_go_on_where_a_connection_ended() -> None:
    """After a lost connection, an error of a proxy or a server that starts anew, each event comes once and in order."""
    remote, asked = answering(
        frames((1, "job", {"state": "running"}), (4, "trial", {"number": 0})),
        httpx.ConnectError("refused"),
        httpx.Response(502, text="<html>"),
        frames((6, "trial", {"number": 1})),
        frames((7, "job", {"state": "finished"})),
    )
    assert [event.id for event in remote.events("abcd")] == [1, 4, 6, 7]
    assert [request.headers["last-event-id"] for request in asked] == ["0", "4", "4", "4", "6"]


def test_events_end_when_none_will_come() -> None:
    """A job that ended before anybody looked has no more events, and a key that is refused is not tried again."""
    remote, _ = answering(httpx.Response(204))
    assert list(remote.events("abcd")) == []
    remote, asked = answering(httpx.Response(401, json={"detail": "no key was sent"}))
    with pytest.raises(ServerRefused, match="answers 401: no key was sent"):
        list(remote.events("abcd"))
    assert len(asked) == 1


def test_a_server_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for longer than five minutes; the message says that the job goes on."""
    times = iter(range(0, 10_000, 100))
    monkeypatch.setattr("api.remote.time.monotonic", lambda: next(times))
    remote, asked = answering(*[httpx.ConnectError("refused")] * 50)
    with pytest.raises(ServerUnreachable, match="the job goes on there"):
        list(remote.events("abcd"))
    assert len(asked) == 4


def test_a_post_counts_once(server: str, stores: Stores) -> None:
    """A post whose answer is lost is sent again under the same idempotency key, and makes one job (BUG-25)."""
    lost: list[str] = []

    class Losing(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            if len(lost) < 2:
                lost.append(request.headers["idempotency-key"])
                answer.close()
                raise httpx.ReadError("reset")
            return answer

    with Remote(server, transport=Losing(), wait_s=0.0) as remote:
        job = remote.create_job(body())
    assert [one.id for one in stores.jobs.list(limit=9)] == [job.id]
    assert len(set(lost)) == 1


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (httpx.Response(200, json={"items": 7, "next": None}), UsageError, "in another form at items"),
        (httpx.Response(200, text="<html>"), UsageError, "in another form at its start"),
        (httpx.Response(302, headers={"location": "http://evil"}), ServerRefused, "answers 302: it gives no reason"),
        (httpx.ConnectTimeout("timed out"), ServerUnreachable, "does not answer"),
    ],
)
def test_answers_of_something_else(answer: httpx.Response | Exception, error: type[Exception], words: str) -> None:
    """What is no Wattfront server, or one of another version, is told in a sentence; a redirection is not followed."""
    remote, asked = answering(answer)
    with pytest.raises(error, match=words):
        remote.jobs(20)
    assert len(asked) == 1


def test_a_key_is_text() -> None:
    """A key that no header can carry is refused without being shown."""
    with pytest.raises(UsageError, match="holds what no key has") as refused:
        Remote("http://server", "secret\n")
    assert "secret" not in str(refused.value)
    assert key_from(None, None) is None
