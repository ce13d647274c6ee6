"""A server's processes: waited for, ended whatever they do, found when they are left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.errors import PackageMissing, PortInUse, ServerNotHealthy, WrongFlag
from engine.servers.process import (
    ID_VARIABLE,
    ServerProcess,
    free_port,
    is_free,
    leak_words,
    leaked_processes,
    new_server_id,
    require_free,
)
from engine.servers.profile import Command
from tests.db.factories import REPOSITORY
from tests.engine.servers.stubs import STUB

DEADLINE_S = 20.0


def started(tmp_path: Path, mode: str, *more: str) -> ServerProcess:
    """Start the stub server in a mode."""
    port = free_port()
    words = (sys.executable, "-S", str(STUB), "--mode", mode, "--model", "tiny", "--port", str(port), *more)
    return ServerProcess([Command(words=words)], server_id=new_server_id(), log=tmp_path / "log", port=port)


def poll(condition: object, what: str) -> None:
    """Wait until a condition holds, and fail where it does not in time."""
    assert callable(condition)
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that this process listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def test_processes_that_ignore_being_asked_are_killed(tmp_path: Path) -> None:
    """BUG-19 (d): a server, its child, and a child in a session of its own that ignore SIGTERM are gone after stop."""
    server = started(tmp_path, "stubborn")
    poll(lambda: len(server.pids) == 3, "the stub has two children")
    pids = server.pids
    server.wait_until(lambda: None if server.last_lines() else "no line", DEADLINE_S)
    assert server.stop(0.2) == ()
    assert [
        pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ] == []
    assert server.stop(0.2) == ()


def test_waiting_has_an_end(tmp_path: Path) -> None:
    """BUG-19 (b): a server that never gets ready is given up after its time, with what it lacks and its last lines."""
    server = started(tmp_path, "silent")
    try:
        server.wait_until(lambda: None if server.last_lines() else "no line", DEADLINE_S)
        with pytest.raises(
            ServerNotHealthy, match=r"not ready after 0\.1 s: no answer; its last log lines: serving tiny"
        ):
            server.wait_until(lambda: "no answer", 0.1)
    finally:
        server.stop(1.0)


def test_an_end_before_it_is_ready_is_explained(tmp_path: Path) -> None:
    """A server that ends while it is waited for is explained by what it logged, at once."""
    server = started(tmp_path, "strict", "--max-num-seq", "8")
    with pytest.raises(WrongFlag, match=r"ended before it was ready with exit code 2.*unrecognized arguments"):
        server.wait_until(lambda: "no answer", DEADLINE_S)
    assert server.death() == "the server ended with exit code 2"
    server.stop(1.0)


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A program that is not installed is told as such, by its name."""
    command = Command(words=("no-such-server", "serve"))
    with pytest.raises(PackageMissing, match="'no-such-server' cannot be started: No such file"):
        ServerProcess([command], server_id=new_server_id(), log=tmp_path / "log", port=free_port())


def test_a_second_command_that_is_not_there_ends_the_first(tmp_path: Path) -> None:
    """Of a server of several processes none is left when one of them cannot be started."""
    mark = new_server_id()
    commands = [
        Command(words=(sys.executable, "-c", "import time; time.sleep(60)")),
        Command(words=("no-such-server",)),
    ]
    with pytest.raises(PackageMissing):
        ServerProcess(commands, server_id=mark, log=tmp_path / "log", port=free_port())
    assert [one for one in psutil.process_iter() if _mark_of(one) == mark] == []


def test_a_port_that_is_taken_is_refused_before_the_start(listener: int, tmp_path: Path) -> None:
    """BUG-19 (e): nothing is started beside an old process on the port, and the message names who listens there."""
    assert not is_free(listener)
    with pytest.raises(PortInUse, match=rf"port is {listener}: process {os.getpid()} \(.+\) listens there; end it"):
        require_free(listener)
    with pytest.raises(PortInUse):
        ServerProcess([], server_id=new_server_id(), log=tmp_path / "log", port=listener)


def test_what_an_owner_that_was_killed_left_behind_is_found(tmp_path: Path) -> None:
    """BUG-19: a server whose owner is gone is found by its mark and named; one whose owner lives is not."""
    words = (sys.executable, "-c", "import time; time.sleep(60)")
    ours = ServerProcess([Command(words=words)], server_id=new_server_id(), log=tmp_path / "log", port=free_port())
    code = (
        "import sys, pathlib; from engine.servers.process import *\n"
        f"ServerProcess([Command(words={words!r})], server_id=new_server_id(),"
        f" log=pathlib.Path({str(tmp_path / 'lost')!r}), port=free_port())\n"
        "import os; os._exit(0)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY)
    owner.wait(timeout=DEADLINE_S)
    left = [one for one in leaked_processes() if one.server_id.startswith(f"{owner.pid}-")]
    try:
        assert len(left) == 1
        assert str(left[0]) in leak_words()
        assert not {one.pid for one in left} & set(ours.pids)
    finally:
        ours.stop(1.0)
        for one in left:
            psutil.Process(one.pid).kill()


def _mark_of(one: psutil.Process) -> str | None:
    try:
        return one.environ().get(ID_VARIABLE)
    except psutil.Error:
        return None
