"""Look at one GPU over and over, as cheaply as can be, and see who else computes on it.

What a look costs is paid beside a running engine: what the card does not offer is not asked again, what changes slowly
(temperature, memory clock) is asked twice a second, and what changes rarely (limits, persistence, processes) once.
Knows the card by the reads it is handed,
nothing of NVML and nothing of energy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from probes.clock import Clock
from probes.clock_events import events_of
from probes.cpu.processes import read_processes, with_descendants
from probes.device import Conditions, Status
from probes.errors import DeviceLost, ProbeError
from probes.metering.conditions import Judgement, Limits, conditions_of, judge, judge_gaps, judge_processes
from probes.metering.sampler import Failure
from probes.settings import DeviceSettings
from probes.validity import Note

#: Between two looks at limits, persistence and processes.
SLOW_INTERVAL_S = 1.0
#: Between two looks at temperature and memory clock; a die warms by degrees in seconds.
INERT_INTERVAL_S = 0.5

T = TypeVar("T")

#: The same few sets of bits come ten times a second.
_events_of = lru_cache(maxsize=64)(events_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReads:
    """How to read one card; None stands for what it does not offer. Each raises ProbeError."""

    power_w: Callable[[], float] | None = None
    clock_mhz: Callable[[], float] | None = None
    memory_clock_mhz: Callable[[], float] | None = None
    temperature_c: Callable[[], float] | None = None
    event_bits: Callable[[], int] | None = None
    enforced_limit_w: Callable[[], float | None] | None = None
    set_limit_w: Callable[[], float | None] | None = None
    is_persistent: Callable[[], bool | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look: every figure by itself, so that a bad power reading does not lose the clocks."""

    #: At the instant of the power reading.
    status: Status
    #: Why there is no power.
    power_failure: Failure | None = None


class GpuEye:
    """Looks at one card; one thread at a time."""

    def __init__(self, reads: CardReads, *, clock: Clock) -> None:
        self._reads = reads
        self._clock = clock
        self._lost: DeviceLost | None = None
        self._inert_s = -math.inf
        self._memory_clock_mhz: float | None = None
        self._temperature_c: float | None = None
        #: Every look at the limits, the oldest first.
        self.limits: list[Limits] = []

    def look(self) -> Look:
        """Read what the card offers; what is slow only when the last look at it is old enough."""
        before_s = self._clock.monotonic_s()
        power_w, failure = self._power()
        time_s = (before_s + self._clock.monotonic_s()) / 2
        if not self.limits or time_s - self.limits[-1].time_s >= SLOW_INTERVAL_S:
            self.look_at_limits()
        if time_s - self._inert_s >= INERT_INTERVAL_S:
            self._inert_s = time_s
            self._memory_clock_mhz = self._answer(self._reads.memory_clock_mhz)
            self._temperature_c = self._answer(self._reads.temperature_c)
        reads = self._reads
        bits = self._answer(reads.event_bits)
        status = Status(
            time_s=time_s,
            power_w=power_w,
            clock_mhz=self._answer(reads.clock_mhz),
            memory_clock_mhz=self._memory_clock_mhz,
            temperature_c=self._temperature_c,
            power_limit_w=self.limits[-1].enforced_w,
            events=_events_of(bits) if bits else (),
        )
        if failure is None:
            return Look(status=status)
        kind, message = failure
        return Look(status=status, power_failure=Failure(time_s=time_s, kind=kind, message=message))

    def look_at_limits(self) -> None:
        """Read back the limits and the persistence mode."""
        reads = self._reads
        self.limits.append(
            Limits(
                time_s=self._clock.monotonic_s(),
                set_w=self._answer(reads.set_limit_w),
                enforced_w=self._answer(reads.enforced_limit_w),
                is_persistent=self._answer(reads.is_persistent),
            )
        )

    def is_blind(self, status: Status) -> bool:
        """Return whether a look shows neither power nor clock although the card offers one of them."""
        is_offered = self._reads.power_w is not None or self._reads.clock_mhz is not None
        return is_offered and status.power_w is None and status.clock_mhz is None

    def status(self) -> Status:
        """Look; raise DeviceLost when the card no longer answers."""
        look = self.look()
        if self._lost is not None:
            raise self._lost
        return look.status

    def _power(self) -> tuple[float | None, tuple[str, str] | None]:
        if self._reads.power_w is None:
            return None, None
        try:
            return self._reads.power_w(), None
        except ProbeError as error:
            self._note(error)
            return None, (error.kind, str(error))

    def _answer(self, read: Callable[[], T] | None) -> T | None:
        if read is None:
            return None
        try:
            return read()
        except ProbeError as error:
            self._note(error)
            return None

    def _note(self, error: ProbeError) -> None:
        if isinstance(error, DeviceLost):
            self._lost = error


