"""Which process somebody is, in terms that outlive it: process ids are used again, after a while and after a restart.

Knows nothing of what a process does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process of one boot of this machine."""

    pid: int
    #: Clock ticks since boot at which it began; empty when it was not there to be asked.
    started: str
    boot_id: str
    #: Inode of the PID namespace in which `pid` counts; 0 where that is not known, then it is taken for ours.
    pid_namespace: int = 0

    def is_alive(self, proc: Path = PROC) -> bool:
        """Return whether this very process is known to run still; a zombie does not."""
        return (
            bool(self.started)
            and self.boot_id == boot_id(proc)
            and not self.is_elsewhere(proc)
            and self.started == start_of(self.pid, proc)
        )

    def may_be_alive(self, proc: Path = PROC) -> bool:
        """Return whether it runs, or cannot be seen from here and may."""
        return self.is_elsewhere(proc) or self.is_alive(proc)

    def is_elsewhere(self, proc: Path = PROC) -> bool:
        """Return whether it is of another PID namespace of this boot, so that nothing can be known of it."""
        ours = pid_namespace(proc)
        return (
            0 not in (ours, self.pid_namespace) and ours != self.pid_namespace and not is_other_boot(self.boot_id, proc)
        )


def process_identity(pid: int | None = None, proc: Path = PROC) -> ProcessIdentity:
    """Return the identity of a process, or of this one."""
    pid = os.getpid() if pid is None else pid
    return ProcessIdentity(
        pid=pid, started=start_of(pid, proc), boot_id=boot_id(proc), pid_namespace=pid_namespace(proc)
    )


def boot_id(proc: Path = PROC) -> str:
    """Return the kernel's id of this boot; empty where it does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_other_boot(boot: str, proc: Path = PROC) -> bool:
    """Return whether a boot id is known to be of another boot than this one."""
    now = boot_id(proc)
    return bool(now and boot) and now != boot


def pid_namespace(proc: Path = PROC) -> int:
    """Return the inode of this process's PID namespace, see pid_namespaces(7); 0 where the kernel does not say."""
    try:
        return os.stat(proc / "self/ns/pid").st_ino
    except OSError:
        return 0


def start_of(pid: int, proc: Path = PROC) -> str:
    """Return when a process began, in clock ticks since boot, or nothing when there is none (a zombie counts).

    Not psutil's create_time, which is wall-clock time and moves when the clock is set: a live process would look dead.
    """
    try:
        # proc(5): after the name in brackets, which may hold anything, come the state and, 19 further, the start.
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
