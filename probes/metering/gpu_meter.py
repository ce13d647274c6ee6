"""The energy of a GPU over a stretch of time, with what the card was like meanwhile.

Counted from one step of the energy counter to another and held against power readings, else integrated from those. One
thread looks at the card. What cannot be had is None with a reason, never 0 J. Knows no driver: the card is what the
watch and the counter say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from probes.clock import Clock, Mark
from probes.device import Method, PowerSource, Reading
from probes.errors import NotSupported
from probes.metering.counting import Counter, count_energy
from probes.metering.crosscheck import crosschecked
from probes.metering.findings import Findings, Stretch, Subject, not_started
from probes.metering.gpu_watch import GpuWatch, Look
from probes.metering.integral import integrate_run
from probes.metering.sampler import EDGE_ATTEMPTS, Failure, Rounds, Run, Sample, Sampler
from probes.metering.ticks import EdgedCounter
from probes.validity import Note, Reason

#: Data-centre sensors update every 20 to 100 ms (arXiv 2312.02741); faster polling mostly repeats values.
LOOK_INTERVAL_S = 0.1
#: Every so many looks the counter is read too: often enough for a drawing and to notice that it went backwards.
LOOKS_PER_COUNT = 5
#: Readings that are means of the last second still hold what was before the stretch: they rise within 0.92 s, and it is
#: good practice to drop the first 1.2 s (arXiv 2312.02741).
AVERAGE_RISE_S = 1.2


class GpuMeter:
    """Measures one card."""

    def __init__(
        self,
        open_watch: Callable[[], GpuWatch],
        subject: Subject,
        *,
        clock: Clock,
        counter: Counter | None = None,
        check: PowerSource | None = None,
        rounds: Rounds | None = None,
    ) -> None:
        """Measure `subject`, with a watch of its own for each stretch.

        With a counter energy is counted; `check` is the power in the looks where that can judge the counter. Without
        one the power in the looks is integrated. Cards with the same `rounds` are looked at in turn by one thread.
        """
        self._open_watch = open_watch
        self._subject = subject
        self._clock = clock
        self._counter = counter
        self._check = check
        self._rounds = rounds
        self._looking: _Looking | None = None
        self._stretch: Stretch | None = None

    def start(self) -> float:
        """Begin a stretch at the counter's next step.

        Without a counter it begins at the first look, or, where readings are trailing averages, AVERAGE_RISE_S later:
        then the start lies ahead, and nothing is waited for.
        """
        self.close()
        begin = Mark.now(self._clock)
        self._looking = _Looking(self._open_watch(), self._edged_counter(), self._clock, self._rounds)
        start_s = self._looking.start()
        if self._subject.source.method is Method.INTEGRATED_AVERAGE:
            start_s += AVERAGE_RISE_S
        self._stretch = Stretch(begin=begin, start_s=start_s)
        return start_s

    def stop(self) -> Reading:
        """End the stretch at the counter's next step, else at the last look."""
        looking, stretch = self._looking, self._stretch
        if looking is None or stretch is None:
            return not_started(self._subject, self._clock)
        seen = looking.stop()
        self.close()
        end_s = max(seen.end_s, stretch.start_s)
        found = self._found(seen, stretch.start_s, end_s)
        conditions, (reasons, notes) = looking.watch.judged(seen.looks, stretch.start_s, end_s)
        found = replace(
            found, reasons=(*found.reasons, *reasons), notes=(*found.notes, *notes), conditions=(conditions,)
        )
        return stretch.reading(self._subject, found, end_s=end_s, clock=self._clock)

    def close(self) -> None:
        """Stop looking and forget the stretch. Idempotent."""
        if self._looking:
            self._looking.cancel()
        self._looking = self._stretch = None

    def _edged_counter(self) -> EdgedCounter | None:
        if self._counter is None:
            return None
        return EdgedCounter(self._counter.read, tick_s=self._subject.source.resolution_s or 0.0, clock=self._clock)

    def _found(self, seen: _Seen, start_s: float, end_s: float) -> Findings:
        source = self._subject.source
        if self._counter is None or seen.counts is None:
            found = integrate_run(power_run(seen), source, start_s, end_s)
            return replace(found, trace=tuple(sample for sample in found.trace if sample.time_s >= start_s))
        counted = count_energy(seen.counts, self._counter, source, slack_s=seen.slack_s)
        if seen.slack_s is None and counted.energy_j is not None:
            counted = replace(counted, notes=(*counted.notes, Note.UNALIGNED_EDGES))
        if self._check is None:
            return counted
        return crosschecked(counted, integrate_run(power_run(seen), self._check, start_s, end_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """All that was seen over a stretch."""

    #: In order of time; the first and the last lie at or beyond the stretch's edges.
    looks: Sequence[Look]
    #: The look that stands for the beginning.
    opening: Look
    end_s: float
    #: Readings of the counter, and the slack of their edges; None without a counter, or where edges are not aligned.
    counts: Run[int] | None
    slack_s: float | None
    has_died: bool


class _Looking:
    """A stretch in progress: a look, an edge, looks from a thread, an edge, a look; never two at a time."""

    def __init__(self, watch: GpuWatch, counter: EdgedCounter | None, clock: Clock, rounds: Rounds | None) -> None:
        self.watch = watch
        self._counter = counter
        self._sampler = Sampler(self._look, interval_s=LOOK_INTERVAL_S, clock=clock, rounds=rounds)
        self._first: list[Look] = []
        self._num_looks = 0

    def start(self) -> float:
        """Begin, and return the exact start."""
        self._first = self._edge_looks(self.watch.begin)
        start_s = self._counter.open() if self._counter else self._first[-1].status.time_s
        self._sampler.start()
        return start_s

    def stop(self) -> _Seen:
        """End; a hanging driver is not asked again."""
        run = self._sampler.stop()
        counts, slack_s = self._counter.close(has_died=run.has_died) if self._counter else (None, None)
        last = [] if run.has_died else self._edge_looks(self.watch.end)
        looks = [*self._first, *(sample.value for sample in run.samples), *last]
        return _Seen(
            looks=looks,
            opening=self._first[-1],
            end_s=counts.closing.time_s if counts else looks[-1].status.time_s,
            counts=counts,
            slack_s=slack_s,
            has_died=run.has_died,
        )

    def cancel(self) -> None:
        """End without a result. Idempotent."""
        self._sampler.cancel()

    def _look(self) -> Look:
        if self._counter and self._num_looks % LOOKS_PER_COUNT == 0:
            self._counter.glance()
        self._num_looks += 1
        return self.watch.look()

    def _edge_looks(self, look: Callable[[], Look]) -> list[Look]:
        """Look until there is power, EDGE_ATTEMPTS times at most: a bad reading there would cost the whole stretch."""
        looks = [look()]
        while looks[-1].power_failure and len(looks) < EDGE_ATTEMPTS:
            looks.append(self.watch.look())
        return looks


def look_rounds(clock: Clock) -> Rounds:
    """Return rounds in which several cards are looked at by one thread, as often as each by its own."""
    return Rounds(interval_s=LOOK_INTERVAL_S, clock=clock)


def power_run(seen: _Seen) -> Run[float]:
    """Return the power readings of a stretch as a run of their own."""
    end = seen.looks[-1]
    died = Failure(time_s=end.status.time_s, kind=Reason.SAMPLER_DIED, message="not asked")
    return Run(
        opening=_power_of(seen.opening),
        closing=died if seen.has_died else _power_of(end),
        samples=tuple(power for power in map(_power_of, seen.looks) if isinstance(power, Sample)),
        failures=tuple(look.power_failure for look in seen.looks if look.power_failure),
        has_died=seen.has_died,
    )


def _power_of(look: Look) -> Sample[float] | Failure:
    time_s = look.status.time_s
    if look.status.power_w is not None:
        return Sample(time_s=time_s, value=look.status.power_w)
    return look.power_failure or Failure(time_s=time_s, kind=NotSupported.kind, message="the card offers no power")
