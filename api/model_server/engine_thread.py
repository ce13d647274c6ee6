"""The engine's live load in a thread, and who waits for which tokens in the event loop.

Everything but the load itself happens in the event loop: the thread hands each step over in one call. Knows nothing of
texts or HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

import structlog

from api.model_server.api_errors import EngineFailed, Overloaded
from engine.errors import EngineError
from engine.load import LiveLoad, Load, Observer, Progress
from engine.request import Request, RequestRecord
from engine.settings import EngineInfo

log = structlog.get_logger()


class LiveEngine(Protocol):
    """What is asked of an engine; `engine.host.EngineHost` is one."""

    @property
    def info(self) -> EngineInfo:
        """What was opened."""

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        """Serve a load."""

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request, from any thread."""


class Waiter(Protocol):
    """Whoever waits for a request's tokens."""

    def take(self, token_ids: Sequence[int], time_s: float, *, is_last: bool) -> None:
        """Take the tokens of one step; with the last ones the record follows at once."""

    def end(self, record: RequestRecord, time_s: float) -> None:
        """Take the record: nothing comes after it."""

    def fail(self, words: str) -> None:
        """The engine is gone: nothing comes any more."""


class EngineThread:
    """Serves what is submitted until it is closed or the engine dies."""

    def __init__(
        self,
        serving: LiveEngine,
        *,
        max_open: int,
        on_progress: Callable[[Progress], None],
        on_death: Callable[[str], None],
    ) -> None:
        """Let at most `max_open` requests run or wait; both callables are called in the event loop."""
        self._serving = serving
        self._max_open = max_open
        self._on_progress = on_progress
        self._on_death = on_death
        self._inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._waiters: dict[str, Waiter] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._is_closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Why the engine ended before it was told to; None while it runs.
        self.death: str | None = None

    @property
    def num_open(self) -> int:
        """Requests that run or wait."""
        return len(self._waiters)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to serve; steps are handed to this loop."""
        self._loop = loop
        self._thread.start()

    def submit(self, requests: Sequence[Request], waiters: Sequence[Waiter]) -> None:
        """Hand requests to the engine, all or none. Raises Overloaded, EngineFailed."""
        if self.death is not None:
            raise EngineFailed(self.death, code="engine_died")
        if self.num_open + len(requests) > self._max_open:
            raise Overloaded(
                f"{self.num_open} requests run or wait, and {self._max_open} may; ask again later", code="overloaded"
            )
        for request, waiter in zip(requests, waiters, strict=True):
            self._waiters[request.request_id] = waiter
            self._inbox.put(request)

    def cancel(self, request_id: str) -> bool:
        """End a request whose answer nobody wants any more; tell whether it was open."""
        if self._waiters.pop(request_id, None) is None:
            return False
        self._serving.cancel(request_id)
        return True

    def close(self) -> None:
        """End the load with whatever is in it, and wait for its end; to be called outside the event loop."""
        self._is_closing = True
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._serving.run(LiveLoad(inbox=self._inbox), self._observe)
        except EngineError as error:
            self._hand_over(self._die, f"{error.kind}: {error}")
        except Exception as error:  # whatever it is, callers must not wait for ever
            log.exception("engine_thread_failed")
            self._hand_over(self._die, f"{type(error).__name__}: {error}")

    def _observe(self, progress: Progress) -> bool:
        self._hand_over(self._deliver, progress)
        return not self._is_closing

    def _hand_over(self, function: Callable[..., None], argument: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, argument)

    def _deliver(self, progress: Progress) -> None:
        """Give every waiter the tokens of a step, then the records of those that ended."""
        now_s = time.monotonic()
        pieces: dict[str, list[int]] = {}
        for request_id, token_id in progress.token_ids:
            pieces.setdefault(request_id, []).append(token_id)
        ended = {record.request_id for record in progress.finished}
        for request_id, token_ids in pieces.items():
            if (waiter := self._waiters.get(request_id)) is not None:
                waiter.take(token_ids, now_s, is_last=request_id in ended)
        for record in progress.finished:
            if (waiter := self._waiters.pop(record.request_id, None)) is not None:
                waiter.end(record, now_s)
        self._on_progress(progress)

    def _die(self, words: str) -> None:
        self.death = words
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.fail(words)
        self._on_death(words)