class ProcessWatch:
    """Who computes on the card: the engine, ourselves, or somebody else."""

    def __init__(
        self,
        pids: Sequence[int],
        *,
        here: Callable[[], Iterable[int]],
        elsewhere: Callable[[], Iterable[int]],
        proc: Path,
    ) -> None:
        """Watch for the engine with these `pids`.

        `here` returns the processes on the card, `elsewhere` those on all cards that are not measured with it; both
        raise ProbeError where the driver does not tell.
        """
        self._here = here
        self._elsewhere = elsewhere
        self._proc = proc
        self._pids = frozenset(pids)
        self._engine = set(pids)
        self._own = {os.getpid()}
        self._foreign: set[int] = set()
        self._seen: set[int] = set()
        self._is_elsewhere = False
        self._is_blind = False

    def look(self) -> None:
        """See who is on the card. The process table is read only when there is somebody new."""
        self._seen |= self._known(_answered(self._here))

    def look_elsewhere(self) -> None:
        """See whether the engine is on a card that is not measured."""
        self._is_elsewhere = self._is_elsewhere or not self._engine.isdisjoint(self._known(_answered(self._elsewhere)))

    def judged(self) -> Judgement:
        """Return the reasons against the window that was watched, and the notes beside it."""
        if self._is_blind:
            return (), (Note.GPU_PROCESSES_UNKNOWN,)
        return judge_processes(self._seen & self._engine, self._seen & self._foreign, is_elsewhere=self._is_elsewhere)

    def _known(self, pids: frozenset[int]) -> frozenset[int]:
        """Return the pids, having found out whose they are."""
        strangers = pids - self._engine - self._own - self._foreign
        if strangers:
            try:
                table = read_processes(self._proc)
            except OSError:  # a /proc that hides other users' processes: nobody can be told from the engine's children
                self._is_blind = True
                return pids
            self._engine |= with_descendants(table, self._pids)
            self._own |= with_descendants(table, (os.getpid(),))
            self._foreign |= strangers - self._engine - self._own
        return pids


class GpuWatch:
    """One window's looks at a card, and what they say about it."""

    def __init__(
        self,
        eye: GpuEye,
        *,
        device_uuid: str,
        settings: DeviceSettings,
        settable_step: int | None,
        processes: ProcessWatch | None,
    ) -> None:
        """Watch for a window under `settings`; without `processes`, whoever computes on the card may."""
        self._eye = eye
        self._device_uuid = device_uuid
        self._settings = settings
        self._settable_step = settable_step
        self._processes = processes
        self._num_slow = 0

    def begin(self) -> Look:
        """Look before the window."""
        if self._processes:
            self._processes.look_elsewhere()
        return self.look()

    def look(self) -> Look:
        """Look once; for limits and processes only when it is time."""
        look = self._eye.look()
        if self._processes and len(self._eye.limits) > self._num_slow:
            self._processes.look()
        self._num_slow = len(self._eye.limits)
        return look

    def end(self) -> Look:
        """Look after the window, at limits and processes too."""
        self._eye.look_at_limits()
        if self._processes:
            self._processes.look()
            self._processes.look_elsewhere()
        return self._eye.look()

    def judged(self, looks: Iterable[Look], start_s: float, end_s: float) -> tuple[Conditions, Judgement]:
        """Return what the looks from `start_s` to `end_s` say about the window."""
        statuses = [look.status for look in looks if start_s <= look.status.time_s <= end_s]
        reasons, notes = judge(statuses, self._settings, self._settable_step, self._eye.limits)
        gaps = judge_gaps([status.time_s for status in statuses if not self._eye.is_blind(status)], start_s, end_s)
        against, beside = self._processes.judged() if self._processes else ((), ())
        return conditions_of(statuses, self._device_uuid), ((*gaps, *reasons, *against), (*notes, *beside))


def _answered(ask: Callable[[], Iterable[int]]) -> frozenset[int]:
    try:
        return frozenset(ask())
    except ProbeError:
        return frozenset()
