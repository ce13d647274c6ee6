"""Who may do what: without keys on loopback, with keys and their scopes, by the form of the page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from api.access import BELIEVED_S, COOKIE, KeyRing, require_keys
from api.app import create_app
from api.errors import UsageError
from api.settings import Settings
from api.stores import Stores
from db.errors import DatabaseBusy
from db.keys import ApiKey
from db.service import Scope
from tests.db.factories import make_request

JOB = {"model": "llama-3.1-8b", "device": "simulated:h100-sxm"}
PAGE = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def keys(stores: Stores) -> dict[Scope, str]:
    """A key of every scope, named as its scope."""
    return {scope: stores.keys.create(scope.value, scope)[1] for scope in Scope}


@pytest.fixture
def client(stores: Stores) -> Iterator[TestClient]:
    with TestClient(create_app(stores), base_url="http://localhost", follow_redirects=False) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_without_keys_this_machine_may_do_everything(client: TestClient, stores: Stores) -> None:
    """On loopback, before the first key is made, whoever asks is `local` and may do what an administrator may."""
    made = client.post("/v1/jobs", json=JOB).json()
    assert client.post(f"/v1/jobs/{made['id']}/cancel").json()["state"] == "cancelled"
    log = client.get("/v1/audit").json()["items"]
    assert [(entry["actor"], entry["action"], entry["subject"]) for entry in log] == [
        ("local", "job.cancel", f"job/{made['id']}"),
        ("local", "job.create", f"job/{made['id']}"),
    ]
    assert stores.jobs.get(made["id"]).submitted_by == "local"


@pytest.mark.parametrize(
    ("scope", "statuses"),
    [(Scope.READ, (200, 403, 403)), (Scope.TUNE, (200, 201, 403)), (Scope.ADMIN, (200, 201, 200))],
)
def test_a_scope_opens_what_is_its_own(
    client: TestClient, keys: dict[Scope, str], scope: Scope, statuses: tuple[int, ...]
) -> None:
    """A key may do what its scope says and what the scopes before it may, and nothing else."""
    client.headers.update(bearer(keys[scope]))
    asked = (client.get("/v1/jobs"), client.post("/v1/jobs", json=JOB), client.get("/v1/audit"))
    assert statuses == tuple(answer.status_code for answer in asked)


def test_the_key_is_the_actor(client: TestClient, keys: dict[Scope, str], stores: Stores) -> None:
    """A job and its line in the audit log name the key that asked for it."""
    made = client.post("/v1/jobs", json=JOB | {"priority": 7}, headers=bearer(keys[Scope.TUNE])).json()
    job, entry = stores.jobs.get(made["id"]), stores.audit.list(limit=1)[0]
    assert (job.submitted_by, job.priority, entry.actor) == ("tune", 7, "tune")
    assert entry.detail == {"model": "llama-3.1-8b", "device": "simulated:h100-sxm", "priority": 7}


def test_an_ended_job_is_not_cancelled_again(client: TestClient, stores: Stores) -> None:
    """Cancelling what has ended changes nothing, and is not written down as done."""
    job = stores.jobs.create(make_request())
    asked = [client.post(f"/v1/jobs/{job.id}/cancel") for _ in range(2)]
    assert [(answer.status_code, answer.json()["state"]) for answer in asked] == [(200, "cancelled")] * 2
    assert len(stores.audit.list(limit=9)) == 1


def test_idempotency_keys_of_two_callers_are_apart(client: TestClient, keys: dict[Scope, str]) -> None:
    """The same idempotency key sent by two API keys makes two jobs, and neither sees the other's."""
    made = [
        client.post("/v1/jobs", json=JOB, headers=bearer(keys[scope]) | {"idempotency-key": "night"})
        for scope in (Scope.TUNE, Scope.ADMIN)
    ]
    assert [answer.status_code for answer in made] == [201, 201]


def test_a_revoked_key_still_locks_the_service(client: TestClient, stores: Stores) -> None:
    """Once keys were made, revoking the last one does not open the service to everybody."""
    stores.keys.create("ci", Scope.READ)
    stores.keys.revoke("ci")
    assert client.get("/v1/jobs").status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/static/style.css", "/login"])
