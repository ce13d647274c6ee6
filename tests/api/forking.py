"""Commands that start in milliseconds: forked from one process that has imported all they need.

Each is a process of its own with its own command line, memory and connections, to be killed like any other. The process
that forks them opens no database and starts no thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.api.commands import environment, is_gone, wait_until


class Nursery:
    """Forks commands, and knows which of them live."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._pids: set[int] = set()
        self.log = log

    def start(self, *arguments: object) -> int:
        """Start a command with this process's settings as they are now; return its process id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        settings = {name: value for name, value in os.environ.items() if name.startswith("WATTFRONT_")}
        self._process.stdin.write(json.dumps({"arguments": [*map(str, arguments)], "settings": settings}) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        self._pids.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """Kill a command as the kernel would for lack of memory, and wait until it is gone."""
        self._end(pid, signal.SIGKILL)

    def stop(self, pid: int) -> None:
        """Ask a command to end, and wait until it has."""
        self._end(pid, signal.SIGTERM)

    def kill_all(self) -> None:
        """Leave nothing behind."""
        for pid in list(self._pids):
            self.kill(pid)

    def _end(self, pid: int, number: signal.Signals) -> None:
        self._pids.discard(pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.send_signal(number)
            wait_until(lambda: is_gone(process), what=f"process {pid} to end")


@contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    """Yield a nursery whose commands log into a file of the folder; none of them outlives the context."""
    log = folder / "commands.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.api.forking"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        commands = Nursery(process, log)
        try:
            yield commands
        finally:
            commands.kill_all()
            process.kill()


def _fork_on_demand() -> None:
    """Read one command line after the other, fork for each, and answer with its process id."""
    import uvicorn

    import api.app
    import api.worker
    import tuner.samplers
    from api.cli import main

    assert all((uvicorn, api.app, api.worker, tuner.samplers))  # imported for the children
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that end are gone at once
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            asked = json.loads(line)
            os.environ.update(asked["settings"])
            sys.argv = ["wattfront", *asked["arguments"]]
            main()
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _fork_on_demand()
