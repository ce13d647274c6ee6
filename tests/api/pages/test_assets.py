"""What charts on pages are made of, over HTTP."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.plot import bundle as bundle_module
from api.plot.bundle import PATH
from api.settings import Settings
from api.stores import Stores


@pytest.fixture
def client(stores: Stores, settings: Settings) -> TestClient:
    return TestClient(create_app(stores, settings), base_url="http://localhost")


def test_vega_may_be_kept_for_good(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module comes packed to those who take that, under a name with its version, to be kept for ever."""
    monkeypatch.setattr(bundle_module, "_MAKE", "print('export {};')")
    packed = client.get(PATH)
    assert (packed.status_code, packed.headers["content-encoding"]) == (200, "gzip")
    assert "immutable" in packed.headers["cache-control"]
    assert packed.headers["content-type"].startswith("text/javascript")
    plain = client.get(PATH, headers={"Accept-Encoding": "identity"})
    assert (plain.text, "content-encoding" in plain.headers) == ("export {};\n", False)
    assert client.get("/static/vega-0.1.mjs").status_code == 404


def test_without_vega_the_answer_is_a_problem(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the module cannot be made, the answer says so with status 503."""
    monkeypatch.setattr(bundle_module, "_MAKE", "raise SystemExit(1)")
    answer = client.get(PATH)
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")


def test_specifications_are_asked_for_by_name(client: TestClient) -> None:
    """A specification is fitted to the query; who has it already gets 304, and what is no chart is refused."""
    asked = {"scheme": "dark", "metric": "ttft_p90_ms", "x": "log", "origin": "simulated", "legend": ["precision"]}
    answer = client.get("/plot/specs/front", params=asked)
    assert "TTFT p90 (ms), simulated" in answer.text
    tag = {"If-None-Match": answer.headers["etag"]}
    assert client.get("/plot/specs/front", params=asked, headers=tag).status_code == 304
    assert client.get("/plot/specs/pie").status_code == 422
    assert client.get("/plot/specs/front", params={"metric": "<b>"}).status_code == 422