def test_what_is_open_to_everybody(client: TestClient, keys: dict[Scope, str], path: str) -> None:
    """Health, the form and what it is made of can be had without a key."""
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/jobs", "/openapi.json", "/metrics", "/v1/nothing", "/static/../v1/jobs", "//v1/jobs"]
)
def test_what_is_not(client: TestClient, keys: dict[Scope, str], path: str) -> None:
    """Data, their description, figures and even paths that are not there need a key, whatever the browser accepts."""
    assert client.get(path, headers=PAGE).status_code in (401, 303)
    assert client.get(path).status_code == 401


def test_metrics_may_be_opened(stores: Stores, keys: dict[Scope, str]) -> None:
    """With WATTFRONT_METRICS_OPEN a scraper without a key reads the figures, and nothing else."""
    with TestClient(create_app(stores, Settings(metrics_open=True)), base_url="http://localhost") as client:
        assert (client.get("/metrics").status_code, client.get("/v1/jobs").status_code) == (200, 401)


def test_the_form_sets_a_cookie_that_scripts_cannot_read(client: TestClient, keys: dict[Scope, str]) -> None:
    """A browser without a key is sent to the form; the key that it takes opens the page that was asked for."""
    sent = client.get("/jobs/abcd", headers=PAGE)
    assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=/jobs/abcd")
    form = client.get(sent.headers["location"])
    assert 'name="next" value="/jobs/abcd"' in form.text
    taken = client.post("/login", data={"key": keys[Scope.READ], "next": "/jobs/abcd"})
    assert (taken.status_code, taken.headers["location"]) == (303, "/jobs/abcd")
    assert taken.headers["set-cookie"] == f"{COOKIE}={keys[Scope.READ]}; HttpOnly; Path=/; SameSite=strict"
    assert client.get("/", headers=PAGE).status_code == 200
    assert client.post("/v1/jobs", json=JOB).status_code == 403
    assert client.get("/login").headers["location"] == "/"


def test_over_https_the_cookie_stays_there(stores: Stores, keys: dict[Scope, str]) -> None:
    """Where the page came by https, the browser never sends the key without it."""
    with TestClient(create_app(stores), base_url="https://localhost", follow_redirects=False) as client:
        assert "; Secure" in client.post("/login", data={"key": keys[Scope.READ]}).headers["set-cookie"]


def test_a_wrong_key_sets_no_cookie(client: TestClient, keys: dict[Scope, str]) -> None:
    """The form says that the key is wrong, and shows nothing of it."""
    answer = client.post("/login", data={"key": "wf_<b>", "next": "/"})
    assert (answer.status_code, "set-cookie" in answer.headers, "wf_" in answer.text) == (401, False, False)
    assert "This key is wrong, revoked or expired." in answer.text


@pytest.mark.parametrize(
    "goal", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\nb"]
)
def test_the_form_leads_nowhere_else(client: TestClient, keys: dict[Scope, str], goal: str) -> None:
    """A link to the form cannot send anybody to another site after it took the key."""
    assert client.post("/login", data={"key": keys[Scope.READ], "next": goal}).headers["location"] == "/"


def test_the_form_takes_only_a_form_of_ours(client: TestClient, keys: dict[Scope, str]) -> None:
    """A page of another site cannot log anybody in, and JSON is no form."""
    form = {"key": keys[Scope.READ]}
    assert client.post("/login", data=form, headers={"origin": "http://evil.example"}).status_code == 403
    assert client.post("/login", json=form).status_code == 415


def test_a_form_of_many_fields_is_refused(client: TestClient) -> None:
    """More fields than the form has ever had are the caller's fault, and no error of the service."""
    form = "&".join(["key=x"] * 11)
    answer = client.post("/login", content=form, headers={"content-type": "application/x-www-form-urlencoded"})
    assert (answer.status_code, answer.json()["detail"]) == (422, "the form has more than 10 fields; send key and next")


