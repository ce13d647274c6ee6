"""What every request must keep to and every answer carries: ids, headers, names, sizes, rates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from api.app import create_app
from api.errors import TooManyRequests
from api.limits import BURST_S, MAX_CALLERS, Envelope, RateLimits
from api.settings import Settings
from api.stores import Stores


@pytest.fixture
def client(stores: Stores) -> Iterator[TestClient]:
    with TestClient(create_app(stores), base_url="http://localhost") as client:
        yield client


class Seconds:
    """A clock that stands still until it is told."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def num_taken(limits: RateLimits, caller: str, method: str) -> int:
    """Return how many requests a caller may send now."""
    for number in range(1_000):
        try:
            limits.take(caller, method)
        except TooManyRequests:
            return number
    return 1_000


def test_a_caller_may_ask_so_often() -> None:
    """After a burst of five seconds' worth a caller gets the rate, and one who was still gets the burst again."""
    clock = Seconds()
    limits = RateLimits(reads_per_s=20, writes_per_s=2, clock=clock)
    assert num_taken(limits, "ci", "POST") == 2 * BURST_S
    clock.now_s += 1
    assert num_taken(limits, "ci", "POST") == 2
    clock.now_s += 3_600
    assert num_taken(limits, "ci", "POST") == 2 * BURST_S


def test_callers_and_kinds_are_counted_apart() -> None:
    """Whoever writes too much may still read, and others may write."""
    limits = RateLimits(reads_per_s=20, writes_per_s=2, clock=Seconds())
    num_taken(limits, "ci", "POST")
    assert (num_taken(limits, "ci", "GET"), num_taken(limits, "nightly", "DELETE")) == (20 * BURST_S, 2 * BURST_S)


def test_no_limit_is_none() -> None:
    """A rate of 0 refuses nothing."""
    assert num_taken(RateLimits(reads_per_s=1, writes_per_s=0, clock=Seconds()), "ci", "POST") == 1_000


def test_a_slow_rate_still_lets_one_through() -> None:
    """A limit of less than one request in five seconds is one request, and says when the next may come."""
    limits = RateLimits(reads_per_s=0.01, writes_per_s=1, clock=Seconds())
    limits.take("ci", "GET")
    with pytest.raises(TooManyRequests, match=r"more than 0\.01 reads per second; ask again in 100 s") as refused:
        limits.take("ci", "GET")
    assert refused.value.headers() == {"Retry-After": "100"}


def test_callers_are_not_remembered_for_ever() -> None:
    """However many addresses ask, what is kept of them stays bounded."""
    limits = RateLimits(reads_per_s=1, writes_per_s=1, clock=Seconds())
    for number in range(2 * MAX_CALLERS + 1):
        limits.take(str(number), "GET")
    assert len(limits._buckets) <= MAX_CALLERS


def test_too_many_writes_are_told_when_to_come_again(stores: Stores) -> None:
    """Over HTTP the limit is a problem with Retry-After, and health is never limited."""
    settings = Settings(rate_limit_reads_per_s=0.1, rate_limit_writes_per_s=0.1)
    with TestClient(create_app(stores, settings), base_url="http://localhost") as client:
        answers = [client.get("/v1/jobs") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert (answers[1].headers["retry-after"], answers[1].json()["title"]) == ("10", "too many requests")
        assert {client.get("/healthz").status_code for _ in range(5)} == {200}


def test_a_request_keeps_its_id(client: TestClient) -> None:
    """A caller's id comes back; one that could forge a line of a log is replaced."""
    assert client.get("/healthz", headers={"x-request-id": "run-7.a_B"}).headers["x-request-id"] == "run-7.a_B"
    for bad in ("a b", "a;b", "x" * 65, ""):
        given = client.get("/healthz", headers={"x-request-id": bad}).headers["x-request-id"]
        assert given != bad
        assert len(given) == 32


def test_health_needs_no_name(client: TestClient) -> None:
    """A probe that asks by address gets an answer, so that it needs to know no name of ours."""
    headers = {"host": "10.0.0.7:8710"}
    assert [client.get(path, headers=headers).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    assert client.get("/v1/jobs", headers=headers).status_code == 400


def test_more_names_are_the_operators(stores: Stores) -> None:
    """WATTFRONT_ALLOWED_HOSTS adds names, in any case, with any port."""
    app = create_app(stores, Settings(allowed_hosts="tuning.example.org, 10.0.0.7"))
    with TestClient(app, base_url="http://Tuning.Example.org:80") as client:
        assert client.get("/v1/jobs").status_code == 200
        assert client.get("/v1/jobs", headers={"host": "other.example.org"}).status_code == 400


def test_a_fault_tells_nothing(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody expected is a problem with the request's id, and no word of what happened."""

    def fail(**_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(type(stores.jobs), "list", fail)
    client = TestClient(create_app(stores), base_url="http://localhost", raise_server_exceptions=False)
    answer = client.get("/v1/jobs", headers={"x-request-id": "run-7"})
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert answer.json()["detail"] == "the service failed at this request; its log tells why, under request id run-7"
    assert (answer.headers["x-request-id"], "secret" in answer.text) == ("run-7", False)


def test_a_stream_passes_through_piece_by_piece() -> None:
    """Each piece of a stream is sent on before the next is made."""
    order: list[str] = []

    async def stream(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"a", b"b"):
            order.append(f"made {piece.decode()}")
            await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            order.append(f"sent {message['body'].decode()}")

    async def receive() -> Message:
        return {"type": "http.request"}

    asyncio.run(Envelope(stream)({"type": "http", "headers": []}, receive, send))
    assert order == ["made a", "sent a", "made b", "sent b"]
