"""This machine's CPU as a device: RAPL where it can be read, else the estimate; its clock cap where it has one.

Knows both sources and which is better; nothing of GPUs, and it sets nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from probes.clock import Clock
from probes.cpu.cgroups import usable_cores
from probes.cpu.cpu_estimate import CpuPowerModel, EstimateMeter
from probes.cpu.cpu_meter import CapWatch, ConditionsMeter
from probes.cpu.cpufreq import KILOHERTZ_PER_MEGAHERTZ, CpufreqTree, find_tree
from probes.cpu.hwmon import package_temperature_c
from probes.cpu.paths import HostPaths
from probes.cpu.processes import HostLoadReader, HostWatch, read_busy_s
from probes.cpu.rapl import MICROJOULES_PER_JOULE, RaplZones, find_zones, open_counter
from probes.cpu.recent_power import RecentPower
from probes.device import UNSET, Capability, DeviceInfo, DeviceKind, Meter, PowerSource, Status
from probes.errors import DeviceLost, ProbeError
from probes.metering.findings import Subject
from probes.metering.meter import CounterMeter
from probes.settings import CPU_CLOCK_CAP, DeviceSettings, Settable
from probes.validity import Note

RAPL_NAME = "powercap RAPL"
ESTIMATE_NAME = "CPU estimate"

#: What decides which kernels a CPU engine can run, by /proc/cpuinfo flag.
_ISA_FLAGS = {"avx2": "avx2", "avx512": "avx512f", "amx": "amx_tile"}


class CpuDevice:
    """All cores this process may use, as one device."""

    def __init__(self, *, paths: HostPaths, model: CpuPowerModel, clock: Clock) -> None:
        self._paths = paths
        self._model = model
        self._clock = clock
        self._cores = frozenset(os.sched_getaffinity(0))
        self._usable_cores = usable_cores(paths, len(self._cores))
        self._info = describe_cpu(paths, self._cores)
        self._zones, self._rapl = probe_rapl(paths.powercap)
        self._tree, self._settables, self._cap = probe_clock_cap(paths.cpu)
        self._power = self._recent_power()

    @property
    def info(self) -> DeviceInfo:
        """Which CPU it is, with cores, governor and instruction sets in the details."""
        return self._info

    @property
    def power_source(self) -> PowerSource:
        """RAPL, else the estimate; there is always one."""
        return self._zones.source if self._zones else self._model.power_source(self._usable_cores)

    def capabilities(self) -> Sequence[Capability]:
        """Both sources and the clock cap, with why RAPL or the cap cannot be had where it cannot."""
        estimate = self._model.power_source(self._usable_cores).detail
        return (self._rapl, Capability(name=ESTIMATE_NAME, is_available=True, reason=estimate), self._cap)

    def settables(self) -> Sequence[Settable]:
        """The clock cap of all cores of the machine, where there is a cpufreq tree."""
        return self._settables

    def status(self) -> Status:
        """Look once, at the cores this process may use; power is the mean since the look before, none at the first.

        It is of everybody's work: RAPL's of the whole machine, or else the model's for all work on the cores, an
        estimate as `power_source` says. Raises DeviceLost when a counter is gone.
        """
        try:
            power_w = self._power.look_w()
        except DeviceLost:
            raise
        except ProbeError:  # a counter may be unreadable for once; the next look tells
            power_w = None
        return replace(self._look(), power_w=power_w)

    def meter(self, pids: Sequence[int], *, settings: DeviceSettings = UNSET) -> Meter:
        """Open a meter; RAPL's figure is of the whole machine, the estimate's of these processes alone.

        Where there is a clock cap, a reading counts only if it is the same throughout and, if set, the one set.
        """
        tree, _settables, _cap = probe_clock_cap(self._paths.cpu)  # anew, since cores come and go
        caps = CapWatch(tree, settings.cpu_clock_cap_mhz) if tree else None
        look = self._look()
        if caps is None and look.clock_mhz is None and look.temperature_c is None:
            return self._energy_meter(pids)
        return ConditionsMeter(
            self._energy_meter(pids), self._look, caps=caps, device_uuid=self._info.uuid, clock=self._clock
        )

    def _energy_meter(self, pids: Sequence[int]) -> Meter:
        uuid, num_cores = self._info.uuid, len(self._cores)
        reader = HostLoadReader(pids, proc=self._paths.proc, cores=self._cores)
        if self._zones is None:
            return EstimateMeter(
                reader.read,
                self._model,
                cores=self._usable_cores,
                num_cores=num_cores,
                device_uuid=uuid,
                clock=self._clock,
            )
        zones = self._zones
        return CounterMeter(
            lambda: open_counter(zones, self._clock),
            Subject(source=zones.source, device_uuids=(uuid,), notes=(Note.WHOLE_HOST,)),
            clock=self._clock,
            watch=HostWatch(reader, num_cores=num_cores, clock=self._clock),
        )

    def _look(self) -> Status:
        return Status(
            time_s=self._clock.monotonic_s(),
            clock_mhz=self._tree.clock_mhz(self._cores) if self._tree else None,
            temperature_c=package_temperature_c(self._paths.hwmon),
        )

    def _recent_power(self) -> RecentPower:
        if self._zones is None:
            return RecentPower(self._estimated_j, clock=self._clock)
        counter = open_counter(self._zones, self._clock)
        return RecentPower(
            lambda: counter.read() / MICROJOULES_PER_JOULE, clock=self._clock, longest_s=self._zones.longest_gap_s()
        )

    def _estimated_j(self) -> float:
        """Return the model's joules for all work on the cores since boot."""
        return self._model.energy_j(
            cores=len(self._cores),
            wall_s=self._clock.monotonic_s(),
            cpu_s=read_busy_s(self._paths.proc, self._cores),
        )


