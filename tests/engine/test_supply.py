"""What a host sends of a load, and when."""

from __future__ import annotations

import itertools

from engine.load import ClosedLoad, OpenLoad, TimedRequest
from engine.request import FinishReason
from engine.serve import unserved
from engine.supply import AHEAD_S, _OpenSupply, supply_of
from engine.wire import Message
from tests.engine.requests import make_request


def never(message: Message) -> None:
    raise AssertionError(f"nothing of this load is urgent: {message}")


def names_of(messages: list[Message]) -> list[str]:
    return [item["request"].request_id for message in messages for item in message.get("items", ())]


def test_an_endless_open_load_is_sent_a_little_ahead() -> None:
    """Requests are sent once they are due within AHEAD_S, each once, at whatever times it is asked."""
    now_s = 100.0
    endless = (TimedRequest(offset_s=i / 2, request=make_request(request_id=f"r{i}")) for i in itertools.count())
    supply = _OpenSupply(OpenLoad(requests=endless), lambda: now_s)
    num_ahead = round(2 * AHEAD_S)

    first = list(supply.messages())
    now_s = 101.0
    second = list(supply.messages())

    assert names_of(first) == [f"r{i}" for i in range(num_ahead)]
    assert [item["due_s"] for item in first[0]["items"]] == [100.0 + i / 2 for i in range(num_ahead)]
    assert names_of(second) == [f"r{num_ahead}", f"r{num_ahead + 1}"]
    assert list(supply.messages()) == []
    assert supply.wake_s is not None
    assert now_s < supply.wake_s < now_s + AHEAD_S


def test_a_load_that_is_used_up_says_so_once() -> None:
    """The end is sent with the last request and not again, of open and closed loads alike."""
    request = make_request(request_id="only")
    opened = supply_of(OpenLoad(requests=iter([TimedRequest(offset_s=0.0, request=request)])), never)
    closed = supply_of(ClosedLoad(requests=iter([request]), concurrency=2), never)

    for supply in (opened, closed):
        assert [message["op"] for message in supply.messages()] == ["requests", "end"]
        assert list(supply.messages()) == []


def test_a_closed_load_is_filled_up_as_requests_end() -> None:
    """As many requests follow as have ended, so that the child has the same number in hand."""
    requests = (make_request(request_id=f"r{i}") for i in itertools.count())
    supply = supply_of(ClosedLoad(requests=requests, concurrency=2), never)
    first = list(supply.messages())
    supply.ended(tuple(unserved(make_request(request_id=f"r{i}"), 0.0, FinishReason.LENGTH) for i in range(3)))

    assert supply.opening() == {"op": "run", "load": "closed", "concurrency": 2}
    assert len(first[0]["items"]) == 8
    assert [len(message["items"]) for message in supply.messages()] == [3]
