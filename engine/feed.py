"""What the host's messages bring while a load runs, on the child's side of `engine.host`. Free of torch.

A closed load is an iterator that waits for the host; it is kept well supplied. Requests with due times never hold up a
step: the engine is asked what it has, and only an engine with nothing to do waits for a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from engine import wire
from engine.request import Request, RequestRecord
from engine.serve import IDLE_S, Stepper, let_in_live
from engine.wire import Message


class Inbox(Protocol):
    """Messages of the host, in order."""

    def next(self, timeout_s: float | None = None) -> Message | None:
        """Wait for a message; None when none came in time."""

    def poll(self) -> Message | None:
        """Return a message that is there already, else None."""


class ClosedFeed:
    """Requests of which the next is due when one ends."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._ready: deque[Request] = deque()
        self._is_stopped = False
        self._is_ended = False

    def requests(self) -> Iterator[Request]:
        """Yield requests, waiting for the host when there are none at hand."""
        while True:
            if self._ready:
                yield self._ready.popleft()
            elif self._is_ended or self._is_stopped:
                return
            elif (message := self._inbox.next()) is not None:
                self._take(message)

    def is_stopped(self) -> bool:
        """Look, without waiting, whether the host said stop."""
        while (message := self._inbox.poll()) is not None:
            self._take(message)
        return self._is_stopped

    def _take(self, message: Message) -> None:
        self._ready.extend(wire.request_from(fields) for fields in message.get("items", ()))
        self._is_stopped = self._is_stopped or message["op"] == "stop"
        self._is_ended = self._is_ended or message["op"] == "end"


class TimedFeed:
    """Requests with due times on the machine's monotonic clock, by rising time; implements `Arrivals`.

    Of a live load one that is refused ends by itself; of any other it ends the load.
    """

    def __init__(self, inbox: Inbox, cancel: Callable[[str], RequestRecord | None], *, is_live: bool) -> None:
        self._inbox = inbox
        self._cancel = cancel
        self._is_live = is_live
        self._ready: deque[tuple[float, Request]] = deque()
        self._cancelled: list[str] = []
        self._is_stopped = False
        self._is_ended = False

    @property
    def next_s(self) -> float | None:
        """When the next one at hand is due."""
        return self._ready[0][0] if self._ready else None

    @property
    def is_open(self) -> bool:
        """Whether there are some at hand, or the host may send more."""
        return bool(self._ready) or not (self._is_ended or self._is_stopped)

    def let_in(self, stepper: Stepper) -> Sequence[RequestRecord]:
        """Let in what is due, then end what was cancelled; a request is never after its own cancellation."""
        self._poll()
        now_s = stepper.now_s()
        ended = []
        while self._ready and self._ready[0][0] <= now_s:
            due_s, request = self._ready.popleft()
            if not self._is_live:
                stepper.add(request, due_s)
            elif (refused := let_in_live(stepper, request, due_s)) is not None:
                ended.append(refused)
        for request_id in self._cancelled:
            if (record := self._cancel(request_id)) is not None:
                ended.append(record)
        self._cancelled.clear()
        return ended

    def wait(self, stepper: Stepper) -> bool:
        """Wait for a message until the next request is due, or for a moment."""
        timeout_s = IDLE_S
        if self.next_s is not None:
            timeout_s = min(timeout_s, self.next_s - stepper.now_s())
        message = self._inbox.next(max(0.0, timeout_s))
        if message is not None:
            self._take(message)
            return True
        return self.next_s is not None and self.next_s <= stepper.now_s()

    def is_stopped(self) -> bool:
        """Look, without waiting, whether the host said stop."""
        self._poll()
        return self._is_stopped

    def _poll(self) -> None:
        while (message := self._inbox.poll()) is not None:
            self._take(message)

    def _take(self, message: Message) -> None:
        match message["op"]:
            case "requests":
                self._ready.extend(wire.timed_from(fields) for fields in message["items"])
            case "cancel":
                self._cancelled.append(message["request_id"])
            case "end":
                self._is_ended = True
            case "stop":
                self._is_stopped = True
