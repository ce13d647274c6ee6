"""Energy as the difference of a counter, with everything that can make the difference a lie.

Pure but for the counter that is read elsewhere. Counts stay whole numbers of any size until the division at the
end: a double would lose microjoules, and 32 bits are full after 4.3 MJ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from probes.device import PowerSample, PowerSource
from probes.errors import CounterReset
from probes.metering.findings import Findings, sampling_reasons, unique
from probes.metering.sampler import LONGEST_GAP_S, Run, Sample
from probes.validity import Note, Reason

#: A window must span this many steps of its counter, else quantisation alone is a tenth of the figure or more.
SHORTEST_WINDOW_TICKS = 10
#: A window that is not aligned with the counter's steps can be wrong by one step at either edge.
UNALIGNED_TICKS = 2
#: The counter of a powered device that stands still for this long is broken, not idle.
STUCK_AFTER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """An energy counter, opened for one stretch."""

    #: Returns whole counts; raises ProbeError.
    read: Callable[[], int]
    counts_per_joule: int
    #: Longest silence across which a difference is certain; None when the counter never overflows.
    max_gap_s: float | None = None


def count_energy(run: Run[int], counter: Counter, source: PowerSource, *, slack_s: float | None = None) -> Findings:
    """Return the counter's difference over the run in joules, or None with the reasons against it.

    `slack_s` is how much earlier the steps at which the run begins and ends may have been, both edges together; None
    for a run that is not aligned with steps. Its energy is uncertain by that time at mean power, and by one count.
    """
    reasons = unique(counting_reasons(run, counter, source.resolution_s or 0.0))
    if reasons:
        return Findings(energy_j=None, method=source.method, detail=source.detail, reasons=reasons)
    energy_j = (run.samples[-1].value - run.samples[0].value) / counter.counts_per_joule
    mean_power_w = energy_j / _duration_s(run)
    unaligned_s = UNALIGNED_TICKS * (source.resolution_s or 0.0)
    uncertain_s = unaligned_s if slack_s is None else slack_s
    return Findings(
        energy_j=energy_j,
        method=source.method,
        detail=source.detail,
        uncertainty_j=uncertain_s * mean_power_w + 1 / counter.counts_per_joule,
        notes=(Note.SAMPLING_GAP,) if run.longest_gap_s > LONGEST_GAP_S else (),
        trace=counted_power(run, counter.counts_per_joule),
    )


def counting_reasons(run: Run[int], counter: Counter, tick_s: float) -> tuple[str, ...]:
    """Return why the run's difference is not its energy; empty when it is."""
    broken = (*sampling_reasons(run), *((Reason.COUNTER_RESET,) if is_reset(run) else ()))
    if broken:
        return broken
    if is_too_short(_duration_s(run), tick_s):
        return (Reason.WINDOW_TOO_SHORT,)
    if run.samples[0].value == run.samples[-1].value:
        return (Reason.COUNTER_STUCK if _duration_s(run) >= STUCK_AFTER_S else Reason.WINDOW_TOO_SHORT,)
    has_gap = counter.max_gap_s is not None and run.longest_gap_s > counter.max_gap_s
    return (Reason.SAMPLING_GAP,) if has_gap else ()


def is_too_short(duration_s: float, tick_s: float) -> bool:
    """Return whether a window spans too few steps of a figure that moves once in `tick_s`."""
    return duration_s <= SHORTEST_WINDOW_TICKS * tick_s


def is_reset(run: Run[int]) -> bool:
    """Return whether the counter ever went backwards, be it only between two inner readings."""
    went_back = any(later.value < earlier.value for earlier, later in pairwise(run.samples))
    return went_back or any(failure.kind == CounterReset.kind for failure in run.failures)


def counted_power(run: Run[int], counts_per_joule: int) -> tuple[PowerSample, ...]:
    """Return mean power between steps of the counter.

    A reading equal to the one before is stale, not zero power, so only steps are used.
    """
    steps: list[Sample[int]] = list(run.samples[:1])
    steps += [later for earlier, later in pairwise(run.samples) if later.value > earlier.value]
    return tuple(
        PowerSample(
            time_s=(earlier.time_s + later.time_s) / 2,
            power_w=(later.value - earlier.value) / counts_per_joule / (later.time_s - earlier.time_s),
        )
        for earlier, later in pairwise(steps)
        if later.time_s > earlier.time_s
    )


def _duration_s(run: Run[int]) -> float:
    return run.closing.time_s - run.opening.time_s
