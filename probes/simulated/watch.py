"""What a meter sees of a simulated device while its stretch lasts: power over time, temperature, limits, clocks.

A visitor of the device's clock, at instants that grow rarer the longer the stretch gets. Knows nothing of readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from probes.device import Conditions, PowerSample, Status
from probes.metering.conditions import Judgement, Limits, judge
from probes.settings import SM_CLOCK_CAP, DeviceSettings
from probes.simulated.ledger import ClockShares, EnergyMark
from probes.simulated.machine import SimulatedMachine

#: A meter of a real GPU looks so often, and the rules about clocks and events are in shares of looks.
LOOK_INTERVAL_S = 0.1
#: Longest trace.
NUM_TRACE_SAMPLES = 64
_FIRST_INTERVAL_S = 0.25


class MachineWatch:
    """Looks at one machine from now on, until it is taken off its clock."""

    def __init__(self, machine: SimulatedMachine, settings: DeviceSettings) -> None:
        """Begin; `settings` is what was set for the stretch."""
        self._machine = machine
        self._settings = settings
        self.start_s = machine.clock.now_s
        self._interval_s = _FIRST_INTERVAL_S
        self._clocks = machine.ledger.clocks(self.start_s)
        self._energies: list[tuple[float, EnergyMark]] = []
        self._temperatures_c: list[float] = []
        self._limits: list[Limits] = []
        self._look()

    @property
    def due_s(self) -> float:
        """The next look."""
        return self._energies[-1][0] + self._interval_s

    def visit(self, now_s: float) -> None:
        """Look; once there are too many, keep every other one and look half as often."""
        self._look()
        if len(self._energies) == NUM_TRACE_SAMPLES:
            del self._energies[1::2]
            self._interval_s *= 2

    def energy_j(self) -> float:
        """Return the energy since the beginning."""
        return self._machine.ledger.energy(self._machine.clock.now_s).since(self._energies[0][1])

    def trace(self) -> tuple[PowerSample, ...]:
        """Return the mean power between the looks until now."""
        now_s = self._machine.clock.now_s
        energies = [*self._energies, (now_s, self._machine.ledger.energy(now_s))]
        return tuple(
            PowerSample(time_s=(earlier_s + later_s) / 2, power_w=later.since(earlier) / (later_s - earlier_s))
            for (earlier_s, earlier), (later_s, later) in pairwise(energies)
            if later_s > earlier_s
        )

    def judged(self, device_uuid: str) -> tuple[Conditions, Judgement]:
        """Return what the device was like since the beginning, and what of it speaks against the figures.

        Clocks and events are weighted by their exact time; the rules are those for the looks at a real GPU.
        """
        machine = self._machine
        now_s = machine.clock.now_s
        self._look()
        shares = _shares(machine.ledger.clocks(now_s).since(self._clocks)) or {machine.shown_clock(): 1.0}
        num_looks = max(1, round((now_s - self.start_s) / LOOK_INTERVAL_S))
        conditions = Conditions(
            device_uuid=device_uuid,
            num_samples=num_looks,
            mean_clock_mhz=sum(clock_mhz * share for (clock_mhz, _), share in shares.items()),
            lowest_clock_mhz=min(clock_mhz for clock_mhz, _ in shares),
            highest_clock_mhz=max(clock_mhz for clock_mhz, _ in shares),
            mean_memory_clock_mhz=machine.accelerator.memory_clock_mhz,
            start_temperature_c=self._temperatures_c[0],
            end_temperature_c=self._temperatures_c[-1],
            highest_temperature_c=max(self._temperatures_c),
            power_limit_w=machine.power_cap_w() * machine.num_gpus,
            event_shares=_event_shares(shares),
        )
        looks = [
            look
            for (clock_mhz, events), share in shares.items()
            for look in [Status(time_s=now_s, clock_mhz=clock_mhz, events=events)] * round(share * num_looks)
        ]
        return conditions, judge(looks, self._settings, self._clock_step_mhz(), self._limits) if looks else ((), ())

    def _look(self) -> None:
        machine = self._machine
        now_s, limit_w = machine.clock.now_s, machine.power_cap_w()
        self._energies.append((now_s, machine.ledger.energy(now_s)))
        self._temperatures_c.append(machine.temperature_c())
        self._limits.append(Limits(time_s=now_s, set_w=limit_w, enforced_w=limit_w))

    def _clock_step_mhz(self) -> int | None:
        cap_mhz = self._settings.sm_clock_cap_mhz
        knobs = {knob.name: knob for knob in self._machine.settables()}
        return None if cap_mhz is None else knobs[SM_CLOCK_CAP].step_below(cap_mhz)


def _shares(clocks: ClockShares) -> ClockShares:
    whole = sum(clocks.values())
    return {key: gpu_s / whole for key, gpu_s in clocks.items()}


def _event_shares(shares: ClockShares) -> tuple[tuple[str, float], ...]:
    names = dict.fromkeys(event for _, events in shares for event in events)
    found = {name: sum(share for (_, events), share in shares.items() if name in events) for name in names}
    return tuple(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def thinned(trace: Sequence[PowerSample]) -> tuple[PowerSample, ...]:
    """Return a trace of no more than NUM_TRACE_SAMPLES, evenly left out."""
    return tuple(trace[:: -(-len(trace) // NUM_TRACE_SAMPLES) or 1])
