"""One measuring process per device: two that measure at once would book each other's joules.

The lock is the kernel's (flock on a file named after the device), so it ends with the process however that ends.
Knows nothing of what the holder does.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from probes.errors import DeviceInUse
from probes.metering.group import member_uuids


@contextmanager
def hold(device_uuid: str, *, folder: Path | None = None) -> Iterator[None]:
    """Hold a device while the context is open; raise DeviceInUse, naming the holder, when another process does.

    The UUID of a group holds each of its members. `folder` is where the lock files lie; the default is the same for
    every user of the machine.
    """
    with hold_all(member_uuids(device_uuid), folder=folder):
        yield


@contextmanager
def hold_all(device_uuids: Iterable[str], *, folder: Path | None = None) -> Iterator[None]:
    """Hold several devices, all or none, while the context is open; raise DeviceInUse as `hold` does.

    Nobody waits for a device here, so two that want the same ones cannot block each other; and since everybody asks
    in the same order, one of them gets all.
    """
    with ExitStack() as held:
        for device_uuid in sorted(set(device_uuids)):
            held.enter_context(_hold_one(device_uuid, folder))
        yield


@contextmanager
def _hold_one(device_uuid: str, folder: Path | None) -> Iterator[None]:
    name = re.sub(r"[^A-Za-z0-9-]", "_", device_uuid)
    path = (folder or Path(tempfile.gettempdir())) / f"wattfront-{name}.lock"
    descriptor = _open(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise DeviceInUse(
                f"device {device_uuid} is being measured by process {holder}; wait until that is done, or end it"
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """Open the lock file, making it for all users if need be.

    In two steps: where /tmp is shared, Linux refuses O_CREAT on a file that another user made (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)  # whatever the umask says
        return descriptor
