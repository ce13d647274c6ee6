"""A job's front as a picture over HTTP."""

from __future__ import annotations

import struct

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from api.stores import Stores
from tests.api.test_fronts import store_job, trial_of


@pytest.fixture
def client(stores: Stores, settings: Settings) -> TestClient:
    return TestClient(create_app(stores, settings), base_url="http://localhost")


def test_a_front_comes_as_png_and_svg(client: TestClient, stores: Stores) -> None:
    """Pictures have the media type and size asked for, and names of jobs stand in them as text."""
    job = store_job(stores, [trial_of(0), trial_of(1, tok_per_j=3.0, latency_ms=40.0)], name="<script>x</script>")
    png = client.get(f"/v1/jobs/{job}/front.png", params={"width": 500, "height": 400, "scheme": "dark"})
    assert png.headers["content-type"] == "image/png"
    assert struct.unpack(">II", png.content[16:24]) == (500, 400)
    svg = client.get(f"/v1/jobs/{job[:8]}/front.svg", params={"limit_ms": 35})
    assert svg.headers["content-type"] == "image/svg+xml"
    assert "limit 35 ms" in svg.text
    assert "&lt;script&gt;x" in svg.text
    assert "<script" not in svg.text


def test_a_known_picture_is_not_drawn_again(
    client: TestClient, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends the tag back gets 304 without a drawing, until the front or the look is another."""
    monkeypatch.setattr("api.routes.front_pictures.front_picture", lambda *_: b"drawn")
    path = f"/v1/jobs/{store_job(stores, [trial_of(0)])}/front.png"
    etag = client.get(path).headers["etag"]
    monkeypatch.setattr("api.routes.front_pictures.front_picture", lambda *_: pytest.fail("drawn again"))
    assert client.get(path, headers={"If-None-Match": etag}).status_code == 304
    monkeypatch.setattr("api.routes.front_pictures.front_picture", lambda *_: b"drawn")
    assert client.get(path, params={"scheme": "dark"}, headers={"If-None-Match": etag}).status_code == 200


@pytest.mark.parametrize("query", ["width=100", "height=5000", "limit_ms=0", "limit_ms=nan", "scheme=pink"])
def test_what_cannot_be_drawn_is_refused(client: TestClient, query: str) -> None:
    """Sizes, limits and schemes out of bounds are refused before anything is looked up."""
    assert client.get(f"/v1/jobs/{'0' * 32}/front.png?{query}").status_code == 422


def test_an_unknown_job_has_no_picture(client: TestClient) -> None:
    """A picture of a job that is not there is a problem with status 404."""
    assert client.get(f"/v1/jobs/{'0' * 32}/front.svg").status_code == 404
