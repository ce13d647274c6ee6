"""The half of a simulated device that works: GPUs of one kind on a virtual clock, that do what they are given.

How long work takes and what it draws is the response's to say; added here are chance, idle GPUs, caps, temperature and
scripted faults. Knows nothing of models, tokens or requests, nor of who measures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from probes.clock_events import SW_POWER_CAP
from probes.device import UNSET
from probes.errors import DeviceLost, InvalidSetting, NotPermitted, NotSupported
from probes.settings import POWER_CAP, SM_CLOCK_CAP, DeviceSettings, Settable
from probes.simulated.accelerators import Accelerator
from probes.simulated.clock import TICKS_PER_S, VirtualClock
from probes.simulated.faults import FaultKind, FaultScript, throttle_events, throttle_mhz
from probes.simulated.lane import Lane
from probes.simulated.ledger import Ledger
from probes.simulated.noise import Chance, of_many
from probes.simulated.options import SimulationOptions
from probes.simulated.response import Response
from probes.simulated.work import Work

#: Share of memory that an engine may fill: vLLM's default of gpu_memory_utilization.
MEMORY_SHARE = 0.9


class Responds(Protocol):
    """Says how long work takes and what it draws."""

    def settle(
        self, work: Work, *, clock_cap_mhz: float, power_cap_w: float, from_clock_mhz: float
    ) -> tuple[float, float, float]:
        """Return seconds, watts of each busy GPU, and the clock in MHz that the caps leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """What an engine must know of the device; see `engine.simulated.machine`."""

    num_gpus: int
    #: Memory of each GPU that an engine may fill.
    memory_bytes: float
    #: Arithmetic of matrix products that runs at full speed.
    arithmetics: frozenset[str]
    #: GPUs in one scale-up domain.
    domain_size: int