def test_logging_out_takes_the_key_away(client: TestClient, keys: dict[Scope, str]) -> None:
    """After logging out the browser is sent to the form again."""
    client.post("/login", data={"key": keys[Scope.READ]})
    assert client.get("/", headers=PAGE).status_code == 200
    client.post("/logout")
    assert client.get("/", headers=PAGE).status_code == 303


def test_a_wrong_header_is_not_saved_by_a_cookie(client: TestClient, keys: dict[Scope, str]) -> None:
    """Whoever shows a key in the header is judged by that one."""
    client.post("/login", data={"key": keys[Scope.READ]})
    assert client.get("/v1/jobs", headers=bearer("wf_1_2")).status_code == 401


def test_reads_cost_no_query(stores: Stores, keys: dict[Scope, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is looked up once in some seconds; after them a revoked key opens nothing any more."""
    asked: list[str] = []
    now_s = [0.0]
    ring = KeyRing(stores.keys, clock=lambda: now_s[0])
    find = stores.keys.find

    def counted(_: object, key: str) -> ApiKey | None:
        asked.append(key)
        return find(key)

    monkeypatch.setattr(type(stores.keys), "find", counted)

    async def ask() -> list[bool]:
        seen = [await ring.find(keys[Scope.READ]) is not None for _ in range(3)]
        stores.keys.revoke("read")
        seen.append(await ring.find(keys[Scope.READ]) is not None)
        now_s[0] = BELIEVED_S
        return [*seen, await ring.find(keys[Scope.READ]) is not None]

    assert asyncio.run(ask()) == [True, True, True, True, False]
    assert len(asked) == 2


def test_wrong_keys_beyond_the_rate_cost_no_query(
    stores: Stores, keys: dict[Scope, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tries one key after the other is soon refused before the database is asked."""
    asked: list[str] = []
    find = stores.keys.find

    def counted(_: object, key: str) -> ApiKey | None:
        asked.append(key)
        return find(key)

    monkeypatch.setattr(type(stores.keys), "find", counted)
    app = create_app(stores, Settings(rate_limit_reads_per_s=0.001))
    with TestClient(app, base_url="http://localhost") as client:
        answers = [client.get("/v1/jobs", headers=bearer(f"wf_{number:012x}_0")).status_code for number in range(5)]
    assert (answers, len(asked)) == ([401, 429, 429, 429, 429], 1)


def test_a_busy_database_locks_nobody_out(
    client: TestClient, stores: Stores, keys: dict[Scope, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A use that cannot be written down is no reason to refuse the key."""

    def busy(*_: object) -> None:
        raise DatabaseBusy("locked")

    monkeypatch.setattr(type(stores.keys), "note_use", busy)
    assert client.get("/v1/jobs", headers=bearer(keys[Scope.READ])).status_code == 200


def test_beyond_loopback_keys_are_needed_at_once(stores: Stores) -> None:
    """A service on another address lets nobody in without a key, though none was ever made."""
    app = create_app(stores, Settings(host="0.0.0.0", allowed_hosts="tuning.example.org"))
    with TestClient(app, base_url="http://tuning.example.org") as client:
        assert client.get("/v1/jobs").status_code == 401


def test_beyond_loopback_nothing_starts_without_keys_and_names(stores: Stores) -> None:
    """Serving others is refused until there are a valid key and names to be asked for; loopback needs neither."""
    everywhere = Settings(host="0.0.0.0")
    require_keys(stores.keys, Settings())
    with pytest.raises(UsageError, match=r"host is '0\.0\.0\.0': .*`wattfront keys create NAME --scope admin`"):
        require_keys(stores.keys, everywhere)
    stores.keys.create("ops", Scope.ADMIN)
    with pytest.raises(UsageError, match="WATTFRONT_ALLOWED_HOSTS is ''"):
        require_keys(stores.keys, everywhere)
    require_keys(stores.keys, everywhere.model_copy(update={"allowed_hosts": "tuning.example.org"}))
    stores.keys.revoke("ops")
    with pytest.raises(UsageError, match="none is valid"):
        require_keys(stores.keys, everywhere)