def probe_rapl(powercap: Path) -> tuple[RaplZones | None, Capability]:
    """Return the zones, if they can be read, and what trying showed."""
    try:
        zones = find_zones(powercap)
    except ProbeError as error:
        return None, Capability(name=RAPL_NAME, is_available=False, reason=str(error))
    return zones, Capability(name=RAPL_NAME, is_available=True, reason=zones.source.detail)


def probe_clock_cap(cpu: Path) -> tuple[CpufreqTree | None, tuple[Settable, ...], Capability]:
    """Return the cpufreq tree, the cap that could be set, and what trying showed."""
    tree: CpufreqTree | None = None
    try:
        tree = find_tree(cpu)
        caps_khz = tree.caps_khz().values()
        # Whoever capped the cores meant it for us too.
        settable = tree.settable().up_to(max(caps_khz) / KILOHERTZ_PER_MEGAHERTZ)
    except ProbeError as error:
        return tree, (), Capability(name=CPU_CLOCK_CAP, is_available=False, reason=str(error))
    seen = f"{settable.lowest} to {settable.highest} MHz, {len(tree.policies)} policies"
    return tree, (settable,), Capability(name=CPU_CLOCK_CAP, is_available=True, reason=seen)


def describe_cpu(paths: HostPaths, cores: frozenset[int]) -> DeviceInfo:
    """Return which CPU this is; the UUID stays the same from boot to boot and differs between machines."""
    cpuinfo = read_cpuinfo(paths.proc)
    name = cpuinfo.get("model name") or platform.processor() or platform.machine()
    flags = set(cpuinfo.get("flags", "").split())
    isa = [label for label, flag in _ISA_FLAGS.items() if flag in flags]
    details = {
        "cores": f"{usable_cores(paths, len(cores)):g}",
        "isa": " ".join(isa),
        "governor": _read(paths.cpu / f"cpu{min(cores)}" / "cpufreq" / "scaling_governor"),
    }
    return DeviceInfo(
        uuid=cpu_uuid(_read(paths.machine_id) or platform.node(), name),
        name=name,
        kind=DeviceKind.CPU,
        driver=platform.release(),
        details=tuple((key, value) for key, value in details.items() if value),
    )


def cpu_uuid(machine_id: str, model: str) -> str:
    """Return the CPU's id; hashed, since machine-id(5) asks that the id itself not leave the machine."""
    digest = hashlib.sha256(f"wattfront cpu {machine_id} {model}".encode()).hexdigest()
    return f"CPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def read_cpuinfo(proc: Path) -> dict[str, str]:
    """Return the first core's entries of /proc/cpuinfo."""
    entries: dict[str, str] = {}
    for line in _read(proc / "cpuinfo").splitlines():
        key, separator, value = line.partition(":")
        if not separator:
            break
        entries[key.strip()] = value.strip()
    return entries


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
