"""Who used the CPU: the engine, ourselves with it, and everybody else.

Reads /proc once per look, so that a machine with thousands of processes is not disturbed by being watched. Knows
nothing of watts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from probes.clock import Clock
from probes.validity import Note, Reason, with_value

#: From this share of the usable cores on, somebody else's work is worth a note ...
NOTED_FOREIGN_SHARE = 0.25
#: ... and from this one on, latency and throughput are no longer the engine's own.
REFUSED_FOREIGN_SHARE = 0.50

_GONE_STATES = frozenset("ZXx")  # a zombie has ended, though nobody has asked how
# Fields of /proc/<pid>/stat after the name, counted from 0 (man 5 proc_pid_stat, fields 3, 4, 14 to 17 and 22).
_STATE, _PPID, _UTIME, _CSTIME, _STARTTIME = 0, 1, 11, 14, 19
# Columns of a /proc/stat line that are work, or time a hypervisor gave to others (man 5 proc_stat).
_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 1, 2, 3, 6, 7, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """CPU seconds since boot, at one instant; only differences mean anything."""

    #: The engine's processes and their descendants.
    engine_s: float
    #: The engine and our own process, with all descendants.
    known_s: float
    #: Everybody on the usable cores, and what a hypervisor took from them.
    busy_s: float
    #: Engine processes that have ended.
    gone_pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One line of the process table."""

    ppid: int
    has_ended: bool
    #: Own ticks plus those of children that ended and were waited for.
    ticks: int
    #: Ticks since boot; tells a process from a later one with its pid.
    started: int


class HostLoadReader:
    """Looks at the process table and the cores."""

    def __init__(self, pids: Sequence[int], *, proc: Path, cores: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._proc = proc
        self._cores = frozenset(cores)
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._started = {pid: row.started for pid, row in read_processes(proc).items() if pid in self._pids}

    def read(self) -> HostLoad:
        """Return the present load; a process that ends between two files read counts as ended."""
        table = read_processes(self._proc)
        engine = with_descendants(table, self._pids)
        known = engine | with_descendants(table, (os.getpid(),))
        return HostLoad(
            engine_s=sum(table[pid].ticks for pid in engine) * self._tick_s,
            known_s=sum(table[pid].ticks for pid in known) * self._tick_s,
            busy_s=read_busy_s(self._proc, self._cores),
            gone_pids=tuple(pid for pid in self._pids if self._is_gone(table, pid)),
        )

    def _is_gone(self, table: Mapping[int, ProcessRow], pid: int) -> bool:
        row = table.get(pid)
        return row is None or row.has_ended or row.started != self._started.get(pid)


class HostWatch:
    """Judges a stretch by who else worked during it."""

    def __init__(self, reader: HostLoadReader, *, num_cores: int, clock: Clock) -> None:
        self._reader = reader
        self._num_cores = num_cores
        self._clock = clock
        self._begin: tuple[float, HostLoad] | None = None

    def start(self) -> None:
        """Remember the load now."""
        self._begin = (self._clock.monotonic_s(), self._reader.read())

    def stop(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the reasons against the stretch since start, and the notes beside it."""
        if self._begin is None:
            return (), ()
        start_s, before = self._begin
        duration_s = self._clock.monotonic_s() - start_s
        return judge_load(before, self._reader.read(), cores_s=duration_s * self._num_cores)


def judge_load(before: HostLoad, after: HostLoad, *, cores_s: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return reasons and notes for a stretch in which the cores could have worked `cores_s` seconds in all."""
    share = foreign_share(before, after, cores_s=cores_s)
    gone = (Reason.ENGINE_PROCESS_GONE,) if after.gone_pids else ()
    foreign = (Reason.FOREIGN_CPU_LOAD,) if share > REFUSED_FOREIGN_SHARE else ()
    noted = (with_value(Note.FOREIGN_CPU_LOAD, share),) if share > NOTED_FOREIGN_SHARE else ()
    return (*gone, *foreign), noted


def foreign_share(before: HostLoad, after: HostLoad, *, cores_s: float) -> float:
    """Return what part of the cores' time others used, 0 to 1."""
    known_s = max(after.known_s - before.known_s, 0.0)
    return min(max(after.busy_s - before.busy_s - known_s, 0.0) / cores_s, 1.0) if cores_s > 0 else 0.0


def with_descendants(table: Mapping[int, ProcessRow], pids: Iterable[int]) -> set[int]:
    """Return those of the pids that exist, with their children and theirs."""
    children: dict[int, list[int]] = {}
    for pid, row in table.items():
        children.setdefault(row.ppid, []).append(pid)
    found: set[int] = set()
    waiting = [pid for pid in pids if pid in table]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def read_processes(proc: Path) -> dict[int, ProcessRow]:
    """Return the process table; processes that end while it is read are left out."""
    table = {}
    with os.scandir(proc) as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        try:
            text = (proc / str(pid) / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        table[pid] = parse_process(text)
    return table


def parse_process(stat: str) -> ProcessRow:
    """Return the row in one /proc/<pid>/stat; the name may hold spaces and brackets."""
    fields = stat[stat.rindex(")") + 2 :].split()
    return ProcessRow(
        ppid=int(fields[_PPID]),
        has_ended=fields[_STATE] in _GONE_STATES,
        ticks=sum(map(int, fields[_UTIME : _CSTIME + 1])),
        started=int(fields[_STARTTIME]),
    )


def read_busy_s(proc: Path, cores: Iterable[int]) -> float:
    """Return seconds of work on these cores since boot, stolen time included."""
    names = frozenset(f"cpu{core}" for core in cores)
    lines = (line.split() for line in (proc / "stat").read_text().splitlines())
    columns = (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL)
    ticks = sum(int(line[column]) for line in lines if line and line[0] in names for column in columns)
    return ticks / os.sysconf("SC_CLK_TCK")
