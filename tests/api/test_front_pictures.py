"""A job's front as a picture over HTTP."""

from __future__ import annotations

import asyncio
import struct
from unittest.mock import AsyncMock

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.errors import TooManyRequests
from api.routes.front_pictures import MAX_WAITING, Drawing, NotDrawn, drawn
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
    draw = AsyncMock(return_value=b"drawn")
    monkeypatch.setattr("api.routes.front_pictures.drawn", draw)
    path = f"/v1/jobs/{store_job(stores, [trial_of(0)])}/front.png"
    etag = client.get(path).headers["etag"]
    assert client.get(path, headers={"If-None-Match": etag}).status_code == 304
    assert draw.await_count == 1
    assert client.get(path, params={"scheme": "dark"}, headers={"If-None-Match": etag}).status_code == 200


@pytest.mark.parametrize("query", ["width=100", "height=5000", "limit_ms=0", "limit_ms=nan", "scheme=pink"])
def test_what_cannot_be_drawn_is_refused(client: TestClient, query: str) -> None:
    """Sizes, limits and schemes out of bounds are refused before anything is looked up."""
    assert client.get(f"/v1/jobs/{'0' * 32}/front.png?{query}").status_code == 422


def test_an_unknown_job_has_no_picture(client: TestClient) -> None:
    """A picture of a job that is not there is a problem with status 404."""
    assert client.get(f"/v1/jobs/{'0' * 32}/front.svg").status_code == 404


def test_a_crowd_is_told_to_come_back() -> None:
    """One picture is drawn at a time, a few wait for their turn, and who comes on top gets 429 with a time to wait."""

    async def crowd() -> tuple[list[int], int, int]:
        drawing, at_once, most = Drawing(), 0, 0
        refused: list[int] = []

        async def one() -> None:
            nonlocal at_once, most
            try:
                async with drawing.turn():
                    at_once += 1
                    most = max(most, at_once)
                    await asyncio.sleep(0)
                    at_once -= 1
            except TooManyRequests as error:
                refused.append(error.retry_after_s)

        await asyncio.gather(*(one() for _ in range(MAX_WAITING + 3)))
        num_refused = len(refused)
        await one()  # the queue is empty again
        return refused, most, num_refused

    refused, most, num_refused = asyncio.run(crowd())
    assert (num_refused, len(refused), most) == (3, 3, 1)
    assert min(refused) > 0


def test_what_cannot_be_drawn_is_told() -> None:
    """A chart that the drawing process does not understand is an answer with status 503, not a fault of the service."""
    with pytest.raises(NotDrawn, match="not drawn"):
        asyncio.run(drawn(b"no chart", "png"))
    assert NotDrawn.status == 503
