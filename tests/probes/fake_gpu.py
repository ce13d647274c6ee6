"""One GPU to script: what it draws, what it is set to, what it refuses, and what befalls it at which instant.

Knows nothing of the driver's calls: those are in `fake_nvml`. All instants are the fake clock's monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import RLock

import pynvml

from tests.probes.fake_clock import FakeClock
from tests.probes.fake_sensors import MILLIWATTS_PER_WATT, STEP_ROUNDING, Counter, PowerSignal

NOT_SUPPORTED: int = pynvml.NVML_ERROR_NOT_SUPPORTED
FIRST_UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
SECOND_UUID = "GPU-89aa0000-1111-2222-3333-444455556666"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What a field answers: a number in the union's member for its type, and the entry's own code."""

    value: float
    value_type: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    code: int = 0


@dataclass(slots=True, kw_only=True)
class FakeGpu:
    """One GPU; change its attributes to script it, at once or with `at`."""

    clock: FakeClock
    uuid: str = FIRST_UUID
    name: str = "NVIDIA H100 80GB HBM3"
    pci_id: str = "00000000:18:00.0"
    architecture: int = 9
    is_mig: bool = False
    virtualization: int = pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
    is_persistent: bool = True
    compute_pids: Collection[int] = ()
    slices: tuple[str, ...] = ()

    #: What it draws, or that by time; a function may look at `present_sm_clock_mhz()`. The counter adds it up in ticks.
    power_mw: float | Callable[[float], float] = 300_000
    tick_s: float = 0.1
    base_mj: int = 5_000_000
    #: Replaces the counter, given the monotonic seconds.
    energy_mj: Callable[[float], int] | None = None
    #: Replaces the plain power reading.
    power_usage_mw: Callable[[float], int] | None = None
    #: What fields answer, by (field, scope); those left out are not supported.
    fields: dict[tuple[int, int], Callable[[float], Field]] = field(default_factory=dict)

    #: SM clocks that a lock may name; may be empty.
    clocks_mhz: tuple[int, ...] = tuple(range(210, 1981, 15))
    memory_clocks_mhz: tuple[int, ...] = (2619, 1593)
    #: Replaces the present SM clock, which else is the highest that the lock allows.
    sm_clock_mhz: int | Callable[[float], int] | None = None
    memory_clock_mhz: int = 2619
    #: (lowest, highest) of the SM clock; None while it is free.
    locked: tuple[int, int] | None = None
    #: False: a lock is accepted, and the clock stays what it was.
    is_lock_effective: bool = True

    #: Lowest and highest power limit that it takes.
    limits_mw: tuple[int, int] = (200_000, 700_000)
    #: The limit that is set now; the default one unless given, as by an administrator.
    limit_mw: int = -1
    #: What the board came with; the highest one unless given.
    default_limit_mw: int = -1
    #: Replaces the limit in force, as a limit set out of band does.
    enforced_mw: int | None = None

    temperature_c: float | Callable[[float], float] = 45
    #: Why the clocks are low, as NVML's bits.
    event_bits: int | Callable[[float], int] = 0

    #: Error codes by name of the call, with or without its version; a function may refuse only sometimes (0: no error).
    refusals: dict[str, int | Callable[[], int]] = field(default_factory=dict)
    #: From here on every call says that the GPU is lost.
    lost_from_s: float = math.inf
    #: Names and arguments of the setting calls that took effect, in order, and of those that were refused.
    writes: list[tuple[str | int, ...]] = field(default_factory=list)
    refused_writes: list[tuple[str | int, ...]] = field(default_factory=list)

    _actions: list[tuple[float, Callable[[], object]]] = field(default_factory=list, init=False)
    _counted_mj: float = field(default=0.0, init=False)
    _shown_mj: float = field(default=0.0, init=False)
    _until_s: float = field(default=0.0, init=False)
    _lock: RLock = field(default_factory=RLock, init=False, compare=False)

    def __post_init__(self) -> None:
        self.default_limit_mw = self.limits_mw[1] if self.default_limit_mw < 0 else self.default_limit_mw
        self.limit_mw = self.default_limit_mw if self.limit_mw < 0 else self.limit_mw
        self._until_s = self.clock.monotonic_s()

    def at(self, time_s: float, action: Callable[[], object]) -> None:
        """Run an action when the clock passes an instant: another actor's write, a reset, a fault.

        It runs with the first call to the driver (or `catch_up`) after that; energy before it is counted before it.
        """
        self._actions.append((time_s, action))
        self._actions.sort(key=lambda entry: entry[0])

    def catch_up(self) -> None:
        """Let everything happen that the clock has passed."""
        with self._lock:
            now_s = self.clock.monotonic_s()
            while self._actions and self._actions[0][0] <= now_s:
                time_s, action = self._actions.pop(0)
                self._count_until(time_s)
                action()
            self._count_until(now_s)

    @property
    def is_lost(self) -> bool:
        return self.clock.monotonic_s() >= self.lost_from_s

    def refusal(self, name: str) -> int:
        """Return the error code of a call; 0 where it is answered."""
        code = self.refusals.get(name, self.refusals.get(_without_version(name), 0))
        return code() if callable(code) else code

    def counted_mj(self) -> int:
        """Return what the counter shows now."""
        self.catch_up()
        if self.energy_mj is not None:
            return self.energy_mj(self.clock.monotonic_s())
        return self.base_mj + round(self._shown_mj)

    def present_power_mw(self) -> float:
        return self.power_mw(self.clock.monotonic_s()) if callable(self.power_mw) else self.power_mw

    def present_sm_clock_mhz(self) -> int:
        """Return the SM clock: the highest that the lock allows, unless `sm_clock_mhz` says otherwise."""
        if callable(self.sm_clock_mhz):
            return self.sm_clock_mhz(self.clock.monotonic_s())
        if self.sm_clock_mhz is not None:
            return self.sm_clock_mhz
        ceiling_mhz = self.locked[1] if self.locked and self.is_lock_effective else math.inf
        return max((mhz for mhz in self.clocks_mhz if mhz <= ceiling_mhz), default=0)

    def present_temperature_c(self) -> int:
        here = self.temperature_c
        return round(here(self.clock.monotonic_s()) if callable(here) else here)

    def present_event_bits(self) -> int:
        return self.event_bits(self.clock.monotonic_s()) if callable(self.event_bits) else self.event_bits

    def present_enforced_mw(self) -> int:
        return self.limit_mw if self.enforced_mw is None else self.enforced_mw

    def with_instant_power(self) -> FakeGpu:
        """Let field 186 answer with the present power."""
        self.fields[(186, 0)] = lambda _now_s: Field(value=int(self.present_power_mw()))
        return self

    def with_sensors(
        self, *, instant: PowerSignal, average: PowerSignal | None = None, counter: Counter | None = None
    ) -> FakeGpu:
        """Let field 186 show `instant`, field 185 and the plain reading `average`, and the counter `counter`.

        Without an average the plain reading shows the instant one, as on GA100; without a counter there is none.
        """
        plain = average or instant
        self.fields[(186, 0)] = lambda now_s: Field(value=_milliwatts(instant, now_s))
        self.power_usage_mw = lambda now_s: _milliwatts(plain, now_s)
        if average is not None:
            self.fields[(185, 0)] = lambda now_s: Field(value=_milliwatts(plain, now_s))
        self.energy_mj = counter
        if counter is None:
            self.refusals["nvmlDeviceGetTotalEnergyConsumption"] = NOT_SUPPORTED
        return self

    def reset_counter(self) -> None:
        """Begin counting anew at nothing."""
        if isinstance(self.energy_mj, Counter):
            self.energy_mj.reset()
        self.base_mj, self._counted_mj, self._shown_mj = 0, 0.0, 0.0

    def reload_driver(self) -> None:
        """Lose the counter and everything that was set, as at an unload with nobody keeping the driver."""
        self.reset_counter()
        self.locked, self.limit_mw = None, self.default_limit_mw

    def _count_until(self, target_s: float) -> None:
        tick_s = math.floor(target_s / self.tick_s + STEP_ROUNDING) * self.tick_s
        if tick_s > self._until_s:
            self._integrate_until(tick_s)
            self._shown_mj = self._counted_mj
        self._integrate_until(target_s)

    def _integrate_until(self, target_s: float) -> None:
        while self._until_s < target_s:
            if callable(self.power_mw):
                next_s = min(target_s, self._until_s + self.tick_s)
                power_mw = self.power_mw((self._until_s + next_s) / 2)
            else:
                next_s, power_mw = target_s, self.power_mw
            self._counted_mj += power_mw * (next_s - self._until_s)
            self._until_s = next_s


def _milliwatts(signal: PowerSignal, now_s: float) -> int:
    return round(signal.power_w(now_s) * MILLIWATTS_PER_WATT)


def _without_version(name: str) -> str:
    stem, _, version = name.rpartition("_v")
    return stem if version.isdigit() else name
