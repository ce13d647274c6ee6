"""One connection to the guard."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from probes.control import guard as guard_module
from probes.control import guard_link
from probes.control.guard_answers import Welcome, body_of
from probes.control.guard_link import THREAD_NAME, GuardLink
from probes.control.guard_wire import Lines, Op, Request, encode_answer
from probes.errors import ControlLeaseLost, DeviceInUse, GuardUnavailable, NotPermitted
from probes.settings import DeviceSettings
from tests.probes.control.kept_gpus import BOTH, CAPPED, KeptGpus, make_kept_gpus
from tests.probes.control.running_guard import LONGEST_S, RunningGuard, guarding, wait_until

STATUS = Request(op=Op.STATUS)
WELCOME = encode_answer(body_of(Welcome(guard_pid=1, lease="4f1d", lapse_s=60, state_dir="/x", offers=())))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@pytest.fixture
def guard(machine: KeptGpus) -> Iterator[RunningGuard]:
    with guarding(machine) as guard:
        guard.start()
        yield guard


@contextmanager
def listening(serve: Callable[[socket.socket, Lines], None]) -> Iterator[Path]:
    """A guard of the test's own making; `serve` gets each connection once it was welcomed."""

    def accept() -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            lines = Lines(connection)
            assert lines.read(LONGEST_S) is not None
            serve(connection, lines)

    with tempfile.TemporaryDirectory(prefix="wattfront-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "guard.sock"
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(LONGEST_S)


def num_heartbeat_threads() -> int:
    return sum(thread.name == THREAD_NAME for thread in threading.enumerate())


def test_it_is_welcomed_under_its_label(guard: RunningGuard) -> None:
    """Lapse and journal are known from the start; the label arrives short and printable."""
    with guard.linked("two\nlines" + "x" * 500) as link:
        assert link.welcome.lapse_s == guard.config.lapse_s
        link.ask(Request(op=Op.APPLY, uuids=BOTH, settings=CAPPED))
        (held, _) = link.ask(STATUS)["held"]
        assert held["label"].startswith("two linesxxx")
        assert len(held["label"]) == 120


def test_errors_keep_their_name(guard: RunningGuard) -> None:
    """What the guard refuses is raised as what it is, and the link goes on."""
    with guard.linked() as first, guard.linked() as second:
        first.ask(Request(op=Op.APPLY, uuids=BOTH, settings=CAPPED))
        with pytest.raises(DeviceInUse):
            second.ask(Request(op=Op.APPLY, uuids=BOTH, settings=DeviceSettings(power_cap_w=300)))
        assert not second.is_lost
        assert second.ask(Request(op=Op.PROBLEMS)) == []


def test_heartbeats_keep_a_lease(machine: KeptGpus) -> None:
    """A link that is kept alive outlives the lapse without a word from its owner."""
    lapse_s = 2.0
    with guarding(machine, lapse_s=lapse_s) as guard:
        guard.start()
        with guard.linked() as link:
            link.keep_alive()
            link.ask(Request(op=Op.APPLY, uuids=BOTH, settings=CAPPED))
            threading.Event().wait(1.5 * lapse_s)
            assert link.ask(Request(op=Op.PROBLEMS)) == []


def test_heartbeats_end_with_the_link(guard: RunningGuard) -> None:
    """Closing a link ends its thread, and closing it again does nothing."""
    before = num_heartbeat_threads()
    with guard.linked() as link:
        link.keep_alive()
        assert num_heartbeat_threads() == before + 1
    link.close()
    wait_until(lambda: num_heartbeat_threads() == before, what="the thread's end")
    with pytest.raises(ControlLeaseLost, match="this process let go of the guard"):
        link.ask(STATUS)


def test_a_guard_that_is_gone_is_noticed_without_asking(machine: KeptGpus) -> None:
    """The next heartbeat finds out that the guard has ended, and why."""
    with guarding(machine, lapse_s=0.5) as guard:
        guard.start()
        with guard.linked() as link:
            link.keep_alive()
            guard.stop()
            wait_until(lambda: link.is_lost, what="a heartbeat")
            with pytest.raises(ControlLeaseLost, match="was told to stop"):
                link.ask(STATUS)


def test_a_guard_that_closes_without_a_word_is_gone() -> None:
    """An end without an answer loses the lease."""

    def serve(connection: socket.socket, lines: Lines) -> None:
        connection.sendall(WELCOME)
        lines.read(LONGEST_S)  # closing with something unread would be a reset, not an end

    with listening(serve) as path:
        link = GuardLink(path)
        with pytest.raises(ControlLeaseLost, match="has closed the connection"):
            link.ask(STATUS)
        assert link.is_lost


def test_a_guard_that_hangs_does_not_hang_us() -> None:
    """An answer that does not come in time loses the lease, and nothing is taken for it later."""

    def serve(connection: socket.socket, lines: Lines) -> None:
        connection.sendall(WELCOME)
        lines.read(LONGEST_S)
        lines.read(LONGEST_S)

    with listening(serve) as path:
        link = GuardLink(path)
        with pytest.raises(ControlLeaseLost, match=r"no longer answers \(.+\)"):
            link.ask(STATUS, timeout_s=0.05)
        with pytest.raises(ControlLeaseLost):
            link.ask(STATUS)


def test_an_interrupted_question_loses_the_lease() -> None:
    """After a Ctrl-C between question and answer no later answer is taken for another's."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def serve(connection: socket.socket, lines: Lines) -> None:
        connection.sendall(WELCOME)
        assert lines.read(LONGEST_S)
        signal.pthread_kill(main_thread, signal.SIGINT)
        lines.read(LONGEST_S)

    with listening(serve) as path:
        link = GuardLink(path)
        with pytest.raises(KeyboardInterrupt):
            link.ask(STATUS)
        with pytest.raises(ControlLeaseLost, match="was interrupted"):
            link.ask(STATUS)


def test_an_answer_of_another_protocol_is_refused() -> None:
    """A guard of another version is not there for us, and the message says so."""
    with (
        listening(lambda connection, _: connection.sendall(b'{"v": 3, "ok": null}\n')) as path,
        pytest.raises(GuardUnavailable, match="use a worker and a guard of the same version"),
    ):
        GuardLink(path)


def test_a_refusal_is_unavailability(guard: RunningGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that does not allow us says whom it allows."""

    def refuse(*_: object) -> None:
        raise NotPermitted("add it to users")

    monkeypatch.setattr(guard_module.Guard, "_admitted", refuse)
    with pytest.raises(GuardUnavailable, match="refuses us: add it to users"):
        GuardLink(guard.socket)


def test_a_socket_that_is_not_there_names_the_remedy(tmp_path: Path) -> None:
    """Without a socket the message says what to start."""
    with pytest.raises(GuardUnavailable, match=r"none\.sock: it is not there; start `wattfront guard` as root"):
        GuardLink(tmp_path / "none.sock")


def test_a_socket_that_nobody_serves_names_the_remedy() -> None:
    """The socket of a guard that was killed is told from one that is not there."""
    with tempfile.TemporaryDirectory(prefix="wattfront-") as folder:
        path = Path(folder) / "guard.sock"
        with socket.socket(socket.AF_UNIX) as left_over:
            left_over.bind(str(path))
        with pytest.raises(GuardUnavailable, match="nobody listens any more; start `wattfront guard` again"):
            GuardLink(path)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [(PermissionError(13, "Permission denied"), "join the group"), (OSError("AF_UNIX path too long"), "too long")],
)
def test_a_connection_that_fails_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, remedy: str
) -> None:
    """What the kernel refuses becomes GuardUnavailable."""

    class Refusing(socket.socket):
        def connect(self, _address: object) -> None:
            raise error

    monkeypatch.setattr("probes.control.guard_link.socket.socket", Refusing)
    with pytest.raises(GuardUnavailable, match=remedy):
        GuardLink(tmp_path / "guard.sock")


def test_a_guard_of_another_user_is_not_trusted(guard: RunningGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that neither root nor we ourselves serve could only tell lies."""
    monkeypatch.setattr(guard_link, "CREDENTIALS", FakeCredentials())
    with pytest.raises(GuardUnavailable, match="served by user 54321, neither root nor you"):
        GuardLink(guard.socket)


class FakeCredentials:
    """The kernel's word, changed."""

    size = 12

    def unpack(self, _: bytes) -> tuple[int, int, int]:
        return 1, 54321, 54321


def test_a_forked_child_has_no_link(machine: KeptGpus, guard: RunningGuard) -> None:
    """A child holds no end of the connection: it cannot ask, and the parent's lease is as it was."""
    with guard.linked() as link:
        link.ask(Request(op=Op.APPLY, uuids=BOTH, settings=CAPPED))
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                link.ask(STATUS)
            except ControlLeaseLost as error:
                os.write(write_end, str(error).encode())
            link.close()
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            assert "forked" in pipe.read()
        os.waitpid(child, 0)
        assert link.ask(Request(op=Op.PROBLEMS)) == []
        assert machine.state() == [((210, 1005), 400_000)] * 2
