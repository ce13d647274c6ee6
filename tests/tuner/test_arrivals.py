"""When requests come: as often, as evenly and as much faster with time as was asked for."""

from __future__ import annotations

import statistics
from itertools import islice, pairwise

import pytest

from tuner.arrivals import random_times_s
from tuner.request import WorkloadSpec


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
