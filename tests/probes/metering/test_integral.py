"""Energy from power readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.device import Method, PowerSample, PowerSource, Scope
from probes.errors import ImplausibleReading, ProbeError
from probes.metering.integral import failed_share, integrate, integrate_run, power_trace
from probes.metering.sampler import Failure, Run, Sample
from probes.validity import Note, Reason

watts = st.floats(min_value=1.0, max_value=1000.0)


SOURCE = PowerSource(scope=Scope.GPU, method=Method.INTEGRATED, detail="power", resolution_s=0.1)


def make_run(num_samples: int, *failed: str, interval_s: float = 0.1) -> Run[float]:
    """So many readings of 100 W, and as many failures as kinds are given."""
    samples = tuple(Sample(time_s=i * interval_s, value=100.0) for i in range(num_samples))
    failures = tuple(Failure(time_s=0.0, kind=kind, message="no") for kind in failed)
    return Run(opening=samples[0], closing=samples[-1], samples=samples, failures=failures, has_died=False)


def make_samples(powers_w: list[float], *, interval_s: float = 1.0) -> list[PowerSample]:
    return [PowerSample(time_s=i * interval_s, power_w=power) for i, power in enumerate(powers_w)]


def test_constant_power_is_power_times_time() -> None:
    """100 W over 2.5 s is 250 J, though no sample falls on an edge."""
    energy_j, reasons = integrate(make_samples([100.0] * 5), 0.7, 3.2)
    assert pytest.approx(250.0) == energy_j
    assert reasons == ()


def test_edges_are_interpolated() -> None:
    """A linear ramp has the exact area between two instants that no sample falls on."""
    energy_j, _ = integrate(make_samples([0.0, 10.0, 20.0, 30.0]), 0.5, 2.5)
    assert pytest.approx(30.0) == energy_j


@given(st.lists(watts, min_size=3, max_size=30), st.tuples(*[st.floats(0.0, 1.0)] * 3))
def test_energy_is_additive_over_adjacent_windows(powers_w: list[float], cuts: tuple[float, float, float]) -> None:
    """The energies of two windows that meet add up to the energy of both together."""
    samples = make_samples(powers_w)
    start_s, middle_s, end_s = sorted(cut * samples[-1].time_s for cut in cuts)
    first_j, _ = integrate(samples, start_s, middle_s)
    second_j, _ = integrate(samples, middle_s, end_s)
    whole_j, _ = integrate(samples, start_s, end_s)
    assert first_j is not None
    assert second_j is not None
    assert pytest.approx(first_j + second_j, abs=1e-6) == whole_j


@given(st.lists(watts, min_size=2, max_size=30))
def test_energy_lies_between_least_and_most_power(powers_w: list[float]) -> None:
    """Mean power is never outside what was read."""
    samples = make_samples(powers_w)
    energy_j, _ = integrate(samples, 0.0, samples[-1].time_s)
    assert energy_j is not None
    assert min(powers_w) - 1e-9 <= energy_j / samples[-1].time_s <= max(powers_w) + 1e-9


@pytest.mark.parametrize("window", [(-0.1, 2.0), (0.0, 4.1), (5.0, 6.0)])
def test_a_window_beyond_the_samples_is_not_bracketed(window: tuple[float, float]) -> None:
    """Power is never extrapolated: without samples on both sides there is no energy."""
    assert integrate(make_samples([100.0] * 5), *window) == (None, (Reason.NOT_BRACKETED,))


def test_no_samples_are_no_energy() -> None:
    """Nothing read is None, not 0 J."""
    assert integrate([], 0.0, 1.0) == (None, (Reason.NOT_BRACKETED,))


def test_a_gap_longer_than_three_seconds_is_not_bridged() -> None:
    """Samples 4 s apart give no energy, 3 s apart they do."""
    assert integrate(make_samples([1.0] * 3, interval_s=4.0), 0.0, 8.0) == (None, (Reason.SAMPLING_GAP,))
    energy_j, _ = integrate(make_samples([1.0] * 3, interval_s=3.0), 0.0, 6.0)
    assert pytest.approx(6.0) == energy_j


def test_a_gap_at_the_edge_counts_as_well() -> None:
    """The neighbours outside the window are part of the interpolation, so their distance counts."""
    samples = make_samples([1.0] * 3, interval_s=4.0)
    assert integrate(samples, 1.0, 3.0) == (None, (Reason.SAMPLING_GAP,))


def test_a_gap_outside_the_window_does_not_matter() -> None:
    """A sampler that slept before or after the window does no harm."""
    times_s = [0.0, 10.0, 11.0, 12.0, 30.0]
    samples = [PowerSample(time_s=time_s, power_w=5.0) for time_s in times_s]
    energy_j, _ = integrate(samples, 10.0, 12.0)
    assert pytest.approx(10.0) == energy_j


def test_a_run_is_integrated_in_order_of_time() -> None:
    """Readings that came in the wrong order are put right."""
    run = make_run(21)
    shuffled = Run(
        opening=run.opening, closing=run.closing, samples=run.samples[::-1], failures=(), has_died=run.has_died
    )
    assert power_trace(run) == power_trace(shuffled)
    assert pytest.approx(200.0) == integrate_run(shuffled, SOURCE, 0.0, 2.0).energy_j


def test_a_run_of_fewer_than_ten_readings_is_too_short() -> None:
    """Ten sampling intervals or less are window_too_short, not an energy from a handful of readings."""
    found = integrate_run(make_run(31), SOURCE, 0.0, 1.0)
    assert (found.energy_j, found.reasons) == (None, (Reason.WINDOW_TOO_SHORT,))
    assert integrate_run(make_run(31), SOURCE, 0.0, 1.2).reasons == ()


def test_shares_of_failures_are_of_all_readings() -> None:
    """What cannot be true and what could not be had are counted apart."""
    run = make_run(17, ImplausibleReading.kind, ProbeError.kind, ProbeError.kind)
    assert (failed_share(run, is_implausible=True), failed_share(run, is_implausible=False)) == (0.05, 0.10)


@pytest.mark.parametrize(
    ("failed", "reasons", "has_energy"),
    [
        ((ProbeError.kind,) * 11, (), True),
        ((ProbeError.kind,) * 12, (Reason.SAMPLING_GAP,), False),
        ((ImplausibleReading.kind,), (), True),
        ((ImplausibleReading.kind,) * 2, (Reason.IMPLAUSIBLE_READING,), True),
    ],
)
def test_too_many_failures_are_a_reason(failed: tuple[str, ...], reasons: tuple[str, ...], has_energy: bool) -> None:
    """Above a tenth missing there is no energy; above a hundredth implausible it is kept for the record."""
    found = integrate_run(make_run(101, *failed), SOURCE, 0.0, 10.0)
    assert (found.reasons, found.energy_j is not None) == (reasons, has_energy)
    assert found.notes[0].startswith(f"{Note.READINGS_REJECTED}:")
