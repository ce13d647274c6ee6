"""What a benchmark says of the machine it ran on, and whether somebody else was using it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import torch

#: Below this nobody uses the machine, for a moment of so many seconds.
_QUIET_CORES = 0.08
_MOMENT_S = 0.4
#: Instruction sets that decide how fast products of small numbers are, by the kernel's names.
_INSTRUCTIONS = (
    "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "amx_fp16",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip


def describe() -> str:
    """Return CPU model, cores, instruction sets, what torch uses of them, and its version in one line."""
    told = _cpuinfo()
    model = told.get("model name") or platform.processor() or platform.machine()
    flags = (told.get("flags") or told.get("Features") or "").split()
    instructions = " ".join(name for name in _INSTRUCTIONS if name in flags)
    cores = len(os.sched_getaffinity(0))
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{model}, {cores} cores, {instructions}, torch {torch.__version__} with {capability}"


def finish(benchmark: str, figures: Mapping[str, float]) -> None:
    """Print the JSON line that ends a benchmark's output."""
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({"benchmark": benchmark, "figures": rounded, "machine": describe()}), flush=True)


class ForeignLoad:
    """Cores that other processes used between construction and `cores()`.

    Not counted are this process and `processes`, with all that these have started by then.
    """

    def __init__(self, processes: Sequence[psutil.Process] = ()) -> None:
        self._own = [psutil.Process(), *(one for root in processes for one in (root, *root.children(recursive=True)))]
        self._wall_s = time.monotonic()
        self._host_s = _host_busy_s()
        self._own_s = _busy_s(self._own)

    def cores(self) -> float:
        """Return the mean number of cores in foreign use."""
        busy_s = _host_busy_s() - self._host_s - (_busy_s(self._own) - self._own_s)
        return max(0.0, busy_s / (time.monotonic() - self._wall_s))


def wait_until_quiet(*, limit_s: float = 10.0) -> None:
    """Wait until nothing uses the machine for a moment, or for as long as the limit.

    What ran before may go on spinning: vLLM's threads keep half a core for a second after their last token.
    """
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        load = ForeignLoad()
        time.sleep(_MOMENT_S)
        if load.cores() < _QUIET_CORES:
            return


def _host_busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _busy_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(one.user + one.system for one in times))


def _cpuinfo() -> dict[str, str]:
    """Return what the kernel says of the first CPU."""
    first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
