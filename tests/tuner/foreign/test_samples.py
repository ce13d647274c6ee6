"""Latencies out of samples."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tuner.foreign.samples import latency_of

times = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=60)


def test_no_sample_is_no_latency() -> None:
    """Without a sample there is None, not 0."""
    assert latency_of([]) is None


@given(samples=times)
def test_percentiles_are_numpys(samples: list[float]) -> None:
    """Mean and percentiles are those that NumPy, which the tools use, gives by default."""
    found = latency_of(samples)
    assert found is not None
    told = np.array([found.mean, found.p50, found.p90, found.p95, found.p99], dtype=float)
    np.testing.assert_allclose(told, [np.mean(samples), *np.percentile(samples, [50, 90, 95, 99])], rtol=1e-9)
