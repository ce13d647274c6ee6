"""Where a guard lives: its folders, its lock files, and the socket that it listens on.

Knows nothing of who connects, nor of what is asked.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probes.control.guard_config import GuardConfig, require_private
from probes.errors import GuardUnavailable

SOCKET_MODE = 0o660
LOCK_SUFFIX = ".lock"


def own_folders(config: GuardConfig) -> None:
    """Make the folders of socket and journal where they are not there. Whoever can write them could play the guard.

    Raises GuardUnavailable where they cannot be made, and InvalidSetting where others can write them.
    """
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
def only_one(path: Path) -> Iterator[None]:
    """Hold a lock file, which ends with this process however that ends. Raises GuardUnavailable: another holds it."""
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
def listening(config: GuardConfig) -> Iterator[socket.socket]:
    """Listen on the socket, in place of one that a killed guard left: the lock says that there is no other.

    Raises GuardUnavailable where it cannot.
    """
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


def beside(path: Path) -> Path:
    """Return the lock file that goes with a socket."""
    return path.with_name(path.name + LOCK_SUFFIX)
