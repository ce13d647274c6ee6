"""What the host sends its child of a load, and when: enough that an engine never waits for it. Free of torch.

Knows nothing of processes: it says what to send, and `engine.host` sends it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from engine.load import ClosedLoad, LiveLoad, Load, OpenLoad, TimedRequest
from engine.request import FinishReason, Request, RequestRecord
from engine.serve import unserved
from engine.wire import Message

#: Requests of a closed load kept ready in the child, as a multiple of the concurrency.
_READY_FACTOR = 4
#: How long before they are due requests of an open load are sent, and how often it is looked for them.
AHEAD_S, _LOOK_S = 2.0, 0.5
#: How long a thread that waits for live requests takes to see that nobody wants more.
_POLL_S = 0.1


class Supply(Protocol):
    """What is sent for one load."""

    @property
    def wake_s(self) -> float | None:
        """When to ask again for messages, on the monotonic clock, whatever the child says; None for never."""

    def opening(self) -> Message:
        """Return the message that begins the load."""

    def messages(self) -> Iterator[Message]:
        """Yield what is to be sent now."""

    def ended(self, records: tuple[RequestRecord, ...]) -> None:
        """Note what has ended."""

    def close(self) -> list[RequestRecord]:
        """Send no more; return the records of what was taken in and has not ended, for none of them comes back."""


def supply_of(load: Load, put: Callable[[Message], None]) -> Supply:
    """Return the supply of a load that begins now; `put` takes, from any thread, messages that cannot wait."""
    match load:
        case ClosedLoad():
            return _ClosedSupply(load)
        case OpenLoad():
            return _OpenSupply(load)
        case LiveLoad():
            return _LiveSupply(load, put)


class _ClosedSupply:
    """Sends as many more as have ended."""

    wake_s: float | None = None

    def __init__(self, load: ClosedLoad) -> None:
        self._load = load
        self._num_missing = _READY_FACTOR * load.concurrency

    def opening(self) -> Message:
        return {"op": "run", "load": "closed", "concurrency": self._load.concurrency}

    def messages(self) -> Iterator[Message]:
        if not self._num_missing:
            return
        items = list(islice(self._load.requests, self._num_missing))
        if items:
            yield {"op": "requests", "items": items}
        if len(items) < self._num_missing:
            yield {"op": "end"}
        self._num_missing = 0

    def ended(self, records: tuple[RequestRecord, ...]) -> None:
        self._num_missing += len(records)

    def close(self) -> list[RequestRecord]:
        return []


class _OpenSupply:
    """Sends what is due soon; the load's time begins when this is made."""

    def __init__(self, load: OpenLoad, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._start_s = now_s()
        self._requests: Iterator[TimedRequest] = load.requests
        self._next = next(self._requests, None)
        self._has_said_end = False
        self.wake_s: float | None = self._start_s

    def opening(self) -> Message:
        return {"op": "run", "load": "open"}

    def messages(self) -> Iterator[Message]:
        if self._has_said_end:
            return
        now_s = self._now_s()
        items = list(self._due_before(now_s + AHEAD_S))
        if items:
            yield {"op": "requests", "items": items}
        self.wake_s = now_s + _LOOK_S
        if self._next is None:
            self._has_said_end, self.wake_s = True, None
            yield {"op": "end"}

    def ended(self, records: tuple[RequestRecord, ...]) -> None:
        pass  # what has ended does not decide what comes

    def close(self) -> list[RequestRecord]:
        return []

    def _due_before(self, limit_s: float) -> Iterator[Message]:
        while self._next is not None and (due_s := self._start_s + self._next.offset_s) < limit_s:
            yield {"due_s": due_s, "request": self._next.request}
            self._next = next(self._requests, None)


class _LiveSupply:
    """Hands on what comes in, with the time at which it came, by a thread of its own."""

    wake_s: float | None = None

    def __init__(self, load: LiveLoad, put: Callable[[Message], None]) -> None:
        self._inbox = load.inbox
        self._put = put
        self._is_closed = threading.Event()
        self._taken: dict[str, tuple[Request, float]] = {}
        self._thread = threading.Thread(target=self._hand_on, name="live-load", daemon=True)

    def opening(self) -> Message:
        self._thread.start()
        return {"op": "run", "load": "live"}

    def messages(self) -> Iterator[Message]:
        return iter(())

    def ended(self, records: tuple[RequestRecord, ...]) -> None:
        for record in records:
            self._taken.pop(record.request_id, None)

    def close(self) -> list[RequestRecord]:
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join()
        return [unserved(request, due_s, FinishReason.CANCELLED) for request, due_s in self._taken.values()]

    def _hand_on(self) -> None:
        while not self._is_closed.is_set():
            try:
                request = self._inbox.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if request is None:
                self._put({"op": "end"})
                return
            due_s = time.monotonic()
            self._taken[request.request_id] = (request, due_s)
            self._put({"op": "requests", "items": [{"due_s": due_s, "request": request}]})
