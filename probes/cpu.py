"""This machine's CPU as a device: RAPL where it can be read, else the estimate.

Knows both sources and which is better; nothing of GPUs.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from probes.clock import Clock
from probes.cpu_estimate import CpuPowerModel, EstimateMeter
from probes.device import Capability, DeviceInfo, DeviceKind, Meter, PowerSource
from probes.errors import ProbeError
from probes.findings import Subject
from probes.meter import CounterMeter
from probes.paths import HostPaths
from probes.processes import HostLoadReader, HostWatch
from probes.rapl import RaplZones, find_zones, open_counter
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
        self._info = describe_cpu(paths, self._cores)
        self._zones, self._rapl = probe_rapl(paths.powercap)

    @property
    def info(self) -> DeviceInfo:
        """Which CPU it is, with cores, governor and instruction sets in the details."""
        return self._info

    @property
    def power_source(self) -> PowerSource:
        """RAPL, else the estimate; there is always one."""
        return self._zones.source if self._zones else self._model.power_source(len(self._cores))

    def capabilities(self) -> Sequence[Capability]:
        """Both sources, with why RAPL cannot be had where it cannot."""
        estimate = self._model.power_source(len(self._cores)).detail
        return (self._rapl, Capability(name=ESTIMATE_NAME, is_available=True, reason=estimate))

    def meter(self, pids: Sequence[int]) -> Meter:
        """Open a meter; RAPL's figure is of the whole machine, the estimate's of these processes alone."""
        uuid, num_cores = self._info.uuid, len(self._cores)
        reader = HostLoadReader(pids, proc=self._paths.proc, cores=self._cores)
        if self._zones is None:
            return EstimateMeter(reader.read, self._model, num_cores=num_cores, device_uuid=uuid, clock=self._clock)
        zones = self._zones
        return CounterMeter(
            lambda: open_counter(zones, self._clock),
            Subject(source=zones.source, device_uuids=(uuid,), notes=(Note.WHOLE_HOST,)),
            clock=self._clock,
            watch=HostWatch(reader, num_cores=num_cores, clock=self._clock),
        )


def probe_rapl(powercap: Path) -> tuple[RaplZones | None, Capability]:
    """Return the zones, if they can be read, and what trying showed."""
    try:
        zones = find_zones(powercap)
    except ProbeError as error:
        return None, Capability(name=RAPL_NAME, is_available=False, reason=str(error))
    return zones, Capability(name=RAPL_NAME, is_available=True, reason=zones.source.detail)


def describe_cpu(paths: HostPaths, cores: frozenset[int]) -> DeviceInfo:
    """Return which CPU this is; the UUID stays the same from boot to boot and differs between machines."""
    cpuinfo = read_cpuinfo(paths.proc)
    name = cpuinfo.get("model name") or platform.processor() or platform.machine()
    flags = set(cpuinfo.get("flags", "").split())
    isa = [label for label, flag in _ISA_FLAGS.items() if flag in flags]
    details = {
        "cores": str(len(cores)),
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
