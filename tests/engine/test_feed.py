"""What the host's messages bring to an engine in a child: nothing too early, nothing twice, nothing lost."""

from __future__ import annotations

import json
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from engine import wire
from engine.feed import ClosedFeed, TimedFeed
from engine.request import FinishReason
from engine.serve import IDLE_S, serve_arrivals
from engine.wire import Message
from tests.engine.requests import make_request
from tests.engine.stepping import SteppingEngine


def timed(name: str, due_s: float, *, max_tokens: int = 3) -> Message:
    """Return a request's message as it comes off the wire."""
    request = make_request(request_id=name, max_tokens=max_tokens)
    message = {"op": "requests", "items": [{"due_s": due_s, "request": request}]}
    sent: Message = json.loads(json.dumps(message, default=wire.fields_of))
    return sent


class ScriptedInbox:
    """Messages that come at times of the engine's clock."""

    def __init__(self, stepper: SteppingEngine, messages: list[tuple[float, Message]]) -> None:
        self._stepper = stepper
        self._messages = deque(sorted(messages, key=lambda one: one[0]))
        self.longest_wait_s = 0.0

    def next(self, timeout_s: float | None = None) -> Message | None:
        assert timeout_s is not None
        self.longest_wait_s = max(self.longest_wait_s, timeout_s)
        end_s = self._stepper.time_s + timeout_s
        if self._messages and self._messages[0][0] <= end_s:
            self._stepper.time_s = max(self._stepper.time_s, self._messages[0][0])
            return self._messages.popleft()[1]
        self._stepper.time_s = end_s
        return None

    def poll(self) -> Message | None:
        if self._messages and self._messages[0][0] <= self._stepper.time_s:
            return self._messages.popleft()[1]
        return None


#: Seconds from a request's message to its being due (below 0: it came late), and to the next message.
_GAPS = st.tuples(st.floats(-1, 5, allow_subnormal=False), st.floats(0, 3, allow_subnormal=False))


@given(gaps=st.lists(_GAPS, max_size=8), is_live=st.booleans())
def test_no_due_time_is_missed(gaps: list[tuple[float, float]], is_live: bool) -> None:
    """A request is let in within a step of being due and known, never before, with its due time as arrival."""
    stepper, messages, expected = SteppingEngine(), [], []
    sent_s = due_s = 0.0
    for number, (notice_s, gap_s) in enumerate(gaps):
        due_s = max(due_s, sent_s + notice_s)
        messages.append((sent_s, timed(f"r{number}", due_s)))
        expected.append((f"r{number}", due_s, max(due_s, sent_s)))
        sent_s += gap_s
    inbox = ScriptedInbox(stepper, [*messages, (sent_s, {"op": "end"})])

    records = serve_arrivals(stepper, TimedFeed(inbox, stepper.cancel, is_live=is_live), lambda _: True)

    assert [(name, due) for name, due, _ in stepper.let_in] == [(name, due) for name, due, _ in expected]
    for (_, _, at_s), (_, _, earliest_s) in zip(stepper.let_in, expected, strict=True):
        assert -1e-9 <= at_s - earliest_s <= stepper.step_s + 1e-9
    assert sorted(record.request_id for record in records) == sorted(name for name, _, _ in expected)
    assert inbox.longest_wait_s <= IDLE_S


def test_cancelling_ends_one_request() -> None:
    """A cancelled request ends with what it had, the others go on; one that is not there changes nothing."""
    stepper = SteppingEngine()
    inbox = ScriptedInbox(
        stepper,
        [
            (0.0, timed("a", 0.0, max_tokens=50)),
            (0.0, timed("b", 0.0)),
            (0.5, {"op": "cancel", "request_id": "a"}),
            (0.5, {"op": "cancel", "request_id": "never seen"}),
            (0.5, {"op": "end"}),
        ],
    )

    records = serve_arrivals(stepper, TimedFeed(inbox, stepper.cancel, is_live=True), lambda _: True)

    reasons = {record.request_id: record.finish_reason for record in records}
    assert reasons == {"a": FinishReason.CANCELLED, "b": FinishReason.LENGTH}


def test_stop_ends_a_feed_with_requests_left() -> None:
    """After the host's stop no more requests are handed out, whatever is at hand."""
    stepper = SteppingEngine()
    closed = ClosedFeed(ScriptedInbox(stepper, [(0.0, {"op": "stop"})]))

    assert closed.is_stopped()
    assert list(closed.requests()) == []
