"""Service and worker on one machine, supervised: a process that dies is started again, a signal ends both.

Knows nothing of jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Callable
from types import TracebackType

import httpx
import structlog

from api.errors import UsageError
from api.settings import Settings

log = structlog.get_logger()

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0
#: And from the second request, at which a worker gives back its device and ends at once.
_STOP_AT_ONCE_TIMEOUT_S = 15.0
#: A process that dies sooner than this after its start is not started again at once.
_SHORT_LIFE_S = 5.0


def url_of(settings: Settings) -> str:
    """Return where the service answers."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"


def require_free_port(settings: Settings) -> None:
    """Raise UsageError when another process listens there: it would answer in the service's place."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as uvicorn does: TIME_WAIT is no obstacle
            trial.bind(address)
    except OSError as error:
        raise UsageError(
            f"port is {settings.port}: cannot listen on {settings.host} ({error.strerror}); end the process that "
            "does, or give another port with --port"
        ) from error


def open_page(url: str) -> None:
    """Show a page in the user's browser; without a desktop a text browser would take the terminal, so nothing."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)


class Supervisor:
    """Runs `wattfront serve` and `wattfront worker` as child processes while the context is open."""

    def __init__(self, settings: Settings) -> None:
        self.url = url_of(settings)
        # -P: a folder named api where the user stands must not pass for ours.
        self._commands = {name: [sys.executable, "-P", "-m", "api.cli", name] for name in ("serve", "worker")}
        # Not as options: a database URL may hold a password, and every user can list command lines.
        self._environment = os.environ | {
            f"WATTFRONT_{name.upper()}": json.dumps(value) if isinstance(value, dict) else str(value)
            for name, value in settings
            if value is not None
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started_s: dict[str, float] = {}

    def __enter__(self) -> Supervisor:
        for name in self._commands:
            self._start(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for timeout_s in (_STOP_TIMEOUT_S, _STOP_AT_ONCE_TIMEOUT_S):
            if self._have_ended(timeout_s):
                return
        for name, process in self._processes.items():
            if process.poll() is None:
                log.warning("process_killed", process=name)
                process.kill()
                process.wait()

    def _have_ended(self, timeout_s: float) -> bool:
        """Ask every process that is left to end; return whether all did in time."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + timeout_s
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline_s - time.monotonic()))
        return all(process.poll() is not None for process in self._processes.values())

    def wait_until_healthy(self) -> None:
        """Return when the service answers; raise UsageError when it ends or takes too long."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if (code := self._processes["serve"].poll()) is not None:
                raise UsageError(f"the web service ended at once (exit code {code}); its message stands above")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/healthz", timeout=1.0, trust_env=False).status_code == 200:
                    return
            time.sleep(0.1)  # between two polls of the port, bounded by the deadline
        raise UsageError(f"the web service did not answer at {self.url} within {_START_TIMEOUT_S:.0f} s")

    def watch(self) -> None:
        """Start again whatever has died."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None and time.monotonic() - self._started_s[name] > _SHORT_LIFE_S:
                log.warning("process_restarted", process=name, exit_code=process.returncode)
                self._start(name)

    def run(self, should_stop: Callable[[], bool], *, poll_s: float = 0.5) -> None:
        """Watch until told to stop."""
        while not should_stop():
            self.watch()
            time.sleep(poll_s)

    def _start(self, name: str) -> None:
        self._started_s[name] = time.monotonic()
        # In a session of their own: Ctrl-C in the terminal is for the supervisor, which then ends them in order.
        self._processes[name] = subprocess.Popen(self._commands[name], env=self._environment, start_new_session=True)
