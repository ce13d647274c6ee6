"""Time as the probes need it: monotonic, indifferent to corrections of the wall clock.

Tests put a clock of their own in its place. Knows nothing of what is timed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Event
from typing import Protocol

#: A difference between the two clocks above this is a suspend; below it is the time between two calls.
SUSPEND_THRESHOLD_S = 0.5


class Clock(Protocol):
    """What a meter asks of time."""

    def monotonic_s(self) -> float:
        """Seconds that stand still while the machine is suspended (CLOCK_MONOTONIC)."""

    def boottime_s(self) -> float:
        """Seconds that run on while the machine is suspended (CLOCK_BOOTTIME)."""

    def wait(self, event: Event, timeout_s: float) -> bool:
        """Wait until the event is set, at most `timeout_s`; return whether it is set."""


class SystemClock:
    """The kernel's clocks."""

    def monotonic_s(self) -> float:
        """Read CLOCK_MONOTONIC."""
        return time.monotonic()

    def boottime_s(self) -> float:
        """Read CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wait(self, event: Event, timeout_s: float) -> bool:
        """Wait for the event in real time."""
        return event.wait(timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One instant on both clocks."""

    monotonic_s: float
    boottime_s: float

    @classmethod
    def now(cls, clock: Clock) -> Mark:
        """Read both clocks."""
        return cls(monotonic_s=clock.monotonic_s(), boottime_s=clock.boottime_s())

    def is_suspended_until(self, later: Mark) -> bool:
        """Return whether the machine slept between this mark and a later one."""
        asleep_s = (later.boottime_s - self.boottime_s) - (later.monotonic_s - self.monotonic_s)
        return asleep_s > SUSPEND_THRESHOLD_S
