"""The search of the highest rate that keeps its limits, on a truth that is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tuner.errors import InvalidRequest
from tuner.request import Limit
from tuner.sequential import SLICES, Count
from tuner.sustained_rate import (
    ALPHA,
    MeasureWindow,
    RateRule,
    RateState,
    RateTried,
    RateWindow,
    SustainedRate,
    find_sustained_rate,
)

TTFT = Limit(metric="ttft_p99_ms", bound_ms=100.0)
TPOT = Limit(metric="tpot_p99_ms", bound_ms=10.0)
#: How fast latencies rise with the rate: standard deviations of their logarithm per e-fold.
STEEPNESS = 4.0
P99_SIGMAS = 2.326348


def share_over(rate_per_s: float, true_per_s: float) -> float:
    """Return the share over a p99's bound, exactly 1 % at the true rate."""
    return 0.5 * math.erfc((P99_SIGMAS + STEEPNESS * math.log(true_per_s / rate_per_s)) / math.sqrt(2))


def noisy_truth(
    draw: np.random.Generator, true_per_s: dict[str, float], *, num: int = 500, spread: float = 0.0, cluster: int = 1
) -> MeasureWindow:
    """Return windows of `num` requests; runs differ by `spread`, and requests are late in groups of `cluster`."""

    def measure(rate_per_s: float, number: int) -> RateWindow:
        slices = {}
        for metric, true in true_per_s.items():
            over = share_over(rate_per_s * math.exp(draw.normal(0, spread)), true)
            groups = num // SLICES // cluster
            late = draw.binomial(groups, over, SLICES)
            slices[metric] = tuple(Count(groups * cluster, cluster * int(one)) for one in late)
        return RateWindow(slices=slices)

    return measure


def searched(seed: int, *, spread: float = 0.0, cluster: int = 1) -> tuple[SustainedRate, float]:
    """Search a truth of a seed, from a first rate at random; return what was found and what is true."""
    draw = np.random.default_rng(seed)
    ttft_per_s = draw.uniform(5, 50)
    true_per_s = {"ttft_p99_ms": ttft_per_s, "tpot_p99_ms": ttft_per_s * draw.uniform(1, 2)}
    measure = noisy_truth(draw, true_per_s, spread=spread, cluster=cluster)
    return find_sustained_rate(measure, (TTFT, TPOT), RateRule(first_per_s=draw.uniform(1, 60))), ttft_per_s


def is_right(found: SustainedRate, true_per_s: float) -> bool:
    """Tell whether the truth lies between the ends."""
    return (found.holds_per_s or 0.0) <= true_per_s <= (found.missed_per_s or math.inf)


def all_over(num: int, share: float) -> MeasureWindow:
    """Return windows of which a fixed share of each slice is over every limit."""
    slices = tuple(Count(num // SLICES, round(share * num / SLICES)) for _ in range(SLICES))
    return lambda rate_per_s, number: RateWindow(slices={TTFT.metric: slices})


@pytest.mark.parametrize(("spread", "cluster"), [(0.0, 1), (0.03, 3)])
def test_the_interval_covers_the_truth(spread: float, cluster: int) -> None:
    """Of 200 searches no more than ALPHA err, also where runs differ and requests are late together."""
    answers = [searched(seed, spread=spread, cluster=cluster) for seed in range(200)]
    assert sum(is_right(found, true) for found, true in answers) >= (1 - ALPHA) * len(answers)
    assert all(found.holds_per_s and found.missed_per_s for found, _ in answers)


def test_it_is_narrow_enough_to_be_of_use() -> None:
    """With 500 requests a window, half of the searches end within a factor of 1.3."""
    ratios = sorted(
        found.missed_per_s / found.holds_per_s
        for found, _ in (searched(seed) for seed in range(40))
        if found.missed_per_s and found.holds_per_s
    )
    assert ratios[len(ratios) // 2] < 1.3


def test_one_lucky_window_shows_nothing() -> None:
    """A rate that one window would have passed has another, and all that is known of it is told after each."""
    heard: list[RateTried] = []
    found = find_sustained_rate(
        all_over(3200, 0.0), (TTFT,), RateRule(first_per_s=4.0, highest_per_s=4.0), on_window=heard.append
    )
    assert [(tried.num_windows, tried.state) for tried in heard] == [
        (1, RateState.UNDECIDED),
        (2, RateState.HOLDS),
    ]
    assert (found.holds_per_s, found.missed_per_s, found.ended_because) == (4.0, None, "highest_rate")


def test_no_rate_holds_where_every_request_is_late() -> None:
    """The search ends at the lowest rate with no rate that holds."""
    found = find_sustained_rate(all_over(3200, 1.0), (TTFT,), RateRule(first_per_s=4.0, lowest_per_s=1.0))
    assert (found.holds_per_s, found.missed_per_s, found.ended_because) == (None, 1.0, "lowest_rate")
    assert {tried.because for tried in found.tried} == {"ttft_p99_ms"}


def test_a_growing_queue_is_no_rate_that_holds() -> None:
    """A rate at which the queue grows in every window is missed though no request was late so far."""
    slices = tuple(Count(100, 0) for _ in range(SLICES))

    def measure(rate_per_s: float, number: int) -> RateWindow:
        return RateWindow(slices={TTFT.metric: slices}, is_overloaded=rate_per_s > 10)

    found = find_sustained_rate(measure, (TTFT,), RateRule(first_per_s=4.0))
    assert found.holds_per_s is not None
    assert found.missed_per_s is not None
    assert found.holds_per_s <= 10 < found.missed_per_s <= 1.05 * found.holds_per_s
    assert "overloaded" in {tried.because for tried in found.tried}


def test_windows_of_no_use_say_nothing() -> None:
    """A rate whose windows could not be used is undecided, with the reason; the search goes on to others."""
    rule = RateRule(first_per_s=4.0, max_rates=2, max_windows=3)
    found = find_sustained_rate(lambda rate, number: RateWindow(slices={}, unusable="no_steady_state"), (TTFT,), rule)
    assert [(tried.state, tried.num_windows, tried.because) for tried in found.tried] == [
        (RateState.UNDECIDED, 3, "no_steady_state"),
        (RateState.UNDECIDED, 3, "no_steady_state"),
    ]
    assert found.ended_because == "max_rates"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: RateRule(first_per_s=0.0), "first_per_s"),
        (lambda: RateRule(first_per_s=1.0, tolerance=0.0), "tolerance"),
        (lambda: RateRule(first_per_s=1.0, max_rates=1), "max_rates"),
        (lambda: RateRule(first_per_s=1.0, max_windows=1), "max_windows"),
        (lambda: find_sustained_rate(all_over(320, 0.0), (), RateRule(first_per_s=1.0)), "sla"),
        (
            lambda: find_sustained_rate(
                all_over(320, 0.0), (Limit(metric="itl_p99_ms", bound_ms=9.0),), RateRule(first_per_s=1.0)
            ),
            "sla.itl_p99_ms",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(wrong: Callable[[], object], field: str) -> None:
    """A rule or a limit that makes no search is refused by name."""
    with pytest.raises(InvalidRequest) as refused:
        wrong()
    assert refused.value.field == field
