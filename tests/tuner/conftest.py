"""What most tests of device handling need: a clock that moves on command."""

from __future__ import annotations

import pytest

from tests.probes.fake_clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
