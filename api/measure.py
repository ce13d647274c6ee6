"""Measure the energy of any command: start a meter, let the command run beside it, stop the meter when it has ended.

The command keeps our standard streams, our place in the terminal and its exit code; only when it begins and ends is
ours. What goes on in the background after it has ended is not in the figure. Knows nothing of how figures are shown.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Event
from types import FrameType

from api import launcher
from api.errors import UsageError
from probes.clock import Clock
from probes.device import Device, DeviceInfo, Reading
from probes.settle import idle_power, start_delays
from probes.validity import Reason
from tuner.measurement import Estimate, mean_estimate

#: How long a sensor's period is taken to be where the device does not tell: the longest seen (arXiv 2312.02741).
ASSUMED_PERIOD_S = 0.1
#: What a shell adds to the number of the signal that ended a command.
SIGNAL_EXIT = 128
FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: A terminal sends these to its whole foreground group, so the command has them already.
FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)

_LONGEST_REPORT = 4096


class CannotStart(UsageError):
    """Correct the command that the message names; nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The command once."""

    #: As a shell would have it: 128 and the signal's number where a signal ended it.
    exit_code: int
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All runs of a command."""

    device: DeviceInfo
    command: tuple[str, ...]
    #: How often it was to run; fewer runs when one failed or a signal came.
    num_repeats: int
    runs: tuple[Run, ...]
    #: The device before the first run; never subtracted. None when not asked for.
    idle: Reading | None = None

    @property
    def exit_code(self) -> int:
        """Of the last run: every one before it ended with 0."""
        return self.runs[-1].exit_code

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that means are taken of: usable, and ended with 0 unless there is only one."""
        return tuple(run for run in self.runs if run.reading.is_valid and (run.exit_code == 0 or len(self.runs) == 1))

    @property
    def is_valid(self) -> bool:
        """Whether the figures of every run may be used."""
        return all(run.reading.is_valid for run in self.runs)

    def energy_j(self) -> Estimate | None:
        """Mean joules of a run with Student's t interval; None without a usable run."""
        return _mean(run.reading.energy_j for run in self.counted)

    def mean_power_w(self) -> Estimate | None:
        """Mean watts of a run, likewise."""
        return _mean(run.reading.mean_power_w for run in self.counted)

    def duration_s(self) -> Estimate | None:
        """Mean seconds of a run, likewise."""
        return _mean(run.reading.duration_s for run in self.counted)


def measure(
    device: Device,
    command: Sequence[str],
    *,
    clock: Clock,
    num_repeats: int = 1,
    idle_s: float = 0.0,
    seed: int = 0,
    on_run: Callable[[Run], None] = lambda run: None,
) -> Measured:
    """Run a command `num_repeats` times and measure the device each time.

    Between repeats the start is delayed at random, so that a sensor which looks part of the time does not see the same
    part of each run. The first run that does not end with 0, or a signal, ends the repeating. Must be called from the
    main thread, which alone may handle signals. Raises CannotStart, and NotSupported where the device has no source of
    power.
    """
    source = device.power_source
    period_s = source.resolution_s if source is not None and source.resolution_s else ASSUMED_PERIOD_S
    delays_s = start_delays(num_repeats, sensor_period_s=period_s, rng=random.Random(seed))
    idle = idle_power(device, clock, idle_s) if idle_s > 0 else None
    runs: list[Run] = []
    for delay_s in delays_s:
        if num_repeats > 1:
            clock.wait(Event(), delay_s)
        run, is_signalled = _run(device, command)
        runs.append(run)
        on_run(run)
        if run.exit_code != 0 or is_signalled:
            break
    return Measured(device=device.info, command=tuple(command), num_repeats=num_repeats, runs=tuple(runs), idle=idle)


def _run(device: Device, command: Sequence[str]) -> tuple[Run, bool]:
    """Run the command once; return that, and whether a signal came meanwhile."""
    with _launched(command) as child, _signals_to(child.pid) as received:
        meter = device.meter((child.pid,))
        try:
            meter.start()
            child.go()
            exit_code = child.wait()
            reading = meter.stop()
        finally:
            meter.close()
    return Run(exit_code=exit_code, reading=_to_its_end(reading)), bool(received)


def _to_its_end(reading: Reading) -> Reading:
    """Return the reading without the complaint that its process has ended: that is how the stretch ends."""
    return replace(reading, reasons=tuple(reason for reason in reading.reasons if reason != Reason.ENGINE_PROCESS_GONE))


class _Child:
    """A launcher that waits to become the command."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        read_go, self._go = os.pipe()
        self._report, write_report = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__, str(read_go), str(write_report), *command],
                pass_fds=(read_go, write_report),
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(read_go)
            os.close(write_report)

    @property
    def pid(self) -> int:
        """Of the launcher, and of the command after it."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until it only waits for `go`; one that was killed before is found out by `wait`."""
        os.read(self._report, 1)

    def go(self) -> None:
        """Let the command begin. Raises CannotStart."""
        with suppress(BrokenPipeError):
            os.write(self._go, b".")
        reason = os.read(self._report, _LONGEST_REPORT)  # empty once the command has begun: it closed the other end
        if reason:
            raise CannotStart(f"cannot start {self._command[0]!r}: {reason.decode(errors='replace')}")

    def wait(self) -> int:
        """Wait until it has ended and return its exit code; its CPU time can still be read after that."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # only WNOHANG gives None
        return ended.si_status + (0 if ended.si_code == os.CLD_EXITED else SIGNAL_EXIT)

    def end(self) -> None:
        """Forget it once it has ended; a launcher that was never told to go ends by itself."""
        self.close()
        self._process.wait()

    def close(self) -> None:
        """Close our ends of the pipes."""
        os.close(self._go)
        os.close(self._report)


@contextmanager
def _launched(command: Sequence[str]) -> Iterator[_Child]:
    child = _Child(command)
    try:
        child.wait_until_ready()
        yield child
    finally:
        child.end()


@contextmanager
def _signals_to(pid: int) -> Iterator[list[int]]:
    """Send signals on to a process while the context is open; yield those that came."""
    received: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        received.append(number)
        if not (number in FROM_KEYBOARD and _is_in_foreground()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    # What was ignored, as under nohup, stays so.
    former = {number: signal.getsignal(number) for number in FORWARDED}
    handled = [number for number, handler in former.items() if handler is not signal.SIG_IGN]
    try:
        for number in handled:
            signal.signal(number, forward)
        yield received
    finally:
        for number in handled:
            signal.signal(number, former[number])


def _is_in_foreground() -> bool:
    """Return whether the terminal's keys reach our process group, and with it the command."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _mean(figures: Iterator[float | None]) -> Estimate | None:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return None
    spread = mean_estimate(known)
    return replace(spread, low=None if spread.low is None else max(0.0, spread.low))  # no run takes less than nothing
