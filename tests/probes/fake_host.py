"""Fake kernel file trees, in a folder of the test: powercap, processes, cpufreq, hwmon and control groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from probes.cpu.paths import HostPaths

RANGE_UJ = 262_143_328_850


def write_zone(
    root: Path, folder: str, name: str, energy_uj: int | str, *, max_range_uj: int | None = RANGE_UJ
) -> Path:
    """Write one zone and return its energy file; `folder` is like intel-rapl:0 or intel-rapl:0:1."""
    zone = root / folder
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "name").write_text(f"{name}\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    if max_range_uj is not None:
        (zone / "max_energy_range_uj").write_text(f"{max_range_uj}\n")
    return zone / "energy_uj"


def make_paths(root: Path, proc: FakeProc) -> HostPaths:
    """Return a machine with this process table and, as yet, nothing else."""
    return HostPaths(
        proc=proc.root,
        powercap=root / "powercap",
        cpu=root / "cpu",
        hwmon=root / "hwmon",
        cgroup=root / "cgroup",
        machine_id=root / "machine-id",
    )


class FakeProc:
    """A process table whose CPU times a test moves; times are in seconds."""

    def __init__(self, root: Path, *, num_cores: int = 2) -> None:
        self.root = root
        self._num_cores = num_cores
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self.busy_s = 0.0
        root.mkdir(exist_ok=True)
        self.write_cores()

    def write_cores(self) -> None:
        """Write /proc/stat; the work is spread evenly over the cores."""
        ticks = round(self.busy_s / self._tick_s / self._num_cores)
        lines = [f"cpu  {ticks * self._num_cores} 0 0 900 0 0 0 0 0 0"]
        lines += [f"cpu{core} {ticks} 0 0 900 70 0 0 0 0 0" for core in range(self._num_cores)]
        (self.root / "stat").write_text("\n".join([*lines, "intr 1 2 3"]) + "\n")

    def write_process(
        self, pid: int, *, ppid: int = 1, cpu_s: float = 0.0, state: str = "S", started: int = 50
    ) -> None:
        """Write one process; half of its time is its own, half its reaped children's."""
        own, reaped = (round(cpu_s / self._tick_s / 2) for _ in range(2))
        fields = [state, str(ppid), *["0"] * 9, str(own), "0", str(reaped), "0", "20", "0", "1", "0"]
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (python (v) 3) {' '.join([*fields, str(started)])} 0 0\n")

    def end_process(self, pid: int) -> None:
        """Remove a process from the table."""
        (self.root / str(pid) / "stat").unlink()
        (self.root / str(pid)).rmdir()

    def work(self, busy_s: float) -> None:
        """Let the cores have worked so much more."""
        self.busy_s += busy_s
        self.write_cores()


def write_policy(
    cpu: Path,
    number: int = 0,
    *,
    cores: str = "0 1",
    lowest_khz: int = 800_000,
    highest_khz: int = 3_600_000,
    cap_khz: int | None = None,
    current_khz: int = 2_000_000,
    listed_khz: str = "",
) -> Path:
    """Write one cpufreq policy and return the file with its cap, which is the highest clock unless told otherwise."""
    folder = cpu / "cpufreq" / f"policy{number}"
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "affected_cpus": cores,
        "cpuinfo_min_freq": lowest_khz,
        "cpuinfo_max_freq": highest_khz,
        "scaling_max_freq": highest_khz if cap_khz is None else cap_khz,
        "scaling_cur_freq": current_khz,
    }
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    if listed_khz:
        (folder / "scaling_available_frequencies").write_text(f"{listed_khz} \n")
    return folder / "scaling_max_freq"


def write_pstate(cpu: Path, *, max_perf_pct: int = 100, no_turbo: int = 0) -> Path:
    """Write intel_pstate's limits and return their folder."""
    folder = cpu / "intel_pstate"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "max_perf_pct").write_text(f"{max_perf_pct}\n")
    (folder / "no_turbo").write_text(f"{no_turbo}\n")
    return folder


def write_sensor(hwmon: Path, number: int, driver: str, **temperatures_c: float | str) -> None:
    """Write one hwmon folder; a keyword is a label with its blanks as underscores."""
    folder = hwmon / f"hwmon{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{driver}\n")
    for i, (label, value) in enumerate(temperatures_c.items(), start=1):
        text = value if isinstance(value, str) else str(round(value * 1000))
        (folder / f"temp{i}_label").write_text(f"{label.replace('_', ' ')}\n")
        (folder / f"temp{i}_input").write_text(f"{text}\n")


def write_own_group(proc: Path, *lines: str) -> None:
    """Write which control groups this process is in."""
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))


def write_quota_v2(group: Path, text: str) -> None:
    """Write a group's cpu.max."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.max").write_text(f"{text}\n")


def write_quota_v1(group: Path, quota_us: int, period_us: int = 100_000) -> None:
    """Write a group's quota of version 1; -1 is none."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
    (group / "cpu.cfs_period_us").write_text(f"{period_us}\n")


def refuse(monkeypatch: pytest.MonkeyPatch, *files: Path, error: OSError, writing: bool = False) -> None:
    """Let these files refuse to be read, or to be written; root may do either whatever their mode."""
    read_text, open_file = Path.read_text, Path.open

    def refusing_read(path: Path, *arguments: Any, **keywords: Any) -> str:
        if path in files:
            raise error
        return read_text(path, *arguments, **keywords)

    def refusing_open(path: Path, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        if path in files and mode != "r":
            raise error
        return open_file(path, mode, *arguments, **keywords)

    if writing:
        monkeypatch.setattr(Path, "open", refusing_open)
    else:
        monkeypatch.setattr(Path, "read_text", refusing_read)
