"""Axes: where they begin, when they are logarithmic, what they are called."""

from __future__ import annotations

import math

import pytest

from api.plot.axes import Span, latency_title, metric_words, origin_of, span_of, tok_per_j_title


def test_an_axis_is_logarithmic_from_a_factor_of_ten() -> None:
    """Values that span ten or more get a logarithmic axis around all of them, others a linear one."""
    assert span_of([2.0, 19.0]).type == "linear"
    wide = span_of([2.0, 20.0])
    assert (wide.type, wide.low < 2.0, wide.high > 20.0) == ("log", True, True)


def test_a_linear_axis_begins_at_zero_where_that_is_cheap() -> None:
    """Zero is shown as long as it costs half of the axis at most; else the axis begins a little below the data."""
    assert span_of([5.0, 10.0]) == Span("linear", 0.0, 10.5)
    near = span_of([8.0, 10.0])
    assert near.type == "linear"
    assert [near.low, near.high] == pytest.approx([7.8, 10.2])
    assert span_of([4.0]) == Span("linear", 0.0, 4.2)


def test_what_cannot_be_drawn_decides_nothing() -> None:
    """None, zero, negative and infinite values move no end, and without any value there is still an axis."""
    assert span_of([None, 0.0, -3.0, math.nan, math.inf, 5.0, 10.0]) == span_of([5.0, 10.0])
    assert span_of([]) == Span("linear", 0.0, 1.0)


def test_a_limit_far_away_presses_nothing_together() -> None:
    """A limit within a factor of ten of the data is on the axis; one beyond leaves the axis to the data."""
    assert span_of([5.0, 10.0], limit=12.0) == span_of([5.0, 10.0, 12.0])
    assert span_of([5.0, 10.0], limit=50_000.0) == span_of([5.0, 10.0], limit=None) == span_of([5.0, 10.0])
    assert span_of([], limit=30.0) == span_of([30.0])


def test_a_logarithmic_axis_stays_one() -> None:
    """An axis that was logarithmic does not change back while a job runs."""
    assert span_of([5.0, 10.0], was_log=True).type == "log"


def test_titles_have_units_and_say_what_was_not_measured() -> None:
    """Titles name metric and unit; energy that was estimated and everything simulated are called so."""
    assert metric_words("ttft_p90_ms") == "TTFT p90"
    assert latency_title("tpot_p99_ms", "measured") == "TPOT p99 (ms): less is better"
    assert latency_title("tpot_p99_ms", "simulated") == "TPOT p99 (ms), simulated: less is better"
    assert latency_title("tpot_p99_ms", "estimate") == "TPOT p99 (ms): less is better"
    assert tok_per_j_title("measured") == "tokens per joule (tok/J)"
    assert tok_per_j_title("mixed") == "tokens per joule (tok/J), not all measured"
    assert tok_per_j_title("estimate") == "tokens per joule (tok/J), estimate"
    assert origin_of(is_simulated=True, is_estimate=True) == "simulated"
    assert origin_of(is_simulated=False, is_estimate=True) == "estimate"
