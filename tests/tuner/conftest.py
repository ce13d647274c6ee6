"""What several test files need: a clock that moves on command, and Optuna with a sampler that answers at once."""

from __future__ import annotations

import pytest

from tests.probes.fake_clock import FakeClock
from tests.tuner.search_stand import Stand


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Optuna with a sampler that answers at once."""
    made = Stand()
    monkeypatch.setattr("tuner.search.GridSampler", made)
    return made
