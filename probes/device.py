"""The seam: what a device can be asked, in W, J, MHz and degrees C.

Every energy figure carries its scope (what was inside the measurement), its method (how it was obtained) and its
validity (machine-readable reasons against it). Knows nothing of drivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from probes.settings import DeviceSettings, Settable

#: Nothing is set: what an observer passes.
UNSET = DeviceSettings()


class DeviceKind(StrEnum):
    """What sort of device it is."""

    GPU = "gpu"
    CPU = "cpu"
    SIMULATED = "simulated"


class Scope(StrEnum):
    """What a joule figure contains."""

    GPU = "gpu"  # the GPU board
    MODULE = "module"  # a superchip: GPU, CPU and memory of one module
    MEMORY = "memory"  # the GPU's memory alone
    CPU_PACKAGE = "cpu_package"  # CPU packages, without DRAM where DRAM has its own counter
    CPU_PACKAGE_DRAM = "cpu_package_dram"  # CPU packages and their DRAM
    CPU_SHARE = "cpu_share"  # the engine's share of the host's CPU, estimated


class Method(StrEnum):
    """How a joule figure was obtained."""

    COUNTER = "counter"  # an energy counter of the device
    INTEGRATED = "integrated"  # power readings integrated over time
    INTEGRATED_AVERAGE = "integrated_average"  # the same from readings that are trailing averages
    ESTIMATE = "estimate"  # a formula, nothing was measured
    SIMULATED = "simulated"  # a model's output, nothing was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSource:
    """One way to learn a device's energy."""

    scope: Scope
    method: Method
    #: In words: the counter, field or formula behind it.
    detail: str
    #: Smallest step of the figure in seconds (counter tick or sampling interval); None when not known.
    resolution_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """Which device it is; results are keyed by `uuid`, never by an index."""

    uuid: str
    name: str
    kind: DeviceKind
    driver: str
    #: Anything else worth keeping with results: PCI id, VBIOS, power limit, governor, cores.
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Whether one metric or control can be had, found out by asking for it."""

    name: str
    is_available: bool
    #: Why not, or what was seen.
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSample:
    """Mean power around an instant of the monotonic clock."""

    time_s: float
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One look at a device; None where it does not say."""

    #: Monotonic.
    time_s: float
    power_w: float | None = None
    #: Of a GPU's streaming multiprocessors, or the mean over a CPU's cores.
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    #: The power limit that is in force.
    power_limit_w: float | None = None
    #: Why clocks are below what they could be, in the words of `probes.clock_events`.
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a device was like over a stretch; None where it does not say."""

    device_uuid: str
    num_samples: int
    mean_clock_mhz: float | None = None
    lowest_clock_mhz: float | None = None
    highest_clock_mhz: float | None = None
    mean_memory_clock_mhz: float | None = None
    start_temperature_c: float | None = None
    end_temperature_c: float | None = None
    highest_temperature_c: float | None = None
    power_limit_w: float | None = None
    #: Share of samples, 0 to 1, that showed each clock event; those that never showed are left out.
    event_shares: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The energy of one stretch of time."""

    #: None when it could not be obtained; never 0 in its place.
    energy_j: float | None
    start_s: float
    end_s: float
    scope: Scope
    method: Method
    detail: str
    device_uuids: tuple[str, ...]
    #: Half width of what is known to be uncertain about energy_j (counter steps, estimate's range); None if unknown.
    uncertainty_j: float | None = None
    #: Reasons why this figure must not be used; empty means valid.
    reasons: tuple[str, ...] = ()
    #: Facts a reader should know that do not make the figure unusable.
    notes: tuple[str, ...] = ()
    #: Power over the stretch, for drawing; may be empty.
    trace: tuple[PowerSample, ...] = ()
    #: Clocks, temperatures and limits over the stretch, one record a device; may be empty.
    conditions: tuple[Conditions, ...] = ()

    @property
    def duration_s(self) -> float:
        """Length of the stretch."""
        return self.end_s - self.start_s

    @property
    def mean_power_w(self) -> float | None:
        """Energy over time; None without energy."""
        return None if self.energy_j is None or self.duration_s <= 0 else self.energy_j / self.duration_s

    @property
    def is_valid(self) -> bool:
        """Whether the figure may be used."""
        return not self.reasons and self.energy_j is not None

    @property
    def is_estimate(self) -> bool:
        """Whether nothing was measured."""
        return self.method in (Method.ESTIMATE, Method.SIMULATED)


class Meter(Protocol):
    """Measures energy from `start` to `stop`; readings before and after do not count."""

    def start(self) -> float:
        """Begin a stretch; return its exact monotonic start, which may be a little later than the call."""

    def stop(self) -> Reading:
        """End the stretch; `end_s` is its exact monotonic end. Always returns a Reading, valid or not."""

    def close(self) -> None:
        """Stop any background sampling. Idempotent."""


class Device(Protocol):
    """Something whose power can be learned while an engine runs on it."""

    @property
    def info(self) -> DeviceInfo:
        """Which device it is."""

    @property
    def power_source(self) -> PowerSource | None:
        """The best way to learn its energy here; None when there is none."""

    def capabilities(self) -> Sequence[Capability]:
        """What can be read and set, found out by trying the reads; nothing is changed."""

    def settables(self) -> Sequence[Settable]:
        """The knobs that could be set here, found out by reading; whether we may is known once it is tried."""

    def status(self) -> Status:
        """Look once. Raises DeviceLost when it no longer answers; what it does not offer is None."""

    def meter(self, pids: Sequence[int], *, settings: DeviceSettings = UNSET) -> Meter:
        """Open a meter for a run whose work is done by these processes (and their children).

        `settings` is what was set for the run: readings are held against it. Raises NotSupported when `power_source`
        is None.
        """
