"""Bad requests get the exact answer of the table in `bad_requests`, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from api.stores import Stores, open_stores
from db.service import Scope
from tests.api.bad_requests import CASES, Case

OPERATOR = "devices: {rack3-gpu0: {device: GPU-1}}\nmodels: {chat-8b: /models/llama}\nservers: {prod: {kind: vllm}}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A service with keys, and those keys by the name of their scope or of what is wrong with them."""

    client: TestClient
    keys: Mapping[str, str]
    stores: Stores


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    """One service for all the requests: none of them may change anything."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "operator.yaml").write_text(OPERATOR)
    stores = open_stores(f"sqlite:///{folder}/wattfront.db")
    keys = {scope.value: stores.keys.create(scope.value, scope)[1] for scope in Scope}
    keys["revoked"] = stores.keys.create("revoked", Scope.ADMIN)[1]
    stores.keys.revoke("revoked")
    past = datetime.now(UTC) - timedelta(days=1)
    keys["expired"] = stores.keys.create("expired", Scope.ADMIN, expires_at=past)[1]
    settings = Settings(operator_file=folder / "operator.yaml", rate_limit_writes_per_s=0)
    with TestClient(create_app(stores, settings), base_url="http://localhost") as client:
        yield Locked(client=client, keys=keys, stores=stores)
    stores.database.dispose()


def test_the_table_is_long_enough() -> None:
    """At least 60 bad requests are tried, no two under one name."""
    assert len({case.name for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_request_gets_its_exact_answer(locked: Locked, case: Case) -> None:
    """Status, title and sentence are those of the table, in an RFC 9457 body with a request id; nothing is stored."""
    answer = case.send(locked.client, locked.keys)
    problem = {"type": "about:blank", "title": case.title, "status": case.status, "detail": case.detail}
    told = answer.json()
    errors = told.pop("errors", None)
    assert (answer.status_code, told) == (case.status, problem)
    assert errors is None or errors[0]["detail"] == case.detail
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"]
    assert (locked.stores.jobs.list(limit=1), locked.stores.audit.list(limit=1)) == ([], [])


def test_a_refused_key_is_told_how_to_show_one(locked: Locked) -> None:
    """An answer 401 names the way to send a key (RFC 9110)."""
    assert locked.client.get("/v1/jobs").headers["www-authenticate"] == 'Bearer realm="wattfront"'


def test_a_wrong_method_is_told_the_right_ones(locked: Locked) -> None:
    """An answer 405 lists every method of the path, though several routes share it."""
    headers = {"authorization": f"Bearer {locked.keys['admin']}"}
    assert locked.client.delete("/v1/jobs", headers=headers).headers["allow"] == "GET, POST"
