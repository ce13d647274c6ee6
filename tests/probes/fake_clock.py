"""A clock that moves when a test says so, and takes the sampler threads with it."""

from __future__ import annotations

import threading
from threading import Condition, Event, Thread

from probes.metering.sampler import THREAD_NAME

_POLL_S = 0.001


class FakeClock:
    """Virtual seconds; `advance` returns once every sampler thread has done its work up to then."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self._now_s = now_s
        self._asleep_s = 0.0
        self._condition = Condition()
        self._deadlines: dict[Thread, float] = {}

    def monotonic_s(self) -> float:
        return self._now_s

    def boottime_s(self) -> float:
        return self._now_s + self._asleep_s

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: boot time passes, monotonic time does not."""
        self._asleep_s += seconds

    def jump(self, seconds: float) -> None:
        """Let time pass in which no thread got to run."""
        with self._condition:
            self._now_s += seconds

    def wait(self, event: Event, timeout_s: float) -> bool:
        thread = threading.current_thread()
        if thread.name != THREAD_NAME:
            self.advance(timeout_s)
            return event.is_set()
        with self._condition:
            deadline_s = self._deadlines[thread] = self._now_s + timeout_s
            self._condition.notify_all()
            while not event.is_set() and self._now_s < deadline_s:
                self._condition.wait(_POLL_S)
            del self._deadlines[thread]
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Move time on, stopping at every instant a thread waits for."""
        target_s = self._now_s + seconds
        self._settle()
        while self._now_s < target_s:
            with self._condition:
                self._now_s = min([target_s, *self._deadlines.values()])
                self._condition.notify_all()
            self._settle()

    def _settle(self) -> None:
        """Wait until every live sampler thread waits for an instant to come."""
        with self._condition:
            while any(
                self._deadlines.get(thread, 0.0) <= self._now_s
                for thread in threading.enumerate()
                if thread.name == THREAD_NAME
            ):
                self._condition.wait(_POLL_S)
