"""The guard's sockets, threads and time; who may connect, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from probes.control import guard as guard_module
from probes.control.guard import Guard, peer_of, run_guard
from probes.control.guard_answers import status_of, welcome_of
from probes.control.guard_wire import MAX_LINE_BYTES, Fault, Op, Request, WireError, encode_request
from probes.control.journal import Holder
from probes.control.keeper import Keeper, Recovery
from probes.control.leases import Leases, Peer
from probes.control.shield import SHIELDED
from probes.cpu.paths import HostPaths
from probes.errors import ControlLeaseLost, DeviceInUse, GuardUnavailable, InvalidSetting, NotPermitted, RestoreFailed
from probes.identity import ProcessIdentity, process_identity
from probes.settings import DeviceSettings
from tests.probes.control.kept_gpus import BOTH, CAPPED, RESET_CLOCK, SET_LIMIT, UNKNOWN_ERROR, KeptGpus, make_kept_gpus
from tests.probes.control.running_guard import LONGEST_S, RunningGuard, guarding, wait_until
from tests.probes.fake_gpu import FIRST_UUID

FREE = [(None, 700_000), (None, 500_000)]
SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]
APPLY = Request(op=Op.APPLY, uuids=BOTH, settings=CAPPED)
STATUS = Request(op=Op.STATUS)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@pytest.fixture
def guard(machine: KeptGpus) -> Iterator[RunningGuard]:
    with guarding(machine) as guard:
        guard.start()
        yield guard


def is_free(machine: KeptGpus) -> bool:
    return machine.state() == FREE


def ourselves() -> Peer:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return peer_of(ours, HostPaths().proc)


def test_it_says_who_it_is_and_what_may_be_set(guard: RunningGuard) -> None:
    """The answer to hello has pid, lapse, journal and every device's knobs."""
    with guard.connected() as client:
        welcome = welcome_of(client.ask(Request(op=Op.HELLO, label="a job")))
    assert (welcome.guard_pid, welcome.lapse_s) == (os.getpid(), LONGEST_S)
    assert welcome.state_dir == str(guard.config.state_dir)
    assert [len(offer.knobs) for offer in welcome.offers] == [2, 2, 0]


def test_one_connection_is_served_request_by_request(machine: KeptGpus, guard: RunningGuard) -> None:
    """Apply, problems, heartbeat, status and restore do what they are named for."""
    with guard.connected() as client:
        assert client.ask(APPLY) is None
        assert machine.state() == SET
        assert client.ask(Request(op=Op.PROBLEMS)) == []
        assert client.ask(Request(op=Op.HEARTBEAT)) is None
        machine.gpus[0].limit_mw = 650_000
        assert client.ask(Request(op=Op.PROBLEMS)) == ["external_change"]
        held = status_of(client.ask(STATUS)).held
        assert {(one.pid, one.uid) for one in held} == {(os.getpid(), os.geteuid())}
        assert client.ask(Request(op=Op.RESTORE)) is None
        assert is_free(machine)
        assert client.ask(Request(op=Op.RECOVER)) == []


def test_the_end_of_a_connection_puts_back(machine: KeptGpus, guard: RunningGuard) -> None:
    """POWER-34: what a client set is put back when its connection ends, and its device is free."""
    with guard.connected() as client:
        client.ask(APPLY)
    wait_until(lambda: is_free(machine) and guard.journal.entries() == (), what="a restore")
    with guard.connected() as client:
        assert status_of(client.ask(STATUS)).held == ()


def test_silence_puts_back(machine: KeptGpus) -> None:
    """POWER-41: after the lapse everything is put back, the client is told why, and the connection ends."""
    with guarding(machine, lapse_s=0.5) as guard:
        guard.start()
        with guard.connected() as client:
            client.ask(APPLY)
            with pytest.raises(ControlLeaseLost, match=f"process {os.getpid()} was silent for 0.5 s"):
                client.answer()
            assert is_free(machine)
            assert client.is_closed()


def test_half_a_line_is_silence(machine: KeptGpus) -> None:
    """POWER-41: bytes that are no whole request do not keep a lease."""
    with guarding(machine, lapse_s=0.5) as guard:
        guard.start()
        with guard.connected() as client:
            client.ask(APPLY)
            client.connection.sendall(b'{"v": 2, ')
            with pytest.raises(ControlLeaseLost):
                client.answer()
            assert is_free(machine)


