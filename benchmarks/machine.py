"""What a benchmark says of the machine it ran on, and whether somebody else was using it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import torch


def describe() -> str:
    """Return CPU model, cores, instruction set and torch version in one line."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def finish(benchmark: str, figures: Mapping[str, float]) -> None:
    """Print the JSON line that ends a benchmark's output."""
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({"benchmark": benchmark, "figures": rounded, "machine": describe()}), flush=True)


class ForeignLoad:
    """Cores that other processes used between construction and `cores()`."""

    def __init__(self) -> None:
        self._wall_s = time.monotonic()
        self._host_s = _host_busy_s()
        self._own_s = _own_s()

    def cores(self) -> float:
        """Return the mean number of cores in foreign use."""
        busy_s = _host_busy_s() - self._host_s - (_own_s() - self._own_s)
        return max(0.0, busy_s / (time.monotonic() - self._wall_s))


def _host_busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _own_s() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)
