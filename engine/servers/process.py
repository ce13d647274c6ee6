"""The processes of a server: started under an operator's command, watched, and ended with everything they started.

Each command leads a session of its own, and every process that comes of it carries WATTFRONT_SERVER_ID in its
environment, so that those that leave the session are found, too. Output goes to a file. Knows no server's flags.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.errors import EngineError, PackageMissing, PortInUse, ServerNotHealthy
from engine.servers.failure import exit_words, failure_of, last_words, plain
from engine.servers.profile import HOST, Command

#: Marks a server's processes: the process that started it, when that one began, and the launch.
ID_VARIABLE = "WATTFRONT_SERVER_ID"
_LOG = re.compile(r"server-([0-9]+-[0-9.]+-[0-9a-f]{8})\.log(?: \(deleted\))?")
#: Between two looks at a server that is not ready, or not gone.
_POLL_S = 0.05
#: From killing to being gone, and from being gone to the port being free.
_GONE_S = 10.0
#: Bytes at the end of the log that are read for a cause: tracebacks of several processes.
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaked:
    """A process that a server left behind whose owner is gone."""

    pid: int
    name: str
    server_id: str

    def __str__(self) -> str:
        """Return pid and name."""
        return f"{self.pid} ({self.name})"


class ServerProcess:
    """The running processes of one launch."""

    def __init__(self, commands: Sequence[Command], *, server_id: str, log: Path, port: int) -> None:
        """Start the commands, their output going to `log`.

        Raises PortInUse when something listens on the port, PackageMissing when a command is not there.
        """
        require_free(port)
        self._server_id = server_id
        self._log = log
        self._port = port
        self._leaders: list[subprocess.Popen[bytes]] = []
        try:
            for command in commands:
                self._leaders.append(self._start(command))
        except BaseException:
            self.stop(_GONE_S)
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes of the server that are alive."""
        return tuple(one.pid for one in self._members())

    def wait_until(self, missing: Callable[[], str | None], timeout_s: float) -> None:
        """Wait until `missing` has nothing to tell of.

        Raises the error that its log tells of when the server ends, ServerNotHealthy when it takes too long.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self._require_alive()
            lacking = missing()
            if lacking is None:
                return
            if time.monotonic() >= deadline:
                words = f"the server was not ready after {timeout_s:g} s: {lacking}"
                raise ServerNotHealthy(f"{words}{last_words(self.last_lines())}")
            time.sleep(_POLL_S)

    def death(self) -> str | None:
        """Say how the server ended; None while all of its commands run."""
        ended = next((one for one in self._leaders if one.poll() is not None), None)
        return None if ended is None else f"the server ended with {exit_words(ended.returncode)}"

    def failure(self, what: str = "the server ended") -> EngineError:
        """Return the error that its exit code and log tell of; `what` begins the message."""
        codes = [one.poll() for one in self._leaders]
        code = next((code for code in codes if code is not None), None)
        return failure_of(self.last_lines(), code, what=what)

    def last_lines(self) -> list[str]:
        """Return the end of what the server has logged."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return plain(file.read().decode(errors="replace")).splitlines()
        except OSError:
            return []

    def stop(self, timeout_s: float) -> tuple[Leaked, ...]:
        """End every process: asked first, killed after `timeout_s`; wait until the port is free. Idempotent.

        Returns what could not be ended.
        """
        self._signal(signal.SIGTERM)
        if not self._are_gone(timeout_s):
            self._signal(signal.SIGKILL)
            self._are_gone(_GONE_S)
        left = tuple(Leaked(pid=one.pid, name=_name(one), server_id=self._server_id) for one in self._members())
        deadline = time.monotonic() + _GONE_S
        while not left and not is_free(self._port) and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # of a process that is gone the kernel may still hold the socket
        return left

    def _start(self, command: Command) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **dict(command.env), ID_VARIABLE: self._server_id}
        try:
            with self._log.open("ab") as log:
                return subprocess.Popen(
                    command.words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=environment,
                )
        except OSError as error:
            raise PackageMissing(f"{command.words[0]!r} cannot be started: {error.strerror}") from error

    def _require_alive(self) -> None:
        if self.death() is not None:
            raise self.failure("the server ended before it was ready")

    def _members(self) -> list[psutil.Process]:
        """Return the living processes of the sessions and those with the mark."""
        sessions = {one.pid for one in self._leaders}
        return [one for one, mark in _marked(sessions) if mark in (None, self._server_id)]

    def _signal(self, number: signal.Signals) -> None:
        for one in self._members():
            with contextlib.suppress(psutil.Error):
                one.send_signal(number)

    def _are_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            are_reaped = all(leader.poll() is not None for leader in self._leaders)
            if are_reaped and not self._members():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)


def new_server_id() -> str:
    """Return a mark for a launch by this process."""
    return f"{os.getpid()}-{psutil.Process().create_time():.2f}-{uuid.uuid4().hex[:8]}"


def log_name(server_id: str) -> str:
    """Return the name that a launch's log must have for its renamed processes to be found."""
    return f"server-{server_id}.log"


def leaked_processes() -> tuple[Leaked, ...]:
    """Return the processes of servers whose owner is gone."""
    found = [(one, mark) for one, mark in _marked(set()) if mark is not None and not _has_owner(mark)]
    return tuple(Leaked(pid=one.pid, name=_name(one), server_id=mark) for one, mark in found)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Tell whether a server could listen on a port; one in TIME_WAIT is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int) -> None:
    """Raise PortInUse for a port that something listens on, naming the process where it can be seen."""
    if is_free(port):
        return
    holder = _listener(port)
    words = "another program" if holder is None else f"process {holder.pid} ({_name(holder)})"
    left = {one.pid for one in leaked_processes()}
    whose = ", left behind by a server of ours" if holder is not None and holder.pid in left else ""
    raise PortInUse(f"port is {port}: {words} listens there{whose}; end it, or choose another port or none")


def leak_words() -> str:
    """Return what leaked processes there are for the end of a message; nothing without any."""
    left = leaked_processes()
    return f"; left behind by earlier servers: {', '.join(map(str, left))}" if left else ""


def _marked(sessions: set[int]) -> Iterator[tuple[psutil.Process, str | None]]:
    """Yield the living processes that are in one of the sessions, with None, or carry a mark, with it."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            is_inside = os.getsid(pid) in sessions
            mark = None if is_inside else _mark_of(pid)  # some 20 us each, where psutil takes 500
            if is_inside or mark is not None:
                one = psutil.Process(pid)
                if one.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    yield one, mark


def _mark_of(pid: int) -> str | None:
    """Return a process's mark; None without one. Of dead and of other users' processes there is none to read.

    A process that renames itself, as vLLM's engine and workers do, writes over its environment: of these the name of
    the log that they write to tells it.
    """
    prefix = f"{ID_VARIABLE}=".encode()
    parts = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = next((part for part in parts if part.startswith(prefix)), None)
    if found is not None:
        return found[len(prefix) :].decode(errors="replace")
    log = _LOG.fullmatch(os.path.basename(os.readlink(f"/proc/{pid}/fd/1")))
    return None if log is None else log[1]


def _has_owner(mark: str) -> bool:
    """Tell whether the process that a mark names still runs, and is not another one with its number."""
    pid, _, rest = mark.partition("-")
    with contextlib.suppress(psutil.Error, ValueError):
        return f"{psutil.Process(int(pid)).create_time():.2f}" == rest.split("-")[0]
    return False


def _listener(port: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error, OSError):
        for one in psutil.net_connections(kind="tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                return psutil.Process(one.pid)
    return None


def _name(one: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return one.name()
    return "gone"
