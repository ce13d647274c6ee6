"""The privileged helper: sets clocks and limits for unprivileged workers, under a lease.

It listens on a Unix socket. A connection is a lease: its end, or silence, puts back what it set. Who connects is known
by the kernel's word (SO_PEERCRED). Needs Linux. Knows sockets, threads and time; what may be set, and how, is
`probes.control.leases`'.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event, Lock, Thread

import structlog

from probes.control.guard_answers import Welcome, body_of
from probes.control.guard_config import GuardConfig
from probes.control.guard_place import beside, listening, only_one, own_folders
from probes.control.guard_wire import Lines, Op, Request, WireError, decode_request, encode_answer, encode_error
from probes.control.leases import Lease, Leases, Peer
from probes.control.shield import SHIELDED
from probes.detect import Host
from probes.errors import ControlLeaseLost, GuardUnavailable, NotPermitted, ProbeError
from probes.identity import process_identity

#: What could not be put back is tried again so often, and what dead processes left is looked for.
RETRY_S = 30.0
#: A restore takes milliseconds; a driver that hangs must not keep the guard from ending.
LONGEST_STOP_S = 30.0
MAX_CONNECTIONS = 64
#: Of anybody but root: one user must not be able to keep the others out.
MAX_CONNECTIONS_OF_ONE_USER = 16
_LOOK_EVERY_S = 0.1
LOCK_NAME = "guard.lock"
#: asm-generic/socket.h; Python has no name for it. Pid, uid and gid of SO_PEERCRED are three 32-bit words.
SO_PEERGROUPS = 59
_CREDENTIALS = struct.Struct("iII")
_MAX_GROUPS = 256

log = structlog.get_logger()


def run_guard(config: GuardConfig, host: Host, on_listening: Callable[[], None]) -> bool:
    """Serve until SIGTERM, SIGINT or SIGHUP; return whether everything is put back then. For the main thread.

    Raises GuardUnavailable when it cannot listen or another guard does, and InvalidSetting for a folder that others
    can write.
    """
    guard = Guard(config, host)
    for number in SHIELDED:
        signal.signal(number, lambda *_: guard.stop())
    return guard.serve(on_listening)


class Guard:
    """One guard; serves once."""

    def __init__(self, config: GuardConfig, host: Host) -> None:
        self._config = config
        self._host = host
        self._stopping = Event()
        self._wake_up, self._woken = socket.socketpair()
        self._wake_up.setblocking(False)
        self._lock = Lock()
        self._connections: dict[socket.socket, Thread] = {}
        self._users: dict[socket.socket, int] = {}
        self._hangs = False

    def stop(self) -> None:
        """Let `serve` put back everything and return. For any thread and any signal handler; idempotent."""
        self._stopping.set()
        with suppress(OSError):  # woken often enough, or no longer there to be woken
            self._wake_up.send(b"\0")

    def serve(self, on_listening: Callable[[], None] = lambda: None) -> bool:
        """Put back what is left over, then serve until `stop`; return whether everything is put back at the end."""
        with ExitStack() as stack:
            stack.callback(self._wake_up.close)
            stack.callback(self._woken.close)
            own_folders(self._config)
            stack.enter_context(only_one(beside(self._config.socket)))
            stack.enter_context(only_one(self._config.state_dir / LOCK_NAME))
            recovery = _Recovery(self._config, self._host, self._stopping)
            leases = recovery.first()
            if leases is None:
                log.error("recovery_hangs", detail="the next start of a guard or worker puts it back")
                return False
            stack.callback(self._end_threads, recovery)
            listener = stack.enter_context(listening(self._config))
            log.info("guard_listens", socket=str(self._config.socket), lapse_s=self._config.lapse_s)
            on_listening()
            self._accept_until_stopped(listener, leases)
        return not self._hangs and not leases.status().failed  # where a thread hangs, so would the question

    def _accept_until_stopped(self, listener: socket.socket, leases: Leases) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._stopping.is_set():
                ready = [key.fileobj for key, _ in selector.select()]
                if listener in ready:
                    self._accept(listener, leases)

    def _accept(self, listener: socket.socket, leases: Leases) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # whoever it was is gone, or there are too many open files
            log.warning("accept_failed", reason=str(error))
            self._stopping.wait(0.1)
            return
        with self._lock:
            user = user_of(connection)
            if (full := self._full_for(user)) is not None:
                _tell(connection, GuardUnavailable(f"{full} connections already; end some"))
                connection.close()
                return
            self._users[connection] = user
            thread = Thread(target=self._serve_one, args=(connection, leases), name="guard-lease", daemon=True)
            self._connections[connection] = thread
        thread.start()

    def _full_for(self, user: int) -> str | None:
        """Return who has too many connections for another one of this user."""
        if len(self._connections) >= MAX_CONNECTIONS:
            return f"the guard has {MAX_CONNECTIONS}"
        if user != 0 and list(self._users.values()).count(user) >= MAX_CONNECTIONS_OF_ONE_USER:
            return f"user {user} has {MAX_CONNECTIONS_OF_ONE_USER}"
        return None

    def _serve_one(self, connection: socket.socket, leases: Leases) -> None:
        try:
            farewell = self._lease_for(connection, leases)
            if farewell is not None:
                log.warning("connection_ended", reason=str(farewell))
                _tell(connection, farewell)
        finally:
            with self._lock:
                del self._connections[connection], self._users[connection]
            connection.close()

    def _lease_for(self, connection: socket.socket, leases: Leases) -> ProbeError | WireError | None:
        """Serve one client to its end and put back what it set; return what it is to be told, if it still listens."""
        try:
            lease = Lease(self._admitted(connection))
        except NotPermitted as error:
            return error
        try:
            return self._converse(connection, lease, leases)
        finally:
            leases.end(lease)

    def _admitted(self, connection: socket.socket) -> Peer:
        """Return who connects. Raises NotPermitted where the configuration does not allow it."""
        peer = peer_of(connection, self._host.paths.proc)
        if not self._config.allows(peer.uid, peer.gids):
            raise NotPermitted(
                f"the guard is not there for user {peer.uid} with the groups {sorted(peer.gids)}; "
                "add one of them to users or groups in the guard's configuration"
            )
        if not peer.process.started:
            raise NotPermitted(
                f"the guard cannot see your process (pid {peer.process.pid} to it); run both in one PID namespace, "
                "and without hidepid on /proc"
            )
        return peer

    def _converse(self, connection: socket.socket, lease: Lease, leases: Leases) -> ProbeError | WireError | None:
        """Answer one request after the other; return why that has ended, or None when nobody listens any more."""
        lines = Lines(connection)
        lapse_s = self._config.lapse_s
        try:
            while (line := lines.read(lapse_s)) is not None:
                answer = self._answer(decode_request(line), lease, leases)
                connection.settimeout(lapse_s)  # of a client that asks and does not listen
                connection.sendall(answer)
        except WireError as error:
            return error
        except TimeoutError:
            return ControlLeaseLost(
                f"process {lease.peer.process.pid} was silent for {lapse_s:g} s; what it set is put back"
            )
        except OSError:
            return None
        if self._stopping.is_set():
            return ControlLeaseLost("the guard was told to stop; what was set is put back")
        return None

    def _answer(self, request: Request, lease: Lease, leases: Leases) -> bytes:
        try:
            return encode_answer(self._body(request, lease, leases))
        except ProbeError as error:
            log.warning("refused", op=str(request.op), pid=lease.peer.process.pid, reason=str(error))
            return encode_error(error)

    def _body(self, request: Request, lease: Lease, leases: Leases) -> object:
        match request.op:
            case Op.HELLO:
                lease.label = request.label
                return body_of(self._welcome(lease, leases))
            case Op.APPLY:
                leases.apply(lease, request.uuids, request.settings)
            case Op.PROBLEMS:
                return list(leases.problems(lease))
            case Op.RESTORE:
                leases.restore(lease)
            case Op.RECOVER:
                return body_of(leases.recover())
            case Op.STATUS:
                return body_of(leases.status())
        return None

    def _welcome(self, lease: Lease, leases: Leases) -> Welcome:
        return Welcome(
            guard_pid=os.getpid(),
            lease=lease.token,
            lapse_s=self._config.lapse_s,
            state_dir=str(self._config.state_dir),
            offers=leases.offers(),
        )

    def _end_threads(self, recovery: _Recovery) -> None:
        """Let every connection end as if its client had closed it, and wait until what they set is put back.

        All together are waited for no longer than LONGEST_STOP_S.
        """
        self._stopping.set()
        deadline_s = time.monotonic() + LONGEST_STOP_S
        with self._lock:
            threads = [*self._connections.values(), recovery.thread]
            for connection in self._connections:
                with suppress(OSError):  # its client was quicker
                    connection.shutdown(socket.SHUT_RD)
        for thread in threads:
            thread.join(max(deadline_s - time.monotonic(), 0))
            if thread.is_alive():
                self._hangs = True
                log.error("restore_hangs", detail="the next start of a guard or worker puts it back")


class _Recovery:
    """The recovery at the start and every RETRY_S from then on, in a thread of its own: a driver call may hang."""

    def __init__(self, config: GuardConfig, host: Host, stopping: Event) -> None:
        self._config = config
        self._host = host
        self._stopping = stopping
        self._first: Future[Leases] = Future()
        self.thread = Thread(target=self._run, name="guard-recovery", daemon=True)
        self.thread.start()

    def first(self) -> Leases | None:
        """Wait for the first recovery and return the leases; None when the guard is told to stop and it hangs.

        Raises what the recovery raised.
        """
        # Not a wait for `_stopping` itself: the signal handler that sets it runs in this very thread.
        while not self._stopping.is_set() and not self._first.done():
            wait([self._first], timeout=_LOOK_EVERY_S)
        wait([self._first], timeout=LONGEST_STOP_S)
        return self._first.result() if self._first.done() else None

    def _run(self) -> None:
        try:
            leases = Leases(self._config, self._host)
            leases.recover()
        except BaseException as error:
            self._first.set_exception(error)
            return
        self._first.set_result(leases)
        while not self._stopping.wait(RETRY_S):
            try:
                leases.recover()
            except ProbeError as error:
                log.error("recovery_failed", reason=str(error))


def user_of(connection: socket.socket) -> int:
    """Return the user at the other end, as the kernel noted it at the connect."""
    return _credentials_of(connection)[1]


def peer_of(connection: socket.socket, proc: Path) -> Peer:
    """Return which process is at the other end, and its user and groups, as the kernel noted them at its connect."""
    pid, uid, gid = _credentials_of(connection)
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:  # a kernel before 4.13, or more groups than that: the main one counts alone
        groups = b""
    gids = struct.unpack(f"{len(groups) // 4}I", groups)
    return Peer(process=process_identity(pid, proc), uid=uid, gids=frozenset({gid, *gids}))


def _credentials_of(connection: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


def _tell(connection: socket.socket, error: ProbeError | WireError) -> None:
    with suppress(OSError):
        connection.sendall(encode_error(error))
