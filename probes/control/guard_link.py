"""One connection to the guard: asks, one question at a time, and keeps the lease alive with heartbeats.

Knows the wire and time limits; nothing of what is set.
"""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any

from probes.control.guard_answers import Welcome, welcome_of
from probes.control.guard_wire import MAX_LABEL, Lines, Op, Request, WireError, decode_answer, encode_request
from probes.errors import ControlLeaseLost, GuardUnavailable, NotPermitted, ProbeError

CONNECT_TIMEOUT_S = 5.0
#: Setting and putting back take tens of milliseconds each, and a few seconds when many connections ask at once.
ANSWER_TIMEOUT_S = 30.0
HEARTBEAT_S = 2.0
#: Pid, uid and gid of SO_PEERCRED: three 32-bit words.
CREDENTIALS = struct.Struct("iII")
THREAD_NAME = "guard-heartbeat"


class GuardLink:
    """A connection whose guard has welcomed us. Once it is lost it stays lost."""

    def __init__(self, path: Path, *, label: str = "") -> None:
        """Connect. Raises GuardUnavailable, naming the remedy, where nobody answers or we are refused."""
        self._path = path
        self._lock = RLock()
        self._closing = Event()
        self._lost: str | None = None
        self._socket = _connected(path)
        self._lines = Lines(self._socket)
        _forget_in_children(self)
        try:
            self.welcome: Welcome = self._welcomed(label)
        except (NotPermitted, ControlLeaseLost, WireError) as error:
            self.close()
            raise GuardUnavailable(f"the guard on {path} refuses us: {error}") from error
        except BaseException:
            self.close()
            raise

    @property
    def is_lost(self) -> bool:
        """Whether the guard has taken back, or is about to take back, what was set."""
        return self._lost is not None

    def keep_alive(self) -> None:
        """Send heartbeats from a thread of its own until the link is closed or lost."""
        # A quarter of the lapse where it is short, so that a late thread still has three tries.
        every_s = min(HEARTBEAT_S, self.welcome.lapse_s / 4)
        Thread(target=_beat, args=(weakref.ref(self), self._closing, every_s), name=THREAD_NAME, daemon=True).start()

    def ask(self, request: Request, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Return what the guard answers.

        Raises what the guard raised, and ControlLeaseLost where it no longer answers or has ended the lease.
        """
        try:
            return self._exchange(request, timeout_s)
        except WireError as error:
            raise GuardUnavailable(f"the guard on {self._path} and this process disagree: {error}") from error

    def close(self) -> None:
        """Let go; the guard puts back what is still set. Idempotent."""
        self._closing.set()
        self._lose("this process let go of the guard")

    def _welcomed(self, label: str) -> Welcome:
        return welcome_of(self._exchange(Request(op=Op.HELLO, label=_shortened(label)), ANSWER_TIMEOUT_S))

    def _exchange(self, request: Request, timeout_s: float) -> Any:
        with self._lock:
            if self._lost is not None:
                raise ControlLeaseLost(self._lost)
            try:
                return decode_answer(self._asked(encode_request(request), timeout_s))
            except (ControlLeaseLost, WireError) as error:
                self._lose(str(error))
                raise
            except OSError as error:
                self._lose(f"the guard on {self._path} no longer answers ({error.strerror or error})")
                raise ControlLeaseLost(self._lost or "") from error
            except ProbeError:
                raise  # an answer like any other
            except BaseException:
                # Interrupted between question and answer: the next answer would be taken for another's.
                self._lose("this process was interrupted while it waited for the guard")
                raise

    def _asked(self, line: bytes, timeout_s: float) -> bytes:
        self._socket.settimeout(timeout_s)
        with suppress(BrokenPipeError, ConnectionResetError):  # the guard may have said why before it closed
            self._socket.sendall(line)
        answer = self._lines.read(timeout_s)
        if answer is None:
            raise ControlLeaseLost(f"the guard on {self._path} has closed the connection")
        return answer

    def _lose(self, why: str) -> None:
        with self._lock:
            self._lost = self._lost or why
            self._socket.close()


def _beat(link: weakref.ref[GuardLink], closing: Event, every_s: float) -> None:
    """Say now and then that the process lives; a link that nobody holds any more ends it."""
    while not closing.wait(every_s):
        known = link()
        if known is None or known.is_lost:
            return
        try:
            known.ask(Request(op=Op.HEARTBEAT), known.welcome.lapse_s)
        except ProbeError:
            return  # `is_lost` tells from now on
        del known


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_TIMEOUT_S)
        connection.connect(str(path))
        _require_trusted(connection, path)
    except OSError as error:
        connection.close()
        raise GuardUnavailable(f"the guard's socket {path}: {_remedy(error)}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _require_trusted(connection: socket.socket, path: Path) -> None:
    """Refuse a socket that somebody else made: only root, or we ourselves, can be our guard."""
    _pid, uid, _gid = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    if uid not in (0, os.geteuid()):
        raise GuardUnavailable(f"the guard's socket {path} is served by user {uid}, neither root nor you")


def _remedy(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is not there; start `wattfront guard` as root"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens any more; start `wattfront guard` again as root, or remove the file"
    if isinstance(error, PermissionError):
        return "this user may not connect; join the group that the socket belongs to"
    return f"{error.strerror or error}; look at the guard's log"


def _shortened(label: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in label)[:MAX_LABEL]


def _forget_in_children(link: GuardLink) -> None:
    """Let a forked child hold no end of the parent's connection: the parent's death would not be noticed."""
    known: Callable[[], GuardLink | None] = weakref.ref(link)

    def forget() -> None:
        survivor = known()
        if survivor is not None:
            survivor._lock = RLock()  # the parent's may be held by a thread that the child does not have
            survivor._closing.set()
            survivor._lose("the guard knows the process that this one was forked from")

    os.register_at_fork(after_in_child=forget)
