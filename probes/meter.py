"""Meters: the energy of a stretch of time, from a counter or from power readings.

What cannot be had is None with a reason, never 0 J. Knows neither drivers nor files; a device hands it the reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from probes.clock import Clock, Mark
from probes.counting import Counter, count_energy
from probes.crosscheck import crosschecked
from probes.device import PowerSource, Reading
from probes.findings import Findings, Stretch, Subject, not_started
from probes.integral import integrate_run
from probes.processes import HostWatch
from probes.sampler import Sampler

#: Data-centre sensors update every 20 to 100 ms (arXiv 2312.02741); faster polling only repeats values.
POWER_INTERVAL_S = 0.1
#: Often enough for a drawing and to notice a counter that went backwards in between.
COUNTER_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReader:
    """A second opinion on a counter, or the only source there is."""

    source: PowerSource
    #: Returns watts; raises ProbeError.
    read_w: Callable[[], float]


class CounterMeter:
    """Takes the difference of an energy counter, checked against power readings where there are any."""

    def __init__(
        self,
        open_counter: Callable[[], Counter],
        subject: Subject,
        *,
        clock: Clock,
        check: PowerReader | None = None,
        watch: HostWatch | None = None,
    ) -> None:
        self._open_counter = open_counter
        self._subject = subject
        self._clock = clock
        self._check = check
        self._watch = watch
        self._counting: _Counting | None = None

    def start(self) -> float:
        """Begin a stretch at the counter's first reading; power readings begin a little earlier."""
        self.close()
        begin = Mark.now(self._clock)
        if self._watch:
            self._watch.start()
        power = _power_sampler(self._check, self._clock) if self._check else None
        counter = self._open_counter()
        counts = Sampler(counter.read, interval_s=COUNTER_INTERVAL_S, clock=self._clock)
        start_s = counts.start().time_s
        stretch = Stretch(begin=begin, start_s=start_s)
        self._counting = _Counting(counter=counter, counts=counts, power=power, stretch=stretch)
        return start_s

    def stop(self) -> Reading:
        """End the stretch at the counter's last reading; power readings end a little later."""
        counting, self._counting = self._counting, None
        if counting is None:
            return not_started(self._subject, self._clock)
        findings, end_s = self._count(counting)
        if self._watch:
            reasons, notes = self._watch.stop()
            findings = replace(findings, reasons=(*findings.reasons, *reasons), notes=(*findings.notes, *notes))
        return counting.stretch.reading(self._subject, findings, end_s=end_s, clock=self._clock)

    def close(self) -> None:
        """Stop sampling and forget the stretch. Idempotent."""
        counting, self._counting = self._counting, None
        if counting:
            counting.counts.cancel()
        if counting and counting.power:
            counting.power.cancel()

    def _count(self, counting: _Counting) -> tuple[Findings, float]:
        run = counting.counts.stop()
        end_s = run.closing.time_s
        counted = count_energy(run, counting.counter, self._subject.source)
        if counting.power is None or self._check is None:
            return counted, end_s
        power = counting.power.stop()
        start_s = counting.stretch.start_s
        return crosschecked(counted, integrate_run(power, self._check.source, start_s, end_s)), end_s


class PowerMeter:
    """Integrates power readings, for devices that count no energy."""

    def __init__(self, power: PowerReader, subject: Subject, *, clock: Clock) -> None:
        self._reader = power
        self._subject = subject
        self._clock = clock
        self._power: Sampler[float] | None = None
        self._stretch: Stretch | None = None

    def start(self) -> float:
        """Begin a stretch at the first power reading."""
        self.close()
        begin = Mark.now(self._clock)
        self._power = Sampler(self._reader.read_w, interval_s=POWER_INTERVAL_S, clock=self._clock)
        self._stretch = Stretch(begin=begin, start_s=self._power.start().time_s)
        return self._stretch.start_s

    def stop(self) -> Reading:
        """End the stretch at the last power reading."""
        if self._power is None or self._stretch is None:
            return not_started(self._subject, self._clock)
        run, stretch = self._power.stop(), self._stretch
        self.close()
        end_s = run.closing.time_s
        findings = integrate_run(run, self._subject.source, stretch.start_s, end_s)
        return stretch.reading(self._subject, findings, end_s=end_s, clock=self._clock)

    def close(self) -> None:
        """Stop sampling and forget the stretch. Idempotent."""
        if self._power:
            self._power.cancel()
        self._power = self._stretch = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counting:
    """A stretch in progress."""

    counter: Counter
    counts: Sampler[int]
    power: Sampler[float] | None
    stretch: Stretch


def _power_sampler(reader: PowerReader, clock: Clock) -> Sampler[float]:
    sampler = Sampler(reader.read_w, interval_s=POWER_INTERVAL_S, clock=clock)
    sampler.start()
    return sampler
