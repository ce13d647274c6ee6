"""A group of GPUs that takes steps together, one after the other: its energy, and how long it ran at which clock.

Power is constant during a step, so every figure is exact at every instant. Plain mutable slots: a step goes through
here once. Knows nothing of why a step takes as long, or draws as much, as it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from probes import clock_events

#: A clock stays up for so long after work ended (assumption: seconds, on GPUs with a model loaded), then it falls.
HOLD_S = 15.0


class ClockState:
    """A clock with the events shown beside it, and the GPU-seconds spent so."""

    __slots__ = ("clock_mhz", "events", "gpu_s")

    def __init__(self, clock_mhz: float, events: tuple[str, ...]) -> None:
        self.clock_mhz = clock_mhz
        self.events = events
        self.gpu_s = 0.0


class ClockTimes:
    """The states that the lanes of one run have been in."""

    def __init__(self, idle_clock_mhz: float) -> None:
        self._states: dict[tuple[float, tuple[str, ...]], ClockState] = {}
        self.idle = self.of(idle_clock_mhz, (clock_events.IDLE,))

    def of(self, clock_mhz: float, events: tuple[str, ...]) -> ClockState:
        """Return the one state of this clock and these events."""
        key = (clock_mhz, events)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = ClockState(clock_mhz, events)
        return state

    def gpu_s(self) -> dict[tuple[float, tuple[str, ...]], float]:
        """Return the GPU-seconds of each clock and its events."""
        return {key: state.gpu_s for key, state in self._states.items()}

    def rest(self, clock_mhz: float, seconds: float) -> Mapping[ClockState, float]:
        """Return how long which state is shown in a pause of this length after work at a clock."""
        held_s = min(seconds, HOLD_S)
        held = self.of(clock_mhz, ())
        return {held: held_s, self.idle: seconds - held_s} if seconds > held_s else {held: held_s}


class Segment(NamedTuple):
    """Work that was given ahead of its time."""

    start_s: float
    end_s: float
    #: Of all GPUs of the lane.
    power_w: float
    num_gpus: int
    state: ClockState
    #: At its start.
    temperature_c: float


class Lane:
    """One group of GPUs."""

    __slots__ = (
        "_busy_gpu_s",
        "_energy_j",
        "_queue",
        "_times",
        "end_s",
        "free_s",
        "given",
        "num_gpus",
        "power_w",
        "start_s",
        "state",
        "temperature_c",
    )

    def __init__(self, num_gpus: int, start_s: float, state: ClockState, times: ClockTimes) -> None:
        """Begin to count at `start_s`, at rest."""
        self._times = times
        self._queue: deque[Segment] = deque()
        self._energy_j = 0.0
        self._busy_gpu_s = 0.0
        #: Of the work in progress, or else the last: start, end, power of all GPUs, GPUs, state, temperature at start.
        self.start_s = self.end_s = start_s
        self.power_w = 0.0
        self.num_gpus = num_gpus
        self.state = state
        self.temperature_c = 0.0
        #: End and state of the last work that was given.
        self.free_s = start_s
        self.given = state

    def give(
        self,
        now_s: float,
        start_s: float,
        end_s: float,
        power_w: float,
        num_gpus: int,
        state: ClockState,
        temperature_c: float,
    ) -> None:
        """Do this work from `start_s` on, after all that was given before; `power_w` is of all the lane's GPUs."""
        self.free_s = end_s
        self.given = state
        if self._queue:
            self.settle(now_s)
        if start_s > now_s or self._queue:
            self._queue.append(Segment(start_s, end_s, power_w, num_gpus, state, temperature_c))
        else:
            self._enter(start_s, end_s, power_w, num_gpus, state, temperature_c)

    def settle(self, now_s: float) -> None:
        """Take up all work that has begun by now; to be called before what follows."""
        while self._queue and self._queue[0].start_s <= now_s:
            self._enter(*self._queue.popleft())

    def is_running(self, now_s: float) -> bool:
        """Return whether a step is in progress, or ends just now."""
        return self.start_s < self.end_s >= now_s

    def energy_j(self, now_s: float) -> float:
        """Return the energy of the steps until now, of one in progress its share."""
        return self._energy_j + self.power_w * (min(now_s, self.end_s) - self.start_s)

    def busy_gpu_s(self, now_s: float) -> float:
        """Return GPUs times the time that they were in a step."""
        return self._busy_gpu_s + self.num_gpus * (min(now_s, self.end_s) - self.start_s)

    def unsettled(self, now_s: float) -> Mapping[ClockState, float]:
        """Return the GPU-seconds since the beginning of the work in progress, which no state has yet."""
        spent = {self.state: min(now_s, self.end_s) - self.start_s}
        if now_s > self.end_s:
            for state, seconds in self._times.rest(self.state.clock_mhz, now_s - self.end_s).items():
                spent[state] = spent.get(state, 0.0) + seconds
        return {state: seconds * self.num_gpus for state, seconds in spent.items()}

    def shown(self, now_s: float) -> ClockState:
        """Return the clock and events to be seen now."""
        if self.is_running(now_s):
            return self.state
        return self._times.of(self.state.clock_mhz, ()) if now_s < self.end_s + HOLD_S else self._times.idle

    def _enter(
        self, start_s: float, end_s: float, power_w: float, num_gpus: int, state: ClockState, temperature_c: float
    ) -> None:
        """Begin this work; what was in progress has ended."""
        seconds = self.end_s - self.start_s
        gpu_s = self.num_gpus * seconds
        self._energy_j += self.power_w * seconds
        self._busy_gpu_s += gpu_s
        self.state.gpu_s += gpu_s
        if start_s > self.end_s:
            for rested, rest_s in self._times.rest(self.state.clock_mhz, start_s - self.end_s).items():
                rested.gpu_s += rest_s * self.num_gpus
        self.start_s = start_s
        self.end_s = end_s
        self.power_w = power_w
        self.num_gpus = num_gpus
        self.state = state
        self.temperature_c = temperature_c
