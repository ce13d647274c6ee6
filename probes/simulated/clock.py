"""Virtual time: it passes when somebody says so, at once, and equally for every run.

Instants lie on a grid of 2^-30 s, on which sums and differences of times are exact: what a run takes does not depend on
when it begins. Knows nothing of what happens meanwhile; whoever wants to look at certain instants is called then.
"""

from __future__ import annotations

import math
from threading import Event
from typing import Protocol

#: Grid of virtual time. Exact in a double for the first 2^23 s, 97 days.
TICKS_PER_S = 2.0**30


class Visitor(Protocol):
    """Somebody who wants to look at certain instants."""

    @property
    def due_s(self) -> float:
        """The next of them; each visit must move it on."""

    def visit(self, now_s: float) -> None:
        """Look: the clock stands at this instant."""


class VirtualClock:
    """A `probes.clock.Clock` of one simulated device; not for more than one thread."""

    __slots__ = ("_due_s", "_visitors", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due_s = math.inf
        self._visitors: list[Visitor] = []

    def monotonic_s(self) -> float:
        """Return the present instant."""
        return self.now_s

    def boottime_s(self) -> float:
        """Return the same: a simulated machine never sleeps."""
        return self.now_s

    def wait(self, event: Event, timeout_s: float) -> bool:
        """Let `timeout_s` pass, in which the device does what it was given, else idles; return whether it is set."""
        self.advance_to(self.now_s + max(timeout_s, 0.0))
        return event.is_set()

    def advance_to(self, time_s: float) -> None:
        """Let time pass until `time_s`, or the next instant of the grid; nothing happens where that is past."""
        time_s = math.ceil(time_s * TICKS_PER_S) / TICKS_PER_S
        if time_s >= self._due_s:
            self._call_until(time_s)
        if time_s > self.now_s:
            self.now_s = time_s

    def add(self, visitor: Visitor) -> None:
        """Call this visitor from now on; of those due at once, whoever was added first comes first."""
        self._visitors.append(visitor)
        self._due_s = min(self._due_s, visitor.due_s)

    def remove(self, visitor: Visitor) -> None:
        """Call it no more. Idempotent."""
        self._visitors = [other for other in self._visitors if other is not visitor]
        self._due_s = min((other.due_s for other in self._visitors), default=math.inf)

    def _call_until(self, time_s: float) -> None:
        while self._due_s <= time_s:
            visitor = min(self._visitors, key=_due_s)
            self.now_s = max(self.now_s, math.ceil(visitor.due_s * TICKS_PER_S) / TICKS_PER_S)
            visitor.visit(self.now_s)
            self._due_s = min((other.due_s for other in self._visitors), default=math.inf)


def _due_s(visitor: Visitor) -> float:
    return visitor.due_s
