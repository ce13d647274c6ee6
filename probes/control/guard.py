"""The privileged helper: sets clocks and limits for unprivileged workers, under a lease.

It listens on a Unix socket. A connection is a lease: its end, or silence, puts back what it set. Who connects is known
by the kernel's word (SO_PEERCRED). Needs Linux. Knows sockets, threads and time; what may be set, and how, is
`probes.control.leases`'.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread

import structlog

from probes.control.guard_answers import Welcome, body_of
from probes.control.guard_config import GuardConfig, require_private
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
SOCKET_MODE = 0o660
LOCK_SUFFIX = ".lock"
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
            _own_folders(self._config)
            stack.enter_context(_only_one(_beside(self._config.socket)))
            stack.enter_context(_only_one(self._config.state_dir / LOCK_NAME))
            leases = Leases(self._config, self._host)
            leases.recover()
            stack.callback(self._end_connections)
            listener = stack.enter_context(_listening(self._config))
            log.info("guard_listens", socket=str(self._config.socket), lapse_s=self._config.lapse_s)
            on_listening()
            self._accept_until_stopped(listener, leases)
        return not self._hangs and not leases.status().failed

    def _accept_until_stopped(self, listener: socket.socket, leases: Leases) -> None:
        retry_at_s = time.monotonic() + RETRY_S
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._stopping.is_set():
                ready = [key.fileobj for key, _ in selector.select(max(retry_at_s - time.monotonic(), 0))]
                if listener in ready:
                    self._accept(listener, leases)
                if time.monotonic() >= retry_at_s:
                    leases.recover()
                    retry_at_s = time.monotonic() + RETRY_S

    def _accept(self, listener: socket.socket, leases: Leases) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # whoever it was is gone, or there are too many open files
            log.warning("accept_failed", reason=str(error))
            self._stopping.wait(0.1)
            return
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                _tell(connection, GuardUnavailable(f"the guard has {MAX_CONNECTIONS} connections already; end some"))
                connection.close()
                return
            thread = Thread(target=self._serve_one, args=(connection, leases), name="guard-lease", daemon=True)
            self._connections[connection] = thread
        thread.start()

    def _serve_one(self, connection: socket.socket, leases: Leases) -> None:
        try:
            farewell = self._lease_for(connection, leases)
            if farewell is not None:
                log.warning("connection_ended", reason=str(farewell))
                _tell(connection, farewell)
        finally:
            with self._lock:
                del self._connections[connection]
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
                return body_of(self._welcome(leases))
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

    def _welcome(self, leases: Leases) -> Welcome:
        return Welcome(
            guard_pid=os.getpid(),
            lapse_s=self._config.lapse_s,
            state_dir=str(self._config.state_dir),
            offers=leases.offers(),
        )

    def _end_connections(self) -> None:
        """Let every connection end as if its client had closed it, and wait until what they set is put back."""
        self._stopping.set()
        deadline_s = time.monotonic() + LONGEST_STOP_S
        with self._lock:
            threads = list(self._connections.values())
            for connection in self._connections:
                with suppress(OSError):  # its client was quicker
                    connection.shutdown(socket.SHUT_RD)
        for thread in threads:
            thread.join(max(deadline_s - time.monotonic(), 0))
            if thread.is_alive():
                self._hangs = True
                log.error("restore_hangs", detail="the next start of a guard or worker puts it back")


def peer_of(connection: socket.socket, proc: Path) -> Peer:
    """Return which process is at the other end, and its user and groups, as the kernel noted them at its connect."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(credentials)
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:  # a kernel before 4.13, or more groups than that: the main one counts alone
        groups = b""
    gids = struct.unpack(f"{len(groups) // 4}I", groups)
    return Peer(process=process_identity(pid, proc), uid=uid, gids=frozenset({gid, *gids}))


def _tell(connection: socket.socket, error: ProbeError | WireError) -> None:
    with suppress(OSError):
        connection.sendall(encode_error(error))


def _own_folders(config: GuardConfig) -> None:
    """Make the folders of socket and journal where they are not there. Whoever can write them could play the guard."""
    for folder in (config.socket.parent, config.state_dir):
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise GuardUnavailable(
                f"{folder} cannot be made ({error.strerror}); run the guard as root, or give it other places with "
                "--socket and --state-dir"
            ) from error
        require_private(folder)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold a lock file, which ends with this process however that ends."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise GuardUnavailable(f"{path} cannot be written ({error.strerror}); run the guard as root") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise GuardUnavailable(f"another guard, process {other}, holds {path}; stop that one first") from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _listening(config: GuardConfig) -> Iterator[socket.socket]:
    """Listen on the socket, in place of one that a killed guard left: the lock says that there is no other."""
    path = config.socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _remove_stale(path)
            listener.bind(str(path))
            os.chown(path, -1, -1 if config.socket_gid is None else config.socket_gid)
            os.chmod(path, SOCKET_MODE)
            listener.listen()  # from here on somebody can connect, and only as the mode allows
        except OSError as error:
            raise GuardUnavailable(
                f"the guard cannot listen on {path} ({error.strerror or error}); run it as root, or give --socket a "
                "short path in a folder of its own"
            ) from error
        listener.setblocking(False)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(0, "there is a file of another kind")
    path.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(path.name + LOCK_SUFFIX)
