"""Fake kernel file trees: a powercap tree and a process table, in a folder of the test."""

from __future__ import annotations

import os
from pathlib import Path

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
