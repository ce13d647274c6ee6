"""Serve a load: let its requests in as they arrive, step until it is used up or the observer has seen enough.

The same for every engine of ours, whatever a step is and whatever clock it is on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

from engine.load import ClosedLoad, Load, Observer, Progress, TimedRequest
from engine.request import Request, RequestRecord


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
        """Let time pass with nothing to do."""

    def cancel_all(self) -> list[RequestRecord]:
        """End whatever is in flight."""


def serve(stepper: Stepper, load: Load, observer: Observer) -> list[RequestRecord]:
    """Serve a load; see `ServingEngine.run`. Afterwards the engine is empty, also when a request was refused."""
    arrivals: Arrivals = _Closed(load) if isinstance(load, ClosedLoad) else _Open(load, stepper.now_s())
    records: list[RequestRecord] = []
    try:
        arrivals.let_in(stepper)
        while stepper.num_in_flight or arrivals.next_s is not None:
            if not stepper.num_in_flight and arrivals.next_s is not None:
                stepper.wait_until(arrivals.next_s)
            else:
                progress = stepper.advance(arrivals.next_s)
                records.extend(progress.finished)
                if not observer(progress):
                    break
            arrivals.let_in(stepper)
    except Exception:  # not an interrupt: that may come amid a step, and whoever is interrupted closes the engine
        stepper.cancel_all()
        raise
    return records + stepper.cancel_all()


class Arrivals(Protocol):
    """The requests that have not arrived yet."""

    @property
    def next_s(self) -> float | None:
        """When the next one is due whatever the engine does; None when there is none, or that depends on the engine."""

    def let_in(self, stepper: Stepper) -> None:
        """Let in what is due."""


class _Closed:
    """The next request is due when one ends."""

    next_s: float | None = None

    def __init__(self, load: ClosedLoad) -> None:
        self._load = load

    def let_in(self, stepper: Stepper) -> None:
        missing = self._load.concurrency - stepper.num_in_flight
        for request in itertools.islice(self._load.requests, max(0, missing)):
            stepper.add(request)


class _Open:
    """Requests are due at times of their own."""

    def __init__(self, load: Load, start_s: float) -> None:
        assert not isinstance(load, ClosedLoad)
        self._requests: Iterator[TimedRequest] = load.requests
        self._start_s = start_s
        self._next = next(self._requests, None)

    @property
    def next_s(self) -> float | None:
        return None if self._next is None else self._start_s + self._next.offset_s

    def let_in(self, stepper: Stepper) -> None:
        now_s = stepper.now_s()
        while self._next is not None and (due_s := self._start_s + self._next.offset_s) <= now_s:
            stepper.add(self._next.request, due_s)
            self._next = next(self._requests, None)
