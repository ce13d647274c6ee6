"""Which request is due when, and everything about it made ready before that.

Knows nothing of connections: what is made ready is handed in as a function.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Protocol

from engine.load import ClosedLoad, LiveLoad, Load, OpenLoad, TimedRequest
from engine.request import Request

#: A place in a closed load is not filled again at once after a failure: a server that refuses everything would be
#: asked tens of thousands of times a second.
FAILURE_PAUSE_S = 0.1
#: How often a live load's thread looks whether the load has ended.
_LOOK_S = 0.05

#: A request, what is sent for it, and when it is due.
Due = tuple[Request, bytes, float]
#: Makes what is sent.
Prepare = Callable[[Request], bytes]


class Arrivals(Protocol):
    """The requests that have not arrived yet."""

    @property
    def next_s(self) -> float | None:
        """When the next one is due, made ready; None when that depends on what others do, or there is none."""

    @property
    def is_over(self) -> bool:
        """Whether no more will come, whatever happens."""

    def take(self, now_s: float) -> Due | None:
        """Return the next one if it is due."""

    def ended(self, time_s: float, *, has_failed: bool) -> None:
        """A request of these has ended."""

    def close(self) -> None:
        """No more are wanted."""


def arrivals_of(load: Load, prepare: Prepare, start_s: float, *, wake: Callable[[], None]) -> Arrivals:
    """Return a load's requests, counted from then; `wake` may be called from any thread when one has come."""
    if isinstance(load, ClosedLoad):
        return _Closed(load, prepare, start_s)
    if isinstance(load, OpenLoad):
        return _Open(load, prepare, start_s)
    return _Live(load, prepare, wake)


class _Closed:
    """The next request is due when one ends."""

    def __init__(self, load: ClosedLoad, prepare: Prepare, start_s: float) -> None:
        self._ready = _Ready(load.requests, prepare)
        #: When each free place became free.
        self._free_s = [start_s] * load.concurrency
        #: Places that no request has had yet: theirs is due when it is ready, there is nothing it could be late for.
        self._num_new = load.concurrency

    @property
    def next_s(self) -> float | None:
        return self._free_s[0] if self._ready.peek() is not None and self._free_s else None

    @property
    def is_over(self) -> bool:
        return self._ready.peek() is None

    def take(self, now_s: float) -> Due | None:
        if not self._free_s or self._free_s[0] > now_s or (taken := self._ready.take()) is None:
            return None
        due_s = heapq.heappop(self._free_s)
        if self._num_new:
            self._num_new -= 1
            due_s = time.monotonic()
        return *taken, due_s

    def ended(self, time_s: float, *, has_failed: bool) -> None:
        heapq.heappush(self._free_s, time_s + (FAILURE_PAUSE_S if has_failed else 0.0))

    def close(self) -> None:
        pass


class _Open:
    """Requests are due at times of their own."""

    def __init__(self, load: OpenLoad, prepare: Prepare, start_s: float) -> None:
        self._ready = _Ready(self._requests(load.requests), prepare)
        self._start_s = start_s
        self._offset_s = 0.0

    @property
    def next_s(self) -> float | None:
        return None if self._ready.peek() is None else self._start_s + self._offset_s

    @property
    def is_over(self) -> bool:
        return self._ready.peek() is None

    def take(self, now_s: float) -> Due | None:
        due_s = self.next_s
        if due_s is None or due_s > now_s or (taken := self._ready.take()) is None:
            return None
        return *taken, due_s

    def ended(self, time_s: float, *, has_failed: bool) -> None:
        pass

    def close(self) -> None:
        pass

    def _requests(self, timed: Iterator[TimedRequest]) -> Iterator[Request]:
        for one in timed:
            self._offset_s = one.offset_s
            yield one.request


class _Ready:
    """Requests, of which the next one is made ready before it is wanted."""

    def __init__(self, requests: Iterator[Request], prepare: Prepare) -> None:
        self._requests = requests
        self._prepare = prepare
        self._next: tuple[Request, bytes] | None = None
        self._is_over = False

    def peek(self) -> tuple[Request, bytes] | None:
        """Return the next one; None when there is none."""
        if self._next is None and not self._is_over:
            request = next(self._requests, None)
            self._is_over = request is None
            self._next = None if request is None else (request, self._prepare(request))
        return self._next

    def take(self) -> tuple[Request, bytes] | None:
        """Return the next one, which then is the next one no more."""
        taken, self._next = self.peek(), None
        return taken


class _Live:
    """Requests are due when somebody puts them in."""

    next_s: float | None = None

    def __init__(self, load: LiveLoad, prepare: Prepare, wake: Callable[[], None]) -> None:
        self._inbox: SimpleQueue[Request | None] = load.inbox
        self._prepare = prepare
        self._wake = wake
        self._came: deque[tuple[Request, float]] = deque()
        self._is_ended = False
        self._is_closed = threading.Event()
        threading.Thread(target=self._take, name="live-load", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._is_ended and not self._came

    def take(self, now_s: float) -> Due | None:
        if not self._came:
            return None
        request, came_s = self._came.popleft()
        return request, self._prepare(request), came_s

    def ended(self, time_s: float, *, has_failed: bool) -> None:
        pass

    def close(self) -> None:
        self._is_closed.set()

    def _take(self) -> None:
        while not self._is_closed.is_set():
            try:
                request = self._inbox.get(timeout=_LOOK_S)
            except Empty:
                continue
            if request is None:
                self._is_ended = True
                self._is_closed.set()
            else:
                self._came.append((request, time.monotonic()))
            self._wake()
