"""Where the kernel keeps its figures; tests point these at folders of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """Roots of the kernel's file trees."""

    proc: Path = Path("/proc")
    powercap: Path = Path("/sys/class/powercap")
    cpu: Path = Path("/sys/devices/system/cpu")
    hwmon: Path = Path("/sys/class/hwmon")
    cgroup: Path = Path("/sys/fs/cgroup")
    machine_id: Path = Path("/etc/machine-id")