class SimulatedMachine:
    """`num_gpus` accelerators of one kind, set as one; caps are those of each."""

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        num_gpus: int = 1,
        seed: int = 0,
        noise: float = 1.0,
        options: SimulationOptions | None = None,
        response: Responds | None = None,
    ) -> None:
        """Put the GPUs on a clock of their own, at 0 s.

        `noise` scales all chance, 0 is none. `response` takes the place of the accelerator's own.
        """
        if num_gpus < 1:
            raise ValueError(f"num_gpus is {num_gpus}; give 1 or more")
        self.accelerator = accelerator
        self.num_gpus = num_gpus
        self.seed = seed
        self.noise = noise
        self.options = options or SimulationOptions()
        self.clock = VirtualClock()
        self.ledger = Ledger(num_gpus=num_gpus, idle_w=accelerator.idle_w, idle_clock_mhz=accelerator.clocks_mhz[0])
        self._settle = (response or Response(accelerator, accelerator.coefficients)).settle
        self._thermal = self.options.thermal
        self._is_lagging = self._thermal.tau_s > 0
        #: How warm GPUs were that are in no lane yet, and when.
        self._rest_c, self._rest_s = self._thermal.settled_c(accelerator.idle_w / accelerator.tdp_w), 0.0
        self._script = FaultScript(self.options.faults)
        self._settings = UNSET
        self._num_runs = 0
        self._draw("")
        self._turn(0.0)

    @property
    def limits(self) -> DeviceLimits:
        """What there is for an engine."""
        return DeviceLimits(
            num_gpus=self.num_gpus,
            memory_bytes=MEMORY_SHARE * self.accelerator.memory_bytes,
            arithmetics=frozenset(self.accelerator.flops),
            domain_size=self.accelerator.domain_size,
        )

    def now_s(self) -> float:
        """Seconds on the device's clock."""
        return self.clock.now_s

    def advance_to(self, time_s: float) -> None:
        """Let time pass until then; nothing happens where that is past."""
        self.clock.advance_to(time_s)

    def begin(self, label: str) -> None:
        """Begin a run: its chance is drawn from seed and label alone; what the last one left undone is dropped."""
        now_s = self.clock.now_s
        self._rest_c, self._rest_s = self.temperature_c(), now_s
        self.ledger.begin(now_s, idle_w=self.accelerator.idle_loaded_w)
        self._num_runs += 1
        self._draw(label)
        self._turn(now_s)

    def run(self, work: Work, start_s: float, *, lane: int = 0, num_steps: int = 1) -> float:
        """Do `num_steps` equal steps on one group of GPUs from `start_s` on, and return when they end.

        They begin later where `start_s` is past or the group is busy. Does not move the clock. Caps and faults are
        those of the beginning. Raises ValueError where too few GPUs are left for the group, DeviceLost by script.
        """
        now_s = self.clock.now_s
        num_gpus = work.num_gpus
        group = self.ledger.lanes.get(lane)
        if group is None or group.num_gpus != num_gpus:
            group = self._sized(lane, num_gpus)
        if start_s < now_s:
            start_s = now_s
        if start_s < group.free_s:
            start_s = group.free_s
        if start_s >= self._turns_s:
            self._turn(start_s)
        if self._is_lost:
            raise self.lost()
        seconds, power_w, clock_mhz = self._settle(
            work, clock_cap_mhz=self._cap_mhz, power_cap_w=self._room_w, from_clock_mhz=group.given.clock_mhz
        )
        gain = next(self._step_gains)
        if num_steps != 1:
            seconds *= num_steps
            gain = of_many(gain, num_steps)
        end_s = start_s + math.ceil(seconds * self._time_gain * gain * TICKS_PER_S) / TICKS_PER_S
        events = self._capped_events if clock_mhz < self._cap_mhz else self._events
        state = group.given
        if clock_mhz != state.clock_mhz or events != state.events:
            state = self.ledger.times.of(clock_mhz, events)
        power_w *= self._power_gain
        start_c = 0.0
        if self._is_lagging:
            power_w, start_c = self._warmed(group, start_s, power_w)
        group.give(now_s, start_s, end_s, power_w * num_gpus, num_gpus, state, start_c)
        return end_s

    def transfer_s(self, num_bytes: float) -> float:
        """Return how long one GPU takes to hand so many bytes to another group, by the data sheet's rate alone.

        Groups talk inside the scale-up domain where all GPUs fit in one (an assumption), else between domains.
        """
        figures = self.accelerator
        is_inside = self.num_gpus <= figures.domain_size
        return num_bytes / (figures.scale_up_bytes_s if is_inside else figures.scale_out_bytes_s)

    @property
    def settings(self) -> DeviceSettings:
        """What is set."""
        return self._settings

    def settables(self) -> tuple[Settable, ...]:
        """Return the SM clock cap and the power cap, each of every GPU."""
        lowest_w, highest_w = self.accelerator.power_limit_w
        return (
            Settable(name=SM_CLOCK_CAP, values=self.accelerator.clocks_mhz),
            Settable(name=POWER_CAP, values=(int(lowest_w), int(highest_w)), is_range=True),
        )

    def configure(self, settings: DeviceSettings) -> None:
        """Set exactly these knobs on every GPU, for the steps that are given from now on; the others are free.

        Raises InvalidSetting for a value that it does not take, NotSupported for a knob that it lacks, NotPermitted
        and DeviceLost by script; then nothing is changed.
        """
        kinds = self.fault_kinds()
        if FaultKind.DEVICE_LOST in kinds:
            raise self.lost()
        if FaultKind.WRITE_REFUSED in kinds:
            raise NotPermitted("the simulated driver refuses to set anything, as scripted")
        knobs = {settable.name: settable for settable in self.settables()}
        for name, value in settings.as_dict().items():
            if name not in knobs:
                raise NotSupported(f"{self.accelerator.name} (simulated) has no {name}")
            if knobs[name].snapped(value) != value:
                raise InvalidSetting(f"{name} takes {knobs[name].snapped(value)}, not {value}")
        self._settings = settings
        self._turn(self.clock.now_s)

    def power_cap_w(self) -> float:
        """Return the power limit in force on each GPU."""
        return float(self._settings.power_cap_w or self.accelerator.tdp_w)

    def fault_kinds(self) -> frozenset[FaultKind]:
        """Return what is wrong by script now."""
        return frozenset(fault.kind for fault in self._script.active(self.clock.now_s, self._num_runs))

    def lost(self) -> DeviceLost:
        """Return the error of a device that does not answer."""
        return DeviceLost(f"{self.num_gpus} x {self.accelerator.name} (simulated) fell off the bus, as scripted")

    def temperature_c(self) -> float:
        """Return the temperature of the warmest GPU that is in use, or has been in this run."""
        now_s = self.clock.now_s
        self.ledger.settle(now_s)
        lanes = self.ledger.lanes.values()
        return max((self._lane_c(lane, now_s) for lane in lanes), default=self._rested_c(now_s))

    def shown_clock(self) -> tuple[float, tuple[str, ...]]:
        """Return the lowest clock in MHz of the GPUs in use, no higher than it may be, and all clock events."""
        now_s = self.clock.now_s
        self.ledger.settle(now_s)
        idle = self.ledger.times.idle
        shown = [lane.shown(now_s) for lane in self.ledger.lanes.values()]
        if any(state is not idle for state in shown):
            shown = [state for state in shown if state is not idle]
        events = tuple(dict.fromkeys(event for state in shown or [idle] for event in state.events))
        return min(min((state.clock_mhz for state in shown), default=idle.clock_mhz), self._cap_mhz), events

    def _sized(self, index: int, num_gpus: int) -> Lane:
        """Return the group of this number, made where it is missing, once it is certain that the GPUs are there."""
        ledger, now_s = self.ledger, self.clock.now_s
        num_left = self.num_gpus - sum(lane.num_gpus for other, lane in ledger.lanes.items() if other != index)
        if not 1 <= num_gpus <= num_left:
            raise ValueError(f"lane {index} asks for {num_gpus} GPUs; {num_left} of {self.num_gpus} are left")
        if index not in ledger.lanes:
            lane = Lane(num_gpus, now_s, ledger.times.of(self._cap_mhz, self._events), ledger.times)
            lane.temperature_c = self._rested_c(now_s)
            ledger.lanes[index] = lane
        return ledger.lanes[index]

    def _draw(self, label: str) -> None:
        chance = Chance(self.seed, label, scale=self.noise)
        self._time_gain, self._power_gain, self._step_gains = chance.time_gain, chance.power_gain, chance.step_gains

    def _turn(self, time_s: float) -> None:
        """Take on the settings and faults of an instant."""
        active = self._script.active(time_s, self._num_runs)
        kinds = {fault.kind for fault in active}
        clocks_mhz = self.accelerator.clocks_mhz
        cap_mhz = float(self._settings.sm_clock_cap_mhz or clocks_mhz[-1])
        allowed_mhz = min(clocks_mhz[-1] if FaultKind.CAP_IGNORED in kinds else cap_mhz, throttle_mhz(active))
        self._cap_mhz = float(max((mhz for mhz in clocks_mhz if mhz <= allowed_mhz), default=clocks_mhz[0]))
        self._room_w = self.power_cap_w() / self._power_gain
        self._events = throttle_events(active)
        self._capped_events = (SW_POWER_CAP, *self._events)
        self._is_lost = FaultKind.DEVICE_LOST in kinds
        self._turns_s = self._script.next_turn_s(time_s)

    def _warmed(self, lane: Lane, start_s: float, power_w: float) -> tuple[float, float]:
        """Return what a GPU draws that is not as warm as this power will make it, and how warm it is at the start."""
        start_c = self._lane_c(lane, start_s)
        load = power_w / self.accelerator.tdp_w
        warmed_w = power_w * self._thermal.power_gain(start_c, load)
        return min(warmed_w, max(power_w, self.power_cap_w())), start_c

    def _lane_c(self, lane: Lane, time_s: float) -> float:
        ended_s = min(time_s, lane.end_s)
        load = lane.power_w / lane.num_gpus / self.accelerator.tdp_w
        ended_c = self._thermal.after(lane.temperature_c, load, ended_s - lane.start_s)
        return ended_c if lane.is_running(time_s) else self._idled_c(ended_c, time_s - ended_s)

    def _rested_c(self, time_s: float) -> float:
        return self._idled_c(self._rest_c, time_s - self._rest_s)

    def _idled_c(self, start_c: float, seconds: float) -> float:
        return self._thermal.after(start_c, self.ledger.idle_w / self.accelerator.tdp_w, seconds)
