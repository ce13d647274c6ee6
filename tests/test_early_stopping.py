"""The measured table of how much of a window is used, which other benchmarks replay."""

from __future__ import annotations

import pytest

from benchmarks.early_stopping import CUT_SHARES, cut_share


@pytest.mark.parametrize("violation", [-1.0, -0.02, 0.0])
def test_inside_the_limit_the_whole_window_is_used(violation: float) -> None:
    """At and below the limit nothing is cut."""
    assert cut_share(violation) == 1.0


def test_it_goes_through_what_was_measured() -> None:
    """At the measured distances the share is the measured one, and beyond the last it stays."""
    assert [share for _, share in CUT_SHARES] == [cut_share(distance) for distance, _ in CUT_SHARES]
    assert CUT_SHARES[-1][1] == cut_share(100.0)


def test_the_further_from_the_limit_the_less_is_used() -> None:
    """Between the measured distances the share falls, and never below the first look."""
    shares = [cut_share(step / 100) for step in range(200)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] >= 0.125