def test_a_second_client_learns_who_holds_the_device(machine: KeptGpus, guard: RunningGuard) -> None:
    """POWER-37: a device in use is refused with the holder's process id, and the connection goes on."""
    with guard.connected() as first, guard.connected() as second:
        first.ask(APPLY)
        with pytest.raises(DeviceInUse, match=f"{FIRST_UUID} is set by process {os.getpid()}"):
            second.ask(Request(op=Op.APPLY, uuids=(FIRST_UUID,), settings=DeviceSettings(power_cap_w=300)))
        assert second.ask(Request(op=Op.HEARTBEAT)) is None
        assert machine.state() == SET


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"hello\n", Fault.NOT_JSON),
        (b'{"v": 3, "op": "status"}\n', Fault.UNKNOWN_VERSION),
        (b'{"v": 2, "op": "reset"}\n', Fault.UNKNOWN_OP),
        (b'{"v": 2, "op": "apply"}\n', Fault.BAD_FIELD),
        (b"x" * (MAX_LINE_BYTES + 1), Fault.TOO_LONG),
    ],
)
def test_what_is_no_request_ends_the_connection(
    machine: KeptGpus, guard: RunningGuard, line: bytes, fault: Fault
) -> None:
    """A line that is not of the protocol is answered by name, ends the connection, and what was set is put back."""
    with guard.connected() as client:
        client.ask(APPLY)
        client.connection.sendall(line)
        with pytest.raises(WireError) as caught:
            client.answer()
        assert caught.value.fault is fault
        assert client.is_closed()
        assert is_free(machine)


def test_a_refused_request_does_not_end_the_connection(machine: KeptGpus, guard: RunningGuard) -> None:
    """A value that is not the device's is an answer like any other."""
    with guard.connected() as client:
        with pytest.raises(InvalidSetting, match="power_cap_w"):
            client.ask(Request(op=Op.APPLY, uuids=BOTH, settings=DeviceSettings(power_cap_w=5000)))
        assert client.ask(APPLY) is None


def test_a_stop_puts_back_and_says_so(machine: KeptGpus, guard: RunningGuard) -> None:
    """POWER-34: when the guard is told to stop, everything is put back, clients are told, and the socket is gone."""
    with guard.connected() as client:
        client.ask(APPLY)
        guard.stop()
        assert is_free(machine)
        with pytest.raises(ControlLeaseLost, match="was told to stop"):
            client.answer()
    assert guard.results == [True]
    assert not guard.socket.exists()


def test_a_stop_that_cannot_put_back_says_so(machine: KeptGpus, guard: RunningGuard) -> None:
    """A device that does not take back what was found makes the guard end with False, and stays in the journal."""
    with guard.connected() as client:
        client.ask(APPLY)
        machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
        guard.stop()
    assert guard.results == [False]
    assert [entry.device_uuid for entry in guard.journal.entries()] == [FIRST_UUID]
    assert machine.state()[1] == FREE[1]


