"""When requests come: as often, as evenly and as much faster with time as was asked for."""

from __future__ import annotations

import statistics
from array import array
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.arrivals import random_times_s, replayed_times_s
from tuner.request import WorkloadSpec
from tuner.traces import Trace


def gaps_s(number: int = 20_000, **changes: float) -> list[float]:
    spec = WorkloadSpec(scenario="server", rate_per_s=10.0, **changes)  # type: ignore[arg-type] # numbers only
    return [later - earlier for earlier, later in pairwise(islice(random_times_s(spec), number))]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_spread_asked_for(burstiness: float) -> None:
    """Whatever the burstiness, the mean gap is the rate's inverse, and its coefficient of variation 1 / sqrt(shape)."""
    gaps = gaps_s(burstiness=burstiness)
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(0.1, rel=0.05)
    assert statistics.stdev(gaps) / mean == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_ramp_brings_as_many_as_its_rate_says() -> None:
    """From 10 to 50 a second over 20 s come 600 requests, and 50 a second after it."""
    spec = WorkloadSpec(scenario="server", rate_per_s=10.0, ramp_to_per_s=50.0, ramp_s=20.0, burstiness=1_000.0)
    times_s = list(islice(random_times_s(spec), 1_600))
    assert sum(time_s < 20.0 for time_s in times_s) == pytest.approx(600, abs=3)
    assert sum(20.0 <= time_s < 30.0 for time_s in times_s) == pytest.approx(500, abs=3)


#: So even that the number of arrivals up to a time is the rate's integral, but for one.
EVEN = 1e3


@settings(max_examples=40, deadline=None)
@given(first=st.floats(1, 50), last=st.floats(1, 50), ramp_s=st.floats(1, 60), seed=st.integers(0, 100))
def test_a_ramps_arrivals_are_its_rates_integral(first: float, last: float, ramp_s: float, seed: int) -> None:
    """Up, down or flat: within the ramp and after it so many requests came as the rate brings up to that time."""
    spec = WorkloadSpec(
        scenario="server", rate_per_s=first, ramp_to_per_s=last, ramp_s=ramp_s, burstiness=EVEN, seed=seed
    )
    times_s = list(islice(random_times_s(spec), 400))
    assert times_s == sorted(times_s)
    for number, time_s in enumerate(times_s, start=1):
        within_s = min(time_s, ramp_s)
        came = first * within_s + (last - first) / ramp_s * within_s**2 / 2 + last * max(0.0, time_s - ramp_s)
        assert number == pytest.approx(came, abs=1 + 6 * (number / EVEN) ** 0.5)


def test_a_ramp_of_a_poisson_process_stays_one() -> None:
    """After the ramp, gaps of burstiness 1 have the last rate's mean, and vary as much as they are long."""
    spec = WorkloadSpec(scenario="server", rate_per_s=50.0, ramp_to_per_s=10.0, ramp_s=5.0)
    times_s = [time_s for time_s in islice(random_times_s(spec), 20_000) if time_s > 5.0]
    gaps = [later - earlier for earlier, later in pairwise(times_s)]
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("changes", [{}, {"burstiness": 0.5}, {"ramp_to_per_s": 20.0, "ramp_s": 3.0}])
def test_the_seed_decides_the_arrivals(changes: dict[str, float]) -> None:
    """The same seed gives the same times, another one others, whatever the process is."""
    one, again, other = (gaps_s(50, seed=seed, **changes) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def trace() -> Trace:
    return Trace(
        form="azure",
        offsets_s=array("d", (0.0, 1.0, 4.0)),
        prompt_tokens=array("l", (1, 1, 1)),
        output_tokens=array("l", (1, 1, 1)),
        sha256="0" * 64,
        longest_tokens=2,
    )


def test_a_scaled_trace_begins_anew_after_a_scaled_mean_gap() -> None:
    """A scale of a half halves every time, the mean gap before the second turn too."""
    times_s = islice(replayed_times_s(trace(), time_scale=0.5, repeat=True), 5)
    assert list(times_s) == [0.0, 0.5, 2.0, 3.0, 3.5]


def test_a_trace_that_does_not_repeat_ends() -> None:
    """Without repeating there is one time for each row."""
    assert list(replayed_times_s(trace(), time_scale=2.0, repeat=False)) == [0.0, 2.0, 8.0]
