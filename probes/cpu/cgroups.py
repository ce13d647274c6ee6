"""How many cores' worth of time the kernel gives this process: the CPU quota of its control group.

Knows version 2 (cpu.max) and version 1 (cpu.cfs_quota_us), and that a quota may lie anywhere between the group and the
root. Knows nothing of cpusets, which the affinity shows, nor of weights, which bind only while others want the cores.
Files: https://docs.kernel.org/admin-guide/cgroup-v2.html and scheduler/sched-bwc.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from probes.cpu.paths import HostPaths

#: Where version 1 keeps its cpu controller: by itself, or together with the accounting.
V1_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
#: Version 2 by itself, and beside version 1.
V2_FOLDERS = ("", "unified")


def usable_cores(paths: HostPaths, num_cores: int) -> float:
    """Return how many cores' worth of time this process can use of the `num_cores` in its affinity."""
    quota = quota_cores(paths)
    return num_cores if quota is None else min(num_cores, quota)


def quota_cores(paths: HostPaths) -> float | None:
    """Return the smallest quota of this process's group and those above it, in cores; None without any."""
    quotas = [*_quotas_v2(paths), *_quotas_v1(paths)]
    return min(quotas, default=None)


def _quotas_v2(paths: HostPaths) -> Iterator[float]:
    for folder in V2_FOLDERS:
        for group in _groups(paths.cgroup / folder, _own_group(paths.proc, "")):
            quota, _space, period_us = _text(group / "cpu.max").partition(" ")
            yield from _ratio(quota, period_us)


def _quotas_v1(paths: HostPaths) -> Iterator[float]:
    own = _own_group(paths.proc, "cpu")
    for folder in V1_FOLDERS:
        for group in _groups(paths.cgroup / folder, own):
            yield from _ratio(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"))


def _own_group(proc: Path, controller: str) -> str:
    """Return this process's group of one controller, "" meaning version 2; the root where /proc does not tell."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _number, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            return group
    return "/"


def _groups(root: Path, own: str) -> Iterator[Path]:
    """Yield the group's folder and all above it up to the root.

    In a container the path may be the host's while only the container's own group is mounted: then the folders in
    between do not exist, and the root is what counts.
    """
    path = PurePosixPath(*[part for part in own.split("/") if part not in ("", "..")])
    for part in (path, *path.parents):
        yield root / part


def _ratio(quota_us: str, period_us: str) -> Iterator[float]:
    """Yield quota over period, or nothing where there is no quota: "max", -1, or no file."""
    if quota_us.isdecimal() and period_us.isdecimal() and int(quota_us) > 0 and int(period_us) > 0:
        yield int(quota_us) / int(period_us)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
