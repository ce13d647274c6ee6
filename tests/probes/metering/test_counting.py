"""Energy as the difference of a counter: laws that hold whatever the counter does."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.device import Method, PowerSource, Scope
from probes.metering.counting import Counter, count_energy, counted_power
from probes.metering.sampler import Run, Sample
from probes.validity import Reason

SOURCE = PowerSource(scope=Scope.GPU, method=Method.COUNTER, detail="counter", resolution_s=0.1)
COUNTER = Counter(read=lambda: 0, counts_per_joule=1000)

steps_mj = st.lists(st.integers(min_value=1, max_value=10**9), min_size=4, max_size=40)


def make_run(counts: list[int], *, start_s: float = 0.0, interval_s: float = 2.0) -> Run[int]:
    samples = tuple(Sample(time_s=start_s + i * interval_s, value=count) for i, count in enumerate(counts))
    return Run(opening=samples[0], closing=samples[-1], samples=samples, failures=(), has_died=False)


@given(steps_mj, st.integers(min_value=0, max_value=2**63), st.data())
def test_energy_is_additive_over_adjacent_windows(steps: list[int], base: int, data: st.DataObject) -> None:
    """The energies of two windows that meet add up to that of both together, at any height of the counter."""
    counts = list(accumulate(steps, initial=base))
    cut = data.draw(st.integers(min_value=1, max_value=len(counts) - 2))
    first, second, whole = (
        count_energy(make_run(part), COUNTER, SOURCE).energy_j for part in (counts[: cut + 1], counts[cut:], counts)
    )
    assert first is not None
    assert second is not None
    assert pytest.approx(first + second, rel=1e-12) == whole


@given(steps_mj, st.data())
def test_any_fall_of_the_counter_is_a_reset(steps: list[int], data: st.DataObject) -> None:
    """However the counter falls, there is no energy and the reason is counter_reset."""
    counts = list(accumulate(steps, initial=10**12))
    place = data.draw(st.integers(min_value=1, max_value=len(counts) - 1))
    counts[place] = data.draw(st.integers(min_value=0, max_value=counts[place - 1] - 1))
    findings = count_energy(make_run(counts), COUNTER, SOURCE)
    assert (findings.energy_j, findings.reasons) == (None, (Reason.COUNTER_RESET,))


@given(steps_mj, st.floats(min_value=0.0, max_value=0.1))
def test_aligned_edges_are_uncertain_by_their_slack(steps: list[int], slack_s: float) -> None:
    """Aligned with steps the uncertainty is the slack at mean power and a count, else two steps' time and a count."""
    run = make_run(list(accumulate(steps, initial=0)))
    energy_j = sum(steps) / 1000
    mean_power_w = energy_j / (2.0 * len(steps))
    for slack, uncertain_s in ((slack_s, slack_s), (None, 0.2)):
        uncertainty_j = count_energy(run, COUNTER, SOURCE, slack_s=slack).uncertainty_j
        assert pytest.approx(uncertain_s * mean_power_w + 0.001) == uncertainty_j


@given(st.lists(st.integers(min_value=0, max_value=1000), min_size=2, max_size=40))
def test_counted_power_is_never_zero(steps: list[int]) -> None:
    """Readings that repeat are stale, so no power of 0 W is ever drawn from them."""
    run = make_run(list(accumulate(steps, initial=0)))
    assert all(sample.power_w > 0 for sample in counted_power(run, 1000))
