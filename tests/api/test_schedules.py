"""`/v1/schedules`: made once for a key, changed by version, run by hand, and everything said about their nights."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from api.stores import Stores
from db.schedule import Due, ScheduleSpec
from db.service import NightState
from tests.api.test_submit import body as job
from tests.api.test_submit import problem
from tests.db.factories import make_request

OPERATOR = "targets:\n  ops: {url: 'https://hooks.example.org/wattfront', secret_env: OPS_HOOK_SECRET}\n"


def body(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": "llama",
        "job": job(),
        "nightly": {"start": "01:00", "end": "05:00"},
        "timezone": "Europe/Berlin",
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


@pytest.fixture
def client(stores: Stores, settings: Settings, tmp_path: Path) -> Iterator[TestClient]:
    """A service whose operator named a target; its own scheduler sleeps, as these tests are not about it."""
    path = tmp_path / "operator.yaml"
    path.write_text(OPERATOR, encoding="utf-8")
    app = create_app(stores, settings.model_copy(update={"operator_file": path, "nightly": False}))
    with TestClient(app, base_url="http://127.0.0.1:8710") as client:
        yield client


@pytest.fixture
def made(client: TestClient) -> dict[str, Any]:
    """A schedule that was posted."""
    answer = client.post("/v1/schedules", json=body())
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_schedule_is_made_and_shown(client: TestClient, made: dict[str, Any]) -> None:
    """What was posted comes back, with its next due time in UTC and with the local offset; so does the list."""
    answer = client.get("/v1/schedules/llama")
    assert answer.json() == made == client.get(f"/v1/schedules/{made['id'][:4]}").json()
    assert client.get("/v1/schedules").json() == {"items": [made], "next": None}
    assert answer.headers["etag"] == '"1"'
    assert (made["state"], made["model"], made["device"]) == ("active", "llama-3.1-8b", "simulated:h100-sxm")
    assert (made["cron"], made["nightly"]) == (None, {"start": "01:00", "end": "05:00"})
    due = made["next_due"]
    assert due["due_local"][10:] in ("T01:00+01:00", "T01:00+02:00")
    assert datetime.fromisoformat(due["due_local"]) == datetime.fromisoformat(due["due_at"])
    assert datetime.fromisoformat(due["due_at"]).utcoffset() == timedelta(0)


def test_the_same_key_makes_one_schedule(client: TestClient, made: dict[str, Any]) -> None:
    """BUG-25: a repeated post gives the first schedule, with 200; another body under that key is refused."""
    key = {"idempotency-key": "at start"}
    first = client.post("/v1/schedules", json=body(name="other"), headers=key)
    again = client.post("/v1/schedules", json=body(name="other"), headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.headers["location"] == again.headers["location"] == f"/v1/schedules/{first.json()['id']}"
    status, title, _ = problem(client.post("/v1/schedules", json=body(name="third"), headers=key))
    assert (status, title) == (409, "idempotency key in use")
    status, title, words = problem(client.post("/v1/schedules", json=body()))
    assert (status, title) == (409, "name in use")
    assert words.startswith("name is 'llama': there is a schedule of that name")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ...}, "name is missing; name it"),
        ({"name": "../x"}, "name is '../x': "),
        ({"job": ...}, "job is missing; name it"),
        ({"job": {"model": "llama-3.1-8b", "hours": 1}}, "job.hours is not a field of job; there are model, "),
        ({"job": job(model="/etc/passwd")}, "model is '/etc/passwd': "),
        ({"job": job(workload={"scenario": "trace", "trace_file": "/etc/passwd"})}, "workload.trace_file is"),
        ({"nightly": ...}, "nightly is None: give nightly"),
        ({"cron": "0 2 * * *"}, "cron is '0 2 * * *': give either cron or nightly, not both"),
        ({"nightly": {"start": "25:00", "end": "05:00"}}, "nightly.start is '25:00': give HH:MM"),
        ({"nightly": {"start": "01:00"}}, "nightly.end is missing; name it"),
        ({"timezone": "Europe"}, "timezone is 'Europe': give an IANA name"),
        ({"timezone": ...}, "timezone is missing; name it"),
        ({"timezone": 2}, "timezone is 2: input should be a valid string"),
        ({"overlap": "both"}, "overlap is 'both': input should be 'skip', 'queue' or 'replace'"),
        ({"grace_s": 59}, "grace_s is 59: input should be greater than or equal to 60"),
        ({"grace_s": True}, "grace_s is True: "),
        ({"keep_nights": 0}, "keep_nights is 0: input should be greater than or equal to 1"),
        ({"notify": ["ops", "lab"]}, "notify is 'lab': name targets of the operator's file; "),
        ({"notify": ["https://evil.example"]}, "notify.0 is 'https://evil.example': "),
        ({"priority": 101}, "priority is 101: input should be less than or equal to 100"),
        ({"url": "http://evil.example"}, "url is not a field of a schedule; there are name, job, nightly, cron, "),
    ],
)
def test_what_may_not_repeat_is_refused(
    client: TestClient, stores: Stores, changes: dict[str, Any], words: str
) -> None:
    """A bad field, time, zone, target or job gets 422 with its name, and nothing is stored."""
    status, title, detail = problem(client.post("/v1/schedules", json=body(**changes)))
    assert (status, title, detail[: len(words)]) == (422, "request refused", words)
    assert stores.schedules.all() == []


def test_what_is_no_object_is_refused(client: TestClient) -> None:
    """A list or a text is no schedule."""
    wrongs: tuple[Any, ...] = ([], "x", 3)
    for wrong in wrongs:
        status, _, words = problem(client.post("/v1/schedules", json=wrong))
        assert (status, words[:23]) == (422, "a schedule is an object")


def test_a_change_names_its_version(client: TestClient, made: dict[str, Any]) -> None:
    """Fields that are given change, others stay; without a version 428, with an old one 412, and nothing is lost."""
    change = {"cron": "0 3 * * *", "notify": ["ops", "ops"]}
    answer = client.patch("/v1/schedules/llama", json=change, headers={"if-match": '"1"'})
    changed = answer.json()
    assert (answer.status_code, answer.headers["etag"], changed["version"]) == (200, '"2"', 2)
    assert (changed["cron"], changed["nightly"], changed["notify"]) == ("0 3 * * *", None, ["ops"])
    assert {name for name in made if made[name] != changed[name]} == {
        "cron", "nightly", "notify", "version", "changed_at", "next_due"
    }  # fmt: skip
    old = problem(client.patch("/v1/schedules/llama", json={"priority": 5}, headers={"if-match": '"1"'}))
    assert old == (
        412, "changed meanwhile", "schedule 'llama' is version 2, and the change is of version 1; read it again"
    )  # fmt: skip
    status, title, words = problem(client.patch("/v1/schedules/llama", json={"priority": 5}))
    assert (status, title, words) == (
        428,
        "version needed",
        'send If-Match with the version that the change is of, now "2"',
    )
    status, _, words = problem(client.patch("/v1/schedules/llama", json={}, headers={"if-match": "W/x"}))
    assert (status, words) == (422, "If-Match is 'W/x': give a version, as in \"2\", or *")
    assert client.get("/v1/schedules/llama").json() == changed
    back = client.patch("/v1/schedules/llama", json={"nightly": made["nightly"]}, headers={"if-match": "*"}).json()
    assert (back["cron"], back["nightly"], back["version"]) == (None, made["nightly"], 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": None}, "name is None: "),
        ({"nightly": None}, "nightly is None: give nightly"),
        ({"timezone": "Mars/Olympus"}, "timezone is 'Mars/Olympus': give an IANA name"),
        ({"job": {"model": "gpt-9"}}, "device is 'auto': "),
        ({"notify": ["lab"]}, "notify is 'lab': "),
        ({"state": "paused"}, "state is not a field of a schedule; there are name, job, "),
    ],
)
def test_a_change_is_checked_like_a_schedule(
    client: TestClient, made: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    """What could not be posted cannot be patched in, and the schedule stays as it was."""
    answer = client.patch("/v1/schedules/llama", json=change, headers={"if-match": "*"})
    status, _, detail = problem(answer)
    assert (status, detail[: len(words)]) == (422, words)
    assert client.get("/v1/schedules/llama").json() == made


def test_a_schedule_rests_and_goes_on(client: TestClient, made: dict[str, Any]) -> None:
    """Paused it is due at no time; resumed it is again."""
    paused = client.post("/v1/schedules/llama/pause").json()
    assert (paused["state"], paused["next_due"], paused["version"]) == ("paused", None, 2)
    resumed = client.post("/v1/schedules/llama/resume").json()
    assert (resumed["state"], resumed["next_due"]) == ("active", made["next_due"])


def test_a_run_by_hand_is_recorded(client: TestClient, made: dict[str, Any], stores: Stores) -> None:
    """It starts and notes a job once for a key; while that waits, another run is skipped and says for which job."""
    key = {"idempotency-key": "now"}
    first = client.post("/v1/schedules/llama/run", headers=key)
    assert (first.status_code, first.json()["state"], first.json()["job_state"]) == (201, "started", "queued")
    assert client.post("/v1/schedules/llama/run", headers=key).json() == first.json()
    assert [entry.action for entry in stores.audit.list(limit=9)].count("schedule.run") == 1
    (job_row,) = stores.jobs.list(limit=9)
    assert (job_row.id, job_row.submitted_by) == (first.json()["job"], "schedule llama")
    found = stores.schedules.get("llama")
    skipped = stores.nights.run_now(found.id, now=datetime.now(UTC) + timedelta(hours=1))
    nights = client.get("/v1/schedules/llama/nights").json()
    assert [night["state"] for night in nights["items"]] == ["skipped", "started"]
    assert nights["items"][0]["reason"] == f"job {job_row.id[:8]} of a night before is queued"
    page = client.get(f"/v1/schedules/llama/nights?limit=1&before={skipped.id}").json()
    assert page == {"items": [nights["items"][1]], "next": None}
    assert client.get("/v1/schedules/llama/nights?limit=1").json()["next"] == skipped.id


def test_nights_tell_what_moved(client: TestClient, made: dict[str, Any], stores: Stores) -> None:
    """A stored drift report is answered as it is; a missed night says why."""
    schedule = stores.schedules.get("llama")
    due_at = datetime.now(UTC) + timedelta(days=1)
    due = Due(night="2026-03-29", due_at=due_at, closes_at=due_at)
    missed = stores.nights.decide(schedule, due, now=due_at, missed_because="nobody was there")
    assert missed is not None
    assert missed.state is NightState.MISSED
    drift = {
        "compared_with": "a" * 32, "is_simulated": True, "latency_metric": "tpot_p99_ms", "has_moved": True,
        "sentences": ["likely cause: the driver was 1 and is 2"],
    }  # fmt: skip
    stores.nights.set_drift(missed.id, drift)
    (night,) = client.get("/v1/schedules/llama/nights").json()["items"]
    assert (night["state"], night["reason"], night["job"]) == ("missed", "nobody was there", None)
    assert {name: night["drift"][name] for name in drift} == drift
    assert night["drift"]["points"] == []


def test_what_is_due_next_is_told_with_offsets(client: TestClient, made: dict[str, Any]) -> None:
    """BUG-22: each due time has its own offset, one per day, on both sides of a clock change."""
    found = client.get("/v1/schedules/llama/next?count=100").json()
    assert found["timezone"] == "Europe/Berlin"
    assert len(found["items"]) == len({due["night"] for due in found["items"]}) == 100
    assert found["items"][0] == made["next_due"]
    assert all(due["due_local"][11:16] == "01:00" for due in found["items"])


def test_a_deleted_schedule_is_gone(client: TestClient, made: dict[str, Any], stores: Stores) -> None:
    """204, then 404 everywhere; its job stays, and the audit log has every change."""
    client.post("/v1/schedules/llama/run")
    assert client.delete("/v1/schedules/llama").status_code == 204
    for path in ("", "/nights", "/next"):
        status, title, words = problem(client.get(f"/v1/schedules/llama{path}"))
        assert (status, title) == (404, "no such schedule")
        assert words == "there is no schedule 'llama'; give a name or an id from `wattfront schedules list`"
    assert len(stores.jobs.list(limit=9)) == 1
    assert [(entry.actor, entry.action, entry.subject) for entry in stores.audit.list(limit=9)] == [
        ("local", f"schedule.{action}", f"schedule/{made['id']}") for action in ("delete", "run", "create")
    ]


def test_pages_follow_each_other(client: TestClient) -> None:
    """`next` leads through all schedules, newest first."""
    for i in range(3):
        client.post("/v1/schedules", json=body(name=f"n{i}"))
    first = client.get("/v1/schedules?limit=2").json()
    second = client.get(f"/v1/schedules?limit=2&before={first['next']}").json()
    assert [one["name"] for one in first["items"] + second["items"]] == ["n2", "n1", "n0"]
    assert second["next"] is None


def test_a_zone_that_is_unknown_here_hides_no_schedule(client: TestClient, stores: Stores) -> None:
    """A schedule that was made where its zone is known is listed without a due time, and can be deleted."""
    spec = ScheduleSpec(name="lost", request=make_request(), cron="0 2 * * *", timezone="Mars/Olympus_Mons")
    stores.schedules.create(spec)
    (shown,) = client.get("/v1/schedules").json()["items"]
    assert (shown["timezone"], shown["next_due"]) == ("Mars/Olympus_Mons", None)
    status, _, words = problem(client.get("/v1/schedules/lost/next"))
    assert (status, words[:31]) == (422, "timezone is 'Mars/Olympus_Mons'")
    assert client.delete("/v1/schedules/lost").status_code == 204


def test_the_service_keeps_nights_while_it_runs(stores: Stores, settings: Settings) -> None:
    """A service looks at schedules from its start until it stops, and one with WATTFRONT_NIGHTLY=false does not."""
    app = create_app(stores, settings)
    with TestClient(app, base_url="http://127.0.0.1:8710") as client:
        assert app.state.nightly.wait_for_look(1, timeout_s=60.0)
        client.post("/v1/schedules", json=body())
        assert app.state.nightly.wait_for_look(2, timeout_s=60.0)
    seen = app.state.nightly.num_looks
    app.state.nightly.wake()
    assert app.state.nightly.num_looks == seen
    assert create_app(stores, settings.model_copy(update={"nightly": False})).state.nightly is None
