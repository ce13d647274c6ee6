"""Mean power between two looks, for sources that know energy but no power.

Knows nothing of where the energy comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock

from probes.clock import Clock
from probes.errors import ProbeError

#: Looks that follow each other faster share an answer: counters and CPU time come in steps.
SHORTEST_S = 0.1


class RecentPower:
    """Remembers the energy at the last look."""

    def __init__(self, read_j: Callable[[], float], *, clock: Clock, longest_s: float = math.inf) -> None:
        """Take joules since any beginning from `read_j`; across more than `longest_s` they cannot be compared."""
        self._read_j = read_j
        self._clock = clock
        self._longest_s = longest_s
        self._lock = Lock()
        self._last: tuple[float, float] | None = None
        self._power_w: float | None = None

    def look_w(self) -> float | None:
        """Return mean power since the last look; None at the first, after an unreadable one and after too long."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._last is not None and now_s - self._last[0] < SHORTEST_S:
                return self._power_w
            try:
                energy_j = self._read_j()
            except ProbeError:
                self._last = self._power_w = None
                raise
            last, self._last = self._last, (now_s, energy_j)
            self._power_w = None
            if last is not None and now_s - last[0] <= self._longest_s and energy_j >= last[1]:
                self._power_w = (energy_j - last[1]) / (now_s - last[0])
            return self._power_w
