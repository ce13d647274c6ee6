"""What several test files need: a clock that moves on command, and a sampler that keeps what it was told."""

from __future__ import annotations

import pytest

from tests.probes.fake_clock import FakeClock
from tests.tuner.search_stand import Stand
from tuner import samplers


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Stands in for the sampler of jobs that ask for `random`."""
    made = Stand()
    monkeypatch.setattr("tuner.samplers._SAMPLERS", {**samplers._SAMPLERS, "random": made})
    return made
