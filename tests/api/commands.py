"""The command line as a process: run to its end, or started to be watched and killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from api.stores import Stores
from db.job import Job, JobState
from tests.db.factories import REPOSITORY

Seen = TypeVar("Seen")

#: Far more than anything here takes; a hang fails one test.
LONGEST_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a command left."""

    code: int | str | None
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one sentence on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        return lines[0].removeprefix("error: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    """A job that ran to its end, where it is stored, and what the terminal showed."""

    url: str
    id: str
    out: str
    stores: Stores


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "api.cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return this process's environment, in which a bare checkout is found too."""
    return os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}


def run(*arguments: object) -> Ended:
    """Run a command to its end."""
    ended = subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    return Ended(code=ended.returncode, out=ended.stdout, err=ended.stderr)


@contextmanager
def started(*arguments: object, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start a command; whatever is left of it at the end is killed."""
    with subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended_of(process: subprocess.Popen[str]) -> Ended:
    """Wait for a started command."""
    out, err = process.communicate(timeout=LONGEST_S)
    return Ended(code=process.returncode, out=out, err=err)


def wait_until(look: Callable[[], Seen | None], *, what: str) -> Seen:
    """Look again and again until there is something to see, and return it."""
    deadline_s = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline_s:
        if seen := look():
            return seen
        time.sleep(0.05)
    raise AssertionError(f"waited {LONGEST_S:g} s for {what}")


def engine_child_of(pid: int) -> psutil.Process | None:
    """Return the engine process that a command has started, if it has one now."""
    try:
        children = psutil.Process(pid).children()
        return next((child for child in children if "engine.child" in child.cmdline()), None)
    except psutil.NoSuchProcess:
        return None


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; one that only waits to be reaped has."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def has_run_to_its_end(code: int | str | None, job: Job) -> bool:
    """Whether a command ran a job through all its trials.

    On a machine that is busy with something else every window may be invalid, and then that is how the job ends.
    """
    if job.ended_because == "no_usable_trial":
        return (code, job.state) == (1, JobState.FAILED)
    return (code, job.state) == (0, JobState.FINISHED)


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tiny_flags(folder: Path, **changes: object) -> list[str]:
    """Return the options of a job that takes some two seconds a trial; other options by keyword.

    Its points differ in a live knob only, so that the engine starts once.
    """
    options: dict[str, object] = {
        "model": folder,
        "device": "cpu",
        "workload": "closed:prompt=8-16,output=4-8",
        "latency": "tpot_p50_ms",
        "window": 0.5,
        "warmup": 0.3,
    }
    flags = [f"--{name}={value}" for name, value in (options | changes).items()]
    return [*flags, "--knob=precision=fp32", "--knob=max_batch=2", "--knob=prefill_chunk=8,16,32,64"]


def simulated_flags(**changes: object) -> list[str]:
    """Return the options of a job on a simulated GPU: no engine to start, seconds of virtual time a trial."""
    options: dict[str, object] = {
        "model": "llama-3.1-8b",
        "device": "simulated:h100-sxm",
        "workload": "closed:prompt=32-64,output=16-32",
        "window": 2,
        "warmup": 1,
    }
    flags = [f"--{name}={value}" for name, value in (options | changes).items()]
    return [*flags, "--knob=max_batch=4,16", "--knob=sm_clock_cap_mhz=1200,1980"]
