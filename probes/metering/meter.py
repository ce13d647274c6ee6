"""Meters: the energy of a stretch of time, from a counter or from power readings.

What cannot be had is None with a reason, never 0 J. Knows neither drivers nor files; a device hands it the reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from probes.clock import Clock, Mark
from probes.cpu.processes import HostWatch
from probes.device import Reading
from probes.metering.counting import Counter, count_energy
from probes.metering.findings import Stretch, Subject, not_started
from probes.metering.sampler import Sampler

#: Often enough for a drawing and to notice a counter that went backwards in between.
COUNTER_INTERVAL_S = 0.5


class CounterMeter:
    """Takes the difference of an energy counter whose steps are too short to matter."""

    def __init__(
        self,
        open_counter: Callable[[], Counter],
        subject: Subject,
        *,
        clock: Clock,
        watch: HostWatch | None = None,
    ) -> None:
        self._open_counter = open_counter
        self._subject = subject
        self._clock = clock
        self._watch = watch
        self._counting: _Counting | None = None

    def start(self) -> float:
        """Begin a stretch at the counter's first reading."""
        self.close()
        begin = Mark.now(self._clock)
        if self._watch:
            self._watch.start()
        counter = self._open_counter()
        counts = Sampler(counter.read, interval_s=COUNTER_INTERVAL_S, clock=self._clock)
        start_s = counts.start().time_s
        self._counting = _Counting(counter=counter, counts=counts, stretch=Stretch(begin=begin, start_s=start_s))
        return start_s

    def stop(self) -> Reading:
        """End the stretch at the counter's last reading."""
        counting, self._counting = self._counting, None
        if counting is None:
            return not_started(self._subject, self._clock)
        run = counting.counts.stop()
        findings = count_energy(run, counting.counter, self._subject.source)
        if self._watch:
            reasons, notes = self._watch.stop()
            findings = replace(findings, reasons=(*findings.reasons, *reasons), notes=(*findings.notes, *notes))
        return counting.stretch.reading(self._subject, findings, end_s=run.closing.time_s, clock=self._clock)

    def close(self) -> None:
        """Stop sampling and forget the stretch. Idempotent."""
        counting, self._counting = self._counting, None
        if counting:
            counting.counts.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counting:
    """A stretch in progress."""

    counter: Counter
    counts: Sampler[int]
    stretch: Stretch
