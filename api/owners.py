"""Who holds a job: a name for this process that outlives it, and whether another one's process is gone."""

from __future__ import annotations

import os
import socket

from probes.identity import start_of


def owner_name() -> str:
    """Name this process: host, process id, and its start, since process ids are used again."""
    return f"{socket.gethostname()}:{os.getpid()}:{start_of(os.getpid())}"


def is_dead(owner: str) -> bool:
    """Tell whether an owner was a process of this machine that is gone; others are given their lease."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    started = owner.rpartition(":")[2]
    return host == socket.gethostname() and rest.isdigit() and start_of(int(rest)) != started
