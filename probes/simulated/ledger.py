"""The energy of a whole simulated device and the time it spent at each clock, exact at every instant.

What is in no step idles, and counts. A run's figures begin at zero, so that differences within one do not depend on
what ran before. Knows nothing of chance, caps or faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probes.simulated.lane import ClockTimes, Lane

#: GPU-seconds by clock in MHz and the events beside it.
ClockShares = Mapping[tuple[float, tuple[str, ...]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyMark:
    """Energy at one instant: of the runs before, and of the present one."""

    past_j: float
    run_j: float

    def since(self, earlier: EnergyMark) -> float:
        """Return the joules from an earlier instant to this one."""
        return (self.past_j - earlier.past_j) + (self.run_j - earlier.run_j)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockMark:
    """GPU-seconds at each clock until one instant, likewise; of GPUs that belong to a lane."""

    past_gpu_s: ClockShares
    run_gpu_s: ClockShares

    def since(self, earlier: ClockMark) -> ClockShares:
        """Return the GPU-seconds at each clock from an earlier instant to this one; what was not shown is left out."""
        spent = {
            key: (self.past_gpu_s.get(key, 0.0) - earlier.past_gpu_s.get(key, 0.0))
            + (self.run_gpu_s.get(key, 0.0) - earlier.run_gpu_s.get(key, 0.0))
            for key in sorted({*self.past_gpu_s, *self.run_gpu_s})
        }
        return {key: gpu_s for key, gpu_s in spent.items() if gpu_s > 0}


class Ledger:
    """The books of one device."""

    def __init__(self, *, num_gpus: int, idle_w: float, idle_clock_mhz: float) -> None:
        """Open the books at instant 0, with nothing loaded; `idle_w` is that of one GPU."""
        self._num_gpus = num_gpus
        self._idle_w = idle_w
        self._idle_clock_mhz = idle_clock_mhz
        self._begun_s = 0.0
        self._past_j = 0.0
        self._past_gpu_s: ClockShares = {}
        self.times = ClockTimes(idle_clock_mhz)
        self.lanes: dict[int, Lane] = {}

    @property
    def idle_w(self) -> float:
        """What a GPU in no step draws."""
        return self._idle_w

    def begin(self, now_s: float, *, idle_w: float) -> None:
        """Begin a run: whatever work is left of the one before is dropped, and all GPUs are free."""
        mark, clocks = self.energy(now_s), self.clocks(now_s)
        self._past_j = mark.past_j + mark.run_j
        self._past_gpu_s = _sum(clocks.past_gpu_s, clocks.run_gpu_s)
        self._idle_w = idle_w
        self._begun_s = now_s
        self.times = ClockTimes(self._idle_clock_mhz)
        self.lanes = {}

    def energy(self, now_s: float) -> EnergyMark:
        """Return the energy of all GPUs until now."""
        self.settle(now_s)
        busy_gpu_s = sum(lane.busy_gpu_s(now_s) for lane in self.lanes.values())
        idle_gpu_s = self._num_gpus * (now_s - self._begun_s) - busy_gpu_s
        run_j = sum(lane.energy_j(now_s) for lane in self.lanes.values()) + self._idle_w * idle_gpu_s
        return EnergyMark(past_j=self._past_j, run_j=run_j)

    def clocks(self, now_s: float) -> ClockMark:
        """Return the time spent at each clock until now."""
        self.settle(now_s)
        spent: ClockShares = self.times.gpu_s()
        for lane in self.lanes.values():
            unsettled = lane.unsettled(now_s).items()
            spent = _sum(spent, {(state.clock_mhz, state.events): gpu_s for state, gpu_s in unsettled})
        return ClockMark(past_gpu_s=self._past_gpu_s, run_gpu_s=spent)

    def power_w(self, now_s: float) -> float:
        """Return what all GPUs draw now."""
        running = self.running(now_s)
        num_idle = self._num_gpus - sum(lane.num_gpus for lane in running)
        return sum(lane.power_w for lane in running) + self._idle_w * num_idle

    def running(self, now_s: float) -> tuple[Lane, ...]:
        """Return the lanes that are in a step now."""
        self.settle(now_s)
        return tuple(lane for lane in self.lanes.values() if lane.is_running(now_s))

    def settle(self, now_s: float) -> None:
        """Take up all work that has begun by now."""
        for lane in self.lanes.values():
            lane.settle(now_s)


def _sum(one: ClockShares, other: ClockShares) -> ClockShares:
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in {**one, **other}}
