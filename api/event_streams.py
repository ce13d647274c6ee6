"""What happens to jobs, for those who follow them live: one look at the database serves all followers of a job.

A follower may come late or come back: it names the last event that it saw and gets what came after it. Knows the form
of server-sent events (WHATWG HTML, 9.2), not of requests.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence

import structlog
from starlette.concurrency import run_in_threadpool

from api.errors import Refusal
from api.stores import Stores
from db.errors import StoreError
from db.events import Event
from db.job import ENDED
from db.records import point_from_json

POLL_S = 0.5
#: A comment is sent after so long without an event, so that neither side takes the other for gone.
KEEPALIVE_S = 15.0
#: All jobs together.
MAX_STREAMS = 256
#: How long a client that lost its stream waits before it comes back.
RETRY_MS = 2_000
_KEPT = 1_000
_PAGE = 500

log = structlog.get_logger()


class TooManyStreams(Refusal):
    """Follow fewer jobs at once, or ask for them now and then."""

    status = 429
    title = "too many event streams"

    def headers(self) -> dict[str, str]:
        """Say when another attempt may help."""
        return {"Retry-After": "10"}


class _Feed:
    """The newest events of one job, as far as they were looked up."""

    def __init__(self, job_id: str, start: int) -> None:
        self.job_id = job_id
        #: Events up to this one are not kept, those after it up to `newest` are.
        self.oldest = start
        self.newest = start
        self.num_followers = 0
        self.has_ended = False
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()

    def after(self, event_id: int) -> list[Event] | None:
        """Return the events after one; None when some of them are no longer kept."""
        if event_id < self.oldest:
            return None
        return [event for event in self._events if event.id > event_id]

    def add(self, events: Sequence[Event]) -> None:
        """Take in what came after `newest`, and wake those who wait."""
        if not events:
            return
        self._events.extend(events)
        while len(self._events) > _KEPT:
            self.oldest = self._events.popleft().id
        self.newest = events[-1].id
        self.has_ended = _is_end(events[-1])
        self.wake()

    def wake(self) -> None:
        """Wake those who wait."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def wait(self, timeout_s: float) -> None:
        """Return when there is something new, or after a while."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except TimeoutError:
            return


class EventStreams:
    """The streams of one application."""

    def __init__(self, stores: Stores, *, poll_s: float = POLL_S, keepalive_s: float = KEEPALIVE_S) -> None:
        self._stores = stores
        self._poll_s = poll_s
        self._keepalive_s = keepalive_s
        self._feeds: dict[str, _Feed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def num_followers(self) -> int:
        """How many follow a job now."""
        return sum(feed.num_followers for feed in self._feeds.values())

    def close(self) -> None:
        """End every stream, as the server stops; clients come back to the one that follows."""
        self._is_closed = True
        for feed in self._feeds.values():
            feed.wake()

    async def open(self, job_id: str, after: int) -> AsyncIterator[bytes] | None:
        """Return a job's events behind one as they come, until the job has ended; None when nothing will come.

        Raises JobNotFound, AmbiguousJob, TooManyStreams.
        """
        if self.num_followers >= MAX_STREAMS:
            raise TooManyStreams(f"{MAX_STREAMS} clients follow jobs already; try again later, or read the job instead")
        job = await run_in_threadpool(self._stores.jobs.get, job_id)
        last_id = await run_in_threadpool(self._stores.events.last_id, job.id)
        if job.has_ended and after >= last_id:
            return None
        return self._frames(job.id, after, start=min(after, last_id))

    async def _frames(self, job_id: str, after: int, *, start: int) -> AsyncIterator[bytes]:
        feed = self._enter(job_id, start)
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            while not self._is_closed:
                events = await self._next(feed, after)
                if events:
                    after = events[-1].id
                    yield b"".join(_frame(event) for event in events)
                elif feed.has_ended and after >= feed.newest:
                    return
                else:
                    yield b": still there\n\n"
        finally:
            self._leave(feed)

    async def _next(self, feed: _Feed, after: int) -> Sequence[Event]:
        """Return what came after an event, waiting for it a while; nothing when the job ended or nothing came."""
        for is_last_look in (False, True):
            events = feed.after(after)
            if events is None:
                return await run_in_threadpool(self._stores.events.after, feed.job_id, after, limit=_PAGE)
            if events or feed.has_ended or is_last_look or self._is_closed:
                return events
            await feed.wait(self._keepalive_s)
        raise AssertionError("the second look is the last")

    def _enter(self, job_id: str, start: int) -> _Feed:
        feed = self._feeds.get(job_id)
        if feed is None:
            feed = self._feeds[job_id] = _Feed(job_id, start)
            task = asyncio.get_running_loop().create_task(self._poll(feed))
            self._tasks.add(task)  # the loop itself keeps no reference
            task.add_done_callback(self._tasks.discard)
        feed.num_followers += 1
        return feed

    def _leave(self, feed: _Feed) -> None:
        feed.num_followers -= 1
        if feed.num_followers == 0 and self._feeds.get(feed.job_id) is feed:
            del self._feeds[feed.job_id]

    async def _poll(self, feed: _Feed) -> None:
        """Look for new events as long as somebody follows."""
        while self._feeds.get(feed.job_id) is feed and not self._is_closed:
            try:
                found = await run_in_threadpool(self._stores.events.after, feed.job_id, feed.newest, limit=_PAGE)
            except StoreError as error:  # a busy database: the next look finds them
                log.warning("events_not_read", job=feed.job_id, error=str(error))
                found = []
            feed.add(found)
            if len(found) < _PAGE:
                await asyncio.sleep(self._poll_s)


def _is_end(event: Event) -> bool:
    return event.kind == "job" and event.data.get("state") in ENDED


def _frame(event: Event) -> bytes:
    """Return an event as it goes over the wire; JSON has no line breaks of its own."""
    data = {"job": event.job_id, "at": event.at.isoformat(), **event.data}
    if "knobs" in data:
        data["knobs"] = point_from_json(data["knobs"]).as_dict()
    return f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode()
