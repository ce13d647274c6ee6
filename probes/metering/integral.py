"""Energy from power readings: the trapezoid rule with interpolated edges.

Pure. Knows nothing of where the readings came from.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from probes.device import Method, PowerSample, PowerSource
from probes.errors import ImplausibleReading
from probes.metering.counting import is_too_short
from probes.metering.findings import Findings, sampling_reasons
from probes.metering.sampler import LONGEST_GAP_S, Run, longest_gap_s
from probes.validity import Note, Reason, with_value

#: A larger share of readings that cannot be true means that the sensor is not to be trusted ...
TOLERATED_REJECTED_SHARE = 0.01
#: ... and a larger share that could not be had, that what is left does not show the window.
TOLERATED_MISSING_SHARE = 0.10


def integrate_run(run: Run[float], source: PowerSource, start_s: float, end_s: float) -> Findings:
    """Return the integral of a run of power readings, or None with the reasons against it."""
    trace = power_trace(run)
    energy_j, against = integrate(trace, start_s, end_s)
    rejected, missing = (failed_share(run, is_implausible=which) for which in (True, False))
    if is_too_short(end_s - start_s, source.resolution_s or 0.0):
        energy_j, against = None, (Reason.WINDOW_TOO_SHORT,)
    elif energy_j is not None and missing > TOLERATED_MISSING_SHARE:
        energy_j, against = None, (Reason.SAMPLING_GAP,)
    distrusted = (Reason.IMPLAUSIBLE_READING,) if rejected > TOLERATED_REJECTED_SHARE else ()
    left_out = (with_value(Note.READINGS_REJECTED, rejected + missing),) if rejected + missing else ()
    averaged = (Note.AVERAGED_POWER,) if source.method is Method.INTEGRATED_AVERAGE else ()
    return Findings(
        energy_j=energy_j,
        method=source.method,
        detail=source.detail,
        reasons=(*sampling_reasons(run), *against, *distrusted),
        notes=(*averaged, *left_out),
        trace=trace,
    )


def integrate(samples: Sequence[PowerSample], start_s: float, end_s: float) -> tuple[float | None, tuple[Reason, ...]]:
    """Return joules from `start_s` to `end_s` (monotonic seconds, samples in order of time), or None and why.

    Power is linear between neighbours, and at an edge between the sample before it and the sample after it, so
    the samples must reach from edge to edge. A gap longer than LONGEST_GAP_S is not bridged.
    """
    if not samples or samples[0].time_s > start_s or samples[-1].time_s < end_s:
        return None, (Reason.NOT_BRACKETED,)
    if longest_gap_s(_bracketing_times_s(samples, start_s, end_s)) > LONGEST_GAP_S:
        return None, (Reason.SAMPLING_GAP,)
    inside = [sample for sample in samples if start_s < sample.time_s < end_s]
    points = [_power_at(samples, start_s), *inside, _power_at(samples, end_s)]
    areas_j = (
        (later.time_s - earlier.time_s) * (earlier.power_w + later.power_w) / 2 for earlier, later in pairwise(points)
    )
    return sum(areas_j), ()


def power_trace(run: Run[float]) -> tuple[PowerSample, ...]:
    """Return a run's good readings as power over time, in order."""
    in_order = sorted(run.samples, key=lambda sample: sample.time_s)
    return tuple(PowerSample(time_s=sample.time_s, power_w=sample.value) for sample in in_order)


def failed_share(run: Run[float], *, is_implausible: bool) -> float:
    """Return the share of readings, 0 to 1, that cannot be true, or else of those that could not be had."""
    num_failed = sum((failure.kind == ImplausibleReading.kind) is is_implausible for failure in run.failures)
    return num_failed / max(len(run.failures) + len(run.samples), 1)


def _bracketing_times_s(samples: Sequence[PowerSample], start_s: float, end_s: float) -> list[float]:
    """Times of the samples inside and of the nearest one on either side."""
    times_s = [sample.time_s for sample in samples]
    return times_s[bisect_right(times_s, start_s) - 1 : bisect_left(times_s, end_s) + 1]


def _power_at(samples: Sequence[PowerSample], time_s: float) -> PowerSample:
    after = bisect_right(samples, time_s, key=lambda sample: sample.time_s)
    left = samples[after - 1]
    if after == len(samples):
        return PowerSample(time_s=time_s, power_w=left.power_w)
    right = samples[after]
    share = (time_s - left.time_s) / (right.time_s - left.time_s)
    return PowerSample(time_s=time_s, power_w=left.power_w + share * (right.power_w - left.power_w))
