"""Serve a load: let its requests in as they arrive, step until it is used up or the observer has seen enough.

The same for every engine of ours, whatever a step is and whatever clock it is on.
"""

from __future__ import annotations

import dataclasses
import itertools
import queue
from collections.abc import Iterator, Sequence
from typing import Protocol

from engine.errors import RequestRefused
from engine.load import ClosedLoad, LiveLoad, Load, Observer, OpenLoad, Progress, TimedRequest
from engine.request import FinishReason, Request, RequestRecord

#: An engine that has nothing to do asks its observer so often, in seconds, whether to go on.
IDLE_S = 0.25


class Stepper(Protocol):
    """An engine, one step at a time."""

    @property
    def num_in_flight(self) -> int:
        """Requests let in and not yet ended."""

    def now_s(self) -> float:
        """The engine's clock."""

    def add(self, request: Request, arrival_s: float | None = None) -> object:
        """Let a request in, which was due at `arrival_s` (now, when None); raise RequestRefused."""

    def advance(self, until_s: float | None) -> Progress:
        """Take one step, or several alike that end before `until_s`, when the next request is due."""

    def wait_until(self, time_s: float) -> None:
        """Let time pass with nothing to do; may return earlier, so that somebody can say stop."""

    def cancel_all(self) -> list[RequestRecord]:
        """End whatever is in flight."""


class Arrivals(Protocol):
    """The requests that have not arrived yet."""

    @property
    def next_s(self) -> float | None:
        """When the next one is due whatever the engine does; None when there is none, or that is not known."""

    @property
    def is_open(self) -> bool:
        """Whether requests may come though the engine has nothing in flight."""

    def let_in(self, stepper: Stepper) -> Sequence[RequestRecord]:
        """Let in what is due; return what ended without a step."""

    def wait(self, stepper: Stepper) -> bool:
        """Let time pass with nothing in flight, for a moment at most; tell whether there is something to let in."""


def serve(stepper: Stepper, load: Load, observer: Observer) -> list[RequestRecord]:
    """Serve a load; see `ServingEngine.run`. Afterwards the engine is empty, also when a request was refused."""
    return serve_arrivals(stepper, _arrivals(load, stepper.now_s()), observer)


def serve_arrivals(stepper: Stepper, arrivals: Arrivals, observer: Observer) -> list[RequestRecord]:
    """Serve what arrives: records of what the observer was told of come first, those still in flight last."""
    records: list[RequestRecord] = []
    try:
        while True:
            ended = arrivals.let_in(stepper)
            if stepper.num_in_flight:
                progress = stepper.advance(arrivals.next_s)
            elif not (ended or arrivals.is_open):
                break
            elif not ended and arrivals.wait(stepper):
                continue
            else:
                progress = _idle(stepper.now_s())
            if ended:
                progress = dataclasses.replace(progress, finished=(*ended, *progress.finished))
            records.extend(progress.finished)
            if not observer(progress):
                break
    except Exception:  # not an interrupt: that may come amid a step, and whoever is interrupted closes the engine
        stepper.cancel_all()
        raise
    return records + stepper.cancel_all()


def let_in_live(stepper: Stepper, request: Request, due_s: float | None) -> RequestRecord | None:
    """Let a live request in; one that the engine refuses ends by itself, and its record is returned."""
    try:
        stepper.add(request, due_s)
    except RequestRefused as error:
        return unserved(
            request, stepper.now_s() if due_s is None else due_s, FinishReason.ERROR, f"{error.kind}: {error}"
        )
    return None


def unserved(request: Request, due_s: float, reason: FinishReason, error: str | None = None) -> RequestRecord:
    """Return the record of a request that ended without a token."""
    return RequestRecord(
        request_id=request.request_id,
        num_prompt_tokens=len(request.prompt_token_ids),
        token_ids=(),
        text="",
        arrival_s=due_s,
        token_times_s=(),
        finish_reason=reason,
        error=error,
    )


def _arrivals(load: Load, start_s: float) -> Arrivals:
    match load:
        case ClosedLoad():
            return _Closed(load)
        case OpenLoad():
            return _Open(load, start_s)
        case LiveLoad():
            return _Live(load)


def _idle(time_s: float) -> Progress:
    """Return what an engine without anything to do tells."""
    return Progress(time_s=time_s, num_running=0, num_waiting=0, num_tokens=0, num_prompt_tokens=0, num_steps=0)


class _Closed:
    """The next request is due when one ends."""

    next_s: float | None = None
    is_open = False

    def __init__(self, load: ClosedLoad) -> None:
        self._load = load

    def let_in(self, stepper: Stepper) -> Sequence[RequestRecord]:
        missing = self._load.concurrency - stepper.num_in_flight
        for request in itertools.islice(self._load.requests, max(0, missing)):
            stepper.add(request)
        return ()

    def wait(self, stepper: Stepper) -> bool:
        return False  # nobody waits: without anything in flight there is no more


class _Open:
    """Requests are due at times of their own."""

    def __init__(self, load: OpenLoad, start_s: float) -> None:
        self._requests: Iterator[TimedRequest] = load.requests
        self._start_s = start_s
        self._next = next(self._requests, None)

    @property
    def next_s(self) -> float | None:
        return None if self._next is None else self._start_s + self._next.offset_s

    @property
    def is_open(self) -> bool:
        return self._next is not None

    def let_in(self, stepper: Stepper) -> Sequence[RequestRecord]:
        now_s = stepper.now_s()
        while self._next is not None and (due_s := self._start_s + self._next.offset_s) <= now_s:
            stepper.add(self._next.request, due_s)
            self._next = next(self._requests, None)
        return ()

    def wait(self, stepper: Stepper) -> bool:
        due_s = self.next_s
        assert due_s is not None  # asked only while there is one
        stepper.wait_until(due_s)
        return due_s <= stepper.now_s()


class _Live:
    """Requests are due when they are found, which is between two steps; `engine.host` notes when they were put in."""

    next_s: float | None = None

    def __init__(self, load: LiveLoad) -> None:
        self._inbox = load.inbox
        self._found: list[Request] = []
        self.is_open = True

    def let_in(self, stepper: Stepper) -> Sequence[RequestRecord]:
        while self.is_open:
            try:
                self._take(self._inbox.get_nowait())
            except queue.Empty:
                break
        refused = [let_in_live(stepper, request, None) for request in self._found]
        self._found.clear()
        return [record for record in refused if record is not None]

    def wait(self, stepper: Stepper) -> bool:
        try:
            self._take(self._inbox.get(timeout=IDLE_S))
        except queue.Empty:
            return False
        return True

    def _take(self, item: Request | None) -> None:
        if item is None:
            self.is_open = False
        else:
            self._found.append(item)
