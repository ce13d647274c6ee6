"""When requests arrive: at random, in bursts, at a rate that rises or falls, or as a trace has it.

Random arrivals are a renewal process whose gaps have a gamma distribution (shape `burstiness`; 1 is a Poisson
process). A ramp changes how fast that process runs: gaps of mean 1 are laid on the integral of the rate, the usual way
to draw arrivals of a rate that changes (Cinlar, Introduction to Stochastic Processes, 1975, theorem 4.7.4). Knows
nothing of requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import count

from probes.simulated.clock import TICKS_PER_S
from tuner.request import WorkloadSpec
from tuner.traces import Trace


def random_times_s(spec: WorkloadSpec) -> Iterator[float]:
    """Yield when requests of a workload with a rate arrive, in seconds from the load's start, without end.

    The same for the same seed, whatever the lengths are.
    """
    assert spec.rate_per_s is not None  # the spec saw to it
    draw = random.Random(f"{spec.seed}/arrivals")
    if spec.burstiness == 1.0 and spec.ramp_to_per_s is None:
        offset_s = 0.0
        while True:
            offset_s += draw.expovariate(spec.rate_per_s)
            yield _exact(offset_s)
    reached = 0.0
    while True:
        reached += draw.gammavariate(spec.burstiness, 1 / spec.burstiness)
        yield _exact(_time_s(spec, reached))


def replayed_times_s(trace: Trace, *, time_scale: float, repeat: bool) -> Iterator[float]:
    """Yield when a trace's requests arrive, in seconds from the load's start; a mean gap before it begins anew."""
    for turn in count() if repeat else range(1):
        begun_s = turn * trace.period_s
        for offset_s in trace.offsets_s:
            yield _exact(time_scale * (begun_s + offset_s))


def _time_s(spec: WorkloadSpec, reached: float) -> float:
    """Return when so many requests have come on average: the inverse of the rate's integral."""
    first = spec.rate_per_s
    assert first is not None
    if spec.ramp_to_per_s is None or spec.ramp_s is None:
        return reached / first
    last, ramp_s = spec.ramp_to_per_s, spec.ramp_s
    in_ramp = (first + last) / 2 * ramp_s
    if reached >= in_ramp:
        return ramp_s + (reached - in_ramp) / last
    slope = (last - first) / ramp_s
    # The root of first * t + slope / 2 * t**2 = reached, in the form that holds for a slope of 0.
    return 2 * reached / (first + math.sqrt(first * first + 2 * slope * reached))


def _exact(offset_s: float) -> float:
    """Return the time rounded to a step of simulated clocks, so that it is as long after any start."""
    return round(offset_s * TICKS_PER_S) / TICKS_PER_S