def test_a_restore_that_hangs_does_not_keep_it(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that does not answer lets the guard end all the same, and what it held stays in the journal."""
    monkeypatch.setattr(guard_module, "LONGEST_STOP_S", 0.05)
    answering = Event()

    def hang() -> int:
        answering.wait(LONGEST_S)
        return 0

    with guarding(machine) as guard:
        guard.start()
        with guard.connected() as client:
            client.ask(APPLY)
            machine.gpus[0].refusals[RESET_CLOCK] = hang
            guard.stop()
            assert guard.results == [False]
            assert {entry.device_uuid for entry in guard.journal.entries()} == set(BOTH)
            answering.set()
            wait_until(lambda: guard.journal.entries() == (), what="the late restore")


class Hanging:
    """A driver call that does not return before it is let."""

    def __init__(self) -> None:
        self.entered, self.answering = Event(), Event()

    def __call__(self) -> int:
        self.entered.set()
        self.answering.wait(LONGEST_S)
        return 0


def test_a_driver_that_hangs_keeps_nobody_from_connecting(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a driver call and with it the retry hang, clients are accepted, and a stop ends the guard."""
    monkeypatch.setattr(guard_module, "RETRY_S", 0.01)
    monkeypatch.setattr(guard_module, "LONGEST_STOP_S", 0.05)
    retrying, recover = Event(), Leases.recover

    def tell_and_recover(leases: Leases) -> tuple[Recovery, ...]:
        retrying.set()
        try:
            return recover(leases)
        finally:
            retrying.clear()

    monkeypatch.setattr(Leases, "recover", tell_and_recover)
    hang = Hanging()
    with guarding(machine) as guard:
        guard.start()
        with guard.connected() as client, guard.connected() as other:
            machine.gpus[0].refusals[SET_LIMIT] = hang
            client.connection.sendall(encode_request(APPLY))
            assert hang.entered.wait(LONGEST_S)
            assert retrying.wait(LONGEST_S)
            assert other.ask(Request(op=Op.HEARTBEAT)) is None
            guard.stop()
            assert guard.results == [False]
            assert guard.journal.entries() != ()
            hang.answering.set()
            wait_until(lambda: guard.journal.entries() == (), what="the late restore")


def test_a_driver_that_hangs_at_the_start_does_not_keep_the_guard(
    machine: KeptGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard whose first recovery hangs ends when it is told to, without ever having listened."""
    monkeypatch.setattr(guard_module, "LONGEST_STOP_S", 0.05)
    hang = Hanging()
    with guarding(machine) as running:
        long_gone = Holder(process=replace(process_identity(), started="1"), label="a job")
        Keeper(running.host, running.journal).apply(BOTH, CAPPED, long_gone)
        machine.gpus[0].refusals[RESET_CLOCK] = hang
        guard, results, heard = Guard(running.config, running.host), [], Event()
        thread = Thread(target=lambda: results.append(guard.serve(heard.set)))
        thread.start()
        assert hang.entered.wait(LONGEST_S)
        guard.stop()
        thread.join(LONGEST_S)
        assert results == [False]
        assert not heard.is_set()
        hang.answering.set()
        wait_until(lambda: running.journal.entries() == (), what="the late restore")


def test_one_user_cannot_hold_all_connections(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many connections a user is refused while others are served; root has no such limit."""
    monkeypatch.setattr(guard_module, "MAX_CONNECTIONS_OF_ONE_USER", 2)
    users = iter([1000, 1000, 1000, 1001, 0, 0, 0])
    monkeypatch.setattr(guard_module, "user_of", lambda _: next(users))
    with guarding(machine) as guard, ExitStack() as stack:
        guard.start()
        first, second, third, *others = [stack.enter_context(guard.connected()) for _ in range(7)]
        with pytest.raises(GuardUnavailable, match="user 1000 has 2 connections already"):
            third.answer()
        for served in (first, second, *others):
            assert served.ask(Request(op=Op.HEARTBEAT)) is None


def test_a_connection_that_cannot_be_accepted_is_passed_over(
    machine: KeptGpus, guard: RunningGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When there are too many open files, whoever knocks waits, and the others are served on."""
    tries: list[None] = []
    accept = socket.socket.accept

    def refuse_once(listener: socket.socket) -> tuple[socket.socket, object]:
        tries.append(None)
        if len(tries) == 1:
            raise OSError(24, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", refuse_once)
    with guard.connected() as client:
        assert client.ask(APPLY) is None
    assert len(tries) >= 2


def test_what_failed_is_tried_again(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that failed is repeated by the guard itself until it succeeds; in between it is in the status."""
    monkeypatch.setattr(guard_module, "RETRY_S", 0.05)
    with guarding(machine) as guard:
        guard.start()
        with guard.connected() as client:
            client.ask(APPLY)
            machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
            with pytest.raises(RestoreFailed):
                client.ask(Request(op=Op.RESTORE))
            assert set(status_of(client.ask(STATUS)).failed) == {FIRST_UUID}
            machine.gpus[0].refusals.clear()
            wait_until(lambda: is_free(machine) and guard.journal.entries() == (), what="another try")
            assert status_of(client.ask(STATUS)).failed == {}


def test_a_start_recovers_before_it_listens(machine: KeptGpus) -> None:
    """What a dead holder left is put back before anybody can connect."""
    with guarding(machine) as guard:
        long_gone = Holder(process=replace(process_identity(), started="1"), label="a job")
        Keeper(guard.host, guard.journal).apply(BOTH, CAPPED, long_gone)
        assert machine.state() == SET
        guard.start()
        assert is_free(machine)


def test_a_second_guard_is_refused(machine: KeptGpus, guard: RunningGuard) -> None:
    """One socket and one journal have one guard; the second is told the first one's process id."""
    with pytest.raises(GuardUnavailable, match=f"another guard, process {os.getpid()}"):
        Guard(guard.config, guard.host).serve()
    elsewhere = replace(guard.config, socket=guard.socket.with_name("other.sock"))
    with pytest.raises(GuardUnavailable, match="another guard"):
        Guard(elsewhere, guard.host).serve()
    with guard.connected() as client:
        assert client.ask(Request(op=Op.HEARTBEAT)) is None


def test_a_stale_socket_is_replaced(machine: KeptGpus) -> None:
    """The socket of a guard that was killed does not keep the next from listening."""
    with guarding(machine) as guard:
        guard.socket.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as left_over:
            left_over.bind(str(guard.socket))
        guard.start()
        with guard.connected() as client:
            assert client.ask(Request(op=Op.HEARTBEAT)) is None


def test_a_file_of_another_kind_is_not_removed(machine: KeptGpus) -> None:
    """A path that is given by mistake costs no data."""
    with guarding(machine) as guard:
        guard.socket.parent.mkdir()
        guard.socket.write_text("precious")
        with pytest.raises(GuardUnavailable, match="there is a file of another kind"):
            Guard(guard.config, guard.host).serve()
        assert guard.socket.read_text() == "precious"


def test_a_path_that_is_too_long_is_named(machine: KeptGpus) -> None:
    """A socket's path has room for some hundred characters; the message tells the remedy."""
    with guarding(machine) as guard:
        config = replace(guard.config, socket=guard.socket.with_name("x" * 120))
        with pytest.raises(GuardUnavailable, match="short path"):
            Guard(config, guard.host).serve()


@pytest.mark.parametrize("name", ["socket", "state_dir"])
def test_folders_that_others_can_write_are_refused(machine: KeptGpus, name: str) -> None:
    """Who can write the folder of socket or journal could play the guard, or choose what is put back."""
    with guarding(machine) as guard:
        folder = guard.socket.parent if name == "socket" else guard.config.state_dir
        folder.mkdir()
        folder.chmod(0o777)
        with pytest.raises(InvalidSetting, match="others than its owner can write it"):
            Guard(guard.config, guard.host).serve()


def test_a_folder_that_cannot_be_made_is_named(machine: KeptGpus, tmp_path: Path) -> None:
    """A path below a file is refused with the remedy."""
    (tmp_path / "file").write_text("")
    with (
        guarding(machine, state_dir=tmp_path / "file/state") as guard,
        pytest.raises(GuardUnavailable, match="cannot be made"),
    ):
        Guard(guard.config, guard.host).serve()


def test_the_socket_is_for_owner_and_group(guard: RunningGuard) -> None:
    """Others than the configured group cannot even connect."""
    mode = guard.socket.stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o660)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to any group")
def test_the_socket_is_given_to_its_group(machine: KeptGpus) -> None:
    """The configured group owns the socket."""
    with guarding(machine, socket_gid=54321) as guard:
        guard.start()
        assert guard.socket.stat().st_gid == 54321


def test_the_kernel_names_the_peer() -> None:
    """Process, user and groups come from the kernel, not from what is said."""
    peer = ourselves()
    assert (peer.process, peer.uid) == (process_identity(), os.geteuid())
    assert peer.gids == {os.getegid(), *os.getgroups()}


def test_a_peer_that_is_not_allowed_is_refused(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is in neither list is told so and cannot ask anything."""
    with guarding(machine) as guard:
        guard.start()
        stranger = replace(ourselves(), uid=54321, gids=frozenset({54322}))
        monkeypatch.setattr(guard_module, "peer_of", lambda *_: stranger)
        with guard.connected() as client:
            with pytest.raises(NotPermitted, match=r"user 54321 with the groups \[54322\]"):
                client.answer()
            assert client.is_closed()


def test_a_peer_that_cannot_be_seen_is_refused(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another PID namespace has no identity here, so its death could not be told from its life."""
    with guarding(machine) as guard:
        guard.start()
        unseen = replace(ourselves(), process=ProcessIdentity(pid=0, started="", boot_id=""))
        monkeypatch.setattr(guard_module, "peer_of", lambda *_: unseen)
        with guard.connected() as client, pytest.raises(NotPermitted, match="run both in one PID namespace"):
            client.answer()


def test_connections_are_limited(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection too many is refused by name; when another ends there is room again."""
    monkeypatch.setattr(guard_module, "MAX_CONNECTIONS", 1)
    with guarding(machine) as guard:
        guard.start()
        with guard.connected() as first:
            first.ask(STATUS)
            with guard.connected() as second, pytest.raises(GuardUnavailable, match="1 connections already"):
                second.answer()

        def has_room() -> bool:
            with guard.connected() as third:
                try:
                    third.ask(STATUS)
                except (GuardUnavailable, OSError):  # refused, perhaps before we could ask
                    return False
                return True

        wait_until(has_room, what="room for another connection")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it(machine: KeptGpus, number: signal.Signals) -> None:
    """In the main thread it serves until a signal, and says whether everything is put back."""
    former = {other: signal.getsignal(other) for other in SHIELDED}
    try:
        with guarding(machine) as guard:
            killers: list[Thread] = []

            def kill() -> None:
                killers.append(Thread(target=os.kill, args=(os.getpid(), number)))
                killers[0].start()

            assert run_guard(guard.config, guard.host, kill)
            killers[0].join(LONGEST_S)
    finally:
        for other, handler in former.items():
            signal.signal(other, handler)
