"""A guard that serves in a thread of the test, over two fake GPUs."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from probes.control.guard import Guard
from probes.control.guard_config import DeviceRules, GuardConfig
from probes.control.guard_link import GuardLink
from probes.control.guard_wire import Lines, Request, decode_answer, encode_request
from probes.control.journal import Journal
from probes.cpu.paths import HostPaths
from probes.detect import Host
from tests.probes.control.kept_gpus import KeptGpus

#: Far more than anything takes.
LONGEST_S = 60.0


@dataclass(slots=True, kw_only=True)
class RunningGuard:
    """A guard to be started, and what is needed to talk to it."""

    config: GuardConfig
    host: Host
    #: What `serve` returned, once it has.
    results: list[bool] = field(default_factory=list)
    _guard: Guard | None = None
    _thread: Thread | None = None

    @property
    def socket(self) -> Path:
        return self.config.socket

    @property
    def journal(self) -> Journal:
        return Journal(self.config.state_dir)

    def start(self) -> None:
        guard, listening = Guard(self.config, self.host), Event()

        def serve() -> None:
            try:
                self.results.append(guard.serve(listening.set))
            finally:
                listening.set()

        thread = Thread(target=serve, name="guard")
        thread.start()
        self._guard, self._thread = guard, thread
        assert listening.wait(LONGEST_S)
        assert thread.is_alive(), "the guard did not start"

    def stop(self) -> None:
        """Let it end; idempotent."""
        if self._guard is not None and self._thread is not None:
            self._guard.stop()
            self._thread.join(LONGEST_S)
            assert not self._thread.is_alive(), "the guard did not end"

    @contextmanager
    def linked(self, label: str = "") -> Iterator[GuardLink]:
        link = GuardLink(self.socket, label=label)
        try:
            yield link
        finally:
            link.close()

    @contextmanager
    def connected(self) -> Iterator[Raw]:
        """A connection that says whatever a test wants."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(LONGEST_S)
            connection.connect(str(self.socket))
            yield Raw(connection=connection, lines=Lines(connection))


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """One end of a connection, without heartbeats."""

    connection: socket.socket
    lines: Lines

    def ask(self, request: Request) -> Any:
        self.connection.sendall(encode_request(request))
        return self.answer()

    def answer(self) -> Any:
        line = self.lines.read(LONGEST_S)
        assert line is not None, "the guard has closed the connection"
        return decode_answer(line)

    def is_closed(self) -> bool:
        """Wait for the other side to close."""
        return self.lines.read(LONGEST_S) is None


@contextmanager
def guarding(machine: KeptGpus, **changes: Any) -> Iterator[RunningGuard]:
    """Give a guard that is not started yet; at the end it is stopped and has put back everything."""
    with tempfile.TemporaryDirectory(prefix="wattfront-") as name:
        folder = Path(name)
        values: dict[str, Any] = {
            "socket": folder / "run/guard.sock",
            "state_dir": folder / "state",
            "uids": frozenset({os.geteuid()}),
            "lapse_s": LONGEST_S,
        }
        # The peers are real processes.
        paths = replace(machine.host.paths, proc=HostPaths().proc)
        guard = RunningGuard(config=GuardConfig(**values | changes), host=replace(machine.host, paths=paths))
        try:
            yield guard
        finally:
            guard.stop()


def rules(**ranges: tuple[int, int]) -> DeviceRules:
    return DeviceRules(ranges=ranges)


def wait_until(look: Callable[[], bool], *, what: str) -> None:
    never = Event()
    for _ in range(int(LONGEST_S / 0.01)):
        if look():
            return
        never.wait(0.01)
    raise AssertionError(f"waited {LONGEST_S:g} s for {what}")
