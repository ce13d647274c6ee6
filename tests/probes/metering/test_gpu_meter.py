"""A GPU's energy, over scripted counters, powers and conditions."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.device import Meter, Method, Reading
from probes.errors import DeviceLost, ImplausibleReading, ProbeError
from probes.metering.counting import Counter, count_energy
from probes.metering.gpu_meter import AVERAGE_RISE_S
from probes.metering.sampler import Run
from probes.metering.ticks import POLL_S, Edge, edge
from probes.settings import DeviceSettings
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_sensors import Counter as FakeCounter
from tests.probes.fake_sensors import SteppedPower
from tests.probes.scripted_card import AVERAGED, COUNTER, UUID, make_gpu_meter, make_reads, steady_mj


def measure(meter: Meter, clock: FakeClock, seconds: float = 30.0) -> Reading:
    meter.start()
    clock.advance(seconds)
    return meter.stop()


def stepped_power(draw_w: list[float], *, every_s: float) -> SteppedPower:
    return SteppedPower(steps=tuple((1000.0 + i * every_s, level_w) for i, level_w in enumerate(draw_w)))


levels_w = st.lists(st.floats(min_value=50.0, max_value=700.0), min_size=1, max_size=12)
ticks_s = st.floats(min_value=0.01, max_value=0.1)


@settings(max_examples=25, deadline=None)
@given(levels_w, ticks_s, st.floats(min_value=0.0, max_value=0.1))
def test_counted_energy_is_within_one_percent_of_the_truth(
    draw_w: list[float], tick_s: float, into_tick_s: float
) -> None:
    """Whatever the power does and wherever a window of 30 s begins, aligned edges count what was drawn between them."""
    clock = FakeClock()
    power = stepped_power(draw_w, every_s=3.1)
    counter = FakeCounter(signal=power, tick_s=tick_s)
    clock.advance(into_tick_s)
    source = replace(COUNTER, resolution_s=tick_s)
    reading = measure(make_gpu_meter(clock, counter, power_w=None, source=source), clock)
    truth_j = power.energy_j(reading.start_s, reading.end_s)
    assert reading.is_valid
    assert pytest.approx(truth_j, rel=0.01) == reading.energy_j


@settings(max_examples=50, deadline=None)
@given(levels_w, ticks_s, st.floats(min_value=0.2, max_value=0.8))
def test_counted_energy_is_additive_over_adjacent_windows(draw_w: list[float], tick_s: float, share: float) -> None:
    """Two windows that meet at an edge have the energy of both together, to the count."""
    clock = FakeClock()
    counts = FakeCounter(signal=stepped_power(draw_w, every_s=3.1), tick_s=tick_s)
    edges = []
    for wait_s in (0.0, 30.0 * share, 30.0 * (1 - share)):
        clock.advance(wait_s)
        found = edge(lambda: counts(clock.monotonic_s()), clock, tick_s)
        assert isinstance(found, Edge)
        edges.append(found.sample)
    first, second, whole = (
        count_energy(
            Run(opening=begin, closing=end, samples=(begin, end), failures=(), has_died=False),
            Counter(read=lambda: 0, counts_per_joule=1000),
            replace(COUNTER, resolution_s=tick_s),
        ).energy_j
        for begin, end in ((edges[0], edges[1]), (edges[1], edges[2]), (edges[0], edges[2]))
    )
    assert first is not None
    assert second is not None
    assert pytest.approx(first + second, rel=1e-12) == whole


def test_the_window_begins_and_ends_at_steps(clock: FakeClock) -> None:
    """Start and end lie within a poll of a step of the counter, and the uncertainty is two polls and one count."""
    reading = measure(make_gpu_meter(clock), clock)
    for edge_s in (reading.start_s, reading.end_s):
        assert steady_mj(edge_s) > steady_mj(edge_s - POLL_S - 1e-6)
    assert pytest.approx(2 * POLL_S * 300.0 + 0.001) == reading.uncertainty_j
    assert Note.UNALIGNED_EDGES not in reading.notes


def test_a_counter_too_slow_to_wait_for_is_not_aligned(clock: FakeClock) -> None:
    """With steps of 2 s the edges stay where they are, uncertain by a step each, and the reading says so."""
    source = replace(COUNTER, resolution_s=2.0)
    reading = measure(make_gpu_meter(clock, lambda now_s: int(now_s / 2) * 600_000, None, source=source), clock, 40.3)
    assert reading.notes == (Note.UNALIGNED_EDGES,)
    assert reading.mean_power_w is not None
    assert pytest.approx(4.0 * reading.mean_power_w, abs=0.01) == reading.uncertainty_j
    assert reading.is_valid


def test_conditions_are_those_of_the_window(clock: FakeClock) -> None:
    """The reading holds what the card was like from start to end, under its UUID."""
    reads = make_reads(clock, temperature_c=lambda: 40 + int(clock.monotonic_s() - 1000), event_bits=lambda: 4)
    meter = make_gpu_meter(clock, reads=reads)
    clock.advance(5.0)
    (found,) = measure(meter, clock, 10.0).conditions
    assert (found.device_uuid, found.mean_clock_mhz, found.power_limit_w) == (UUID, 1980, 700.0)
    assert (found.start_temperature_c, found.end_temperature_c) == (45, 55)
    assert found.event_shares == (("sw_power_cap", 1.0),)
    assert 95 <= found.num_samples <= 110


def test_a_condition_against_the_window_is_a_reason(clock: FakeClock) -> None:
    """A cap that the card does not hold invalidates the figure and leaves it for the record."""
    reading = measure(make_gpu_meter(clock, settings=DeviceSettings(sm_clock_cap_mhz=1200)), clock)
    assert (reading.reasons, reading.is_valid) == ((Reason.CLOCK_NOT_HELD,), False)
    assert pytest.approx(300.0) == reading.mean_power_w


def test_a_second_window_is_judged_by_itself(clock: FakeClock) -> None:
    """A limit that changed between two windows of one meter is held against neither."""
    limit_w = [700.0]
    reads = make_reads(clock, set_limit_w=lambda: limit_w[0], enforced_limit_w=lambda: limit_w[0])
    meter = make_gpu_meter(clock, reads=reads)
    assert measure(meter, clock).is_valid
    limit_w[0] = 500.0
    assert measure(meter, clock).is_valid


def test_without_power_readings_the_counter_stands_unchecked(clock: FakeClock) -> None:
    """Power that cannot be read leaves the counted energy valid, with a note, and the clocks known."""

    def refuse(_now_s: float) -> float:
        raise ProbeError("no power")

    reading = measure(make_gpu_meter(clock, power_w=refuse), clock)
    assert (reading.is_valid, reading.notes) == (True, ("readings_rejected:1.00", Note.NO_CROSSCHECK))
    assert reading.conditions[0].mean_clock_mhz == 1980


def test_a_bad_power_reading_at_an_edge_is_asked_again(clock: FakeClock) -> None:
    """One reading that cannot be true at the start of an integrated window does not cost the window."""
    refusals: list[ProbeError] = [ImplausibleReading("once")]

    def power_w(_now_s: float) -> float:
        if refusals:
            raise refusals.pop()
        return 300.0

    reading = measure(make_gpu_meter(clock, None, power_w), clock)
    assert pytest.approx(9000.0) == reading.energy_j
    assert (reading.reasons, reading.notes) == ((), ("readings_rejected:0.00",))


@pytest.mark.parametrize(("every", "is_valid"), [(20, True), (5, False)])
def test_many_missing_readings_leave_no_energy(clock: FakeClock, every: int, is_valid: bool) -> None:
    """One reading in twenty that could not be had is a note with the share; one in five is too many to integrate."""
    calls = iter(range(10**6))

    def power_w(_now_s: float) -> float:
        if next(calls) % every == 3:
            raise ProbeError("busy")
        return 300.0

    reading = measure(make_gpu_meter(clock, None, power_w), clock)
    assert pytest.approx(1 / every, abs=0.011) == float(reading.notes[0].removeprefix("readings_rejected:"))
    assert (reading.energy_j is not None, reading.reasons) == (is_valid, () if is_valid else (Reason.SAMPLING_GAP,))


def test_the_trace_is_of_the_power_readings(clock: FakeClock) -> None:
    """Ten samples a second from power readings; from the counter two where power says nothing."""
    assert len(measure(make_gpu_meter(clock), clock, 10.0).trace) > 95
    assert 15 <= len(measure(make_gpu_meter(clock, power_w=None), clock, 10.0).trace) <= 25


def test_averages_begin_late_and_wait_for_nothing(clock: FakeClock) -> None:
    """Of trailing averages the first 1.2 s are left out: start names an instant to come, and returns at once."""
    meter = make_gpu_meter(clock, None, source=AVERAGED)
    start_s = meter.start()
    assert (clock.monotonic_s(), start_s) == (1000.0, 1000.0 + AVERAGE_RISE_S)
    clock.advance(10.0)
    reading = meter.stop()
    assert (reading.start_s, reading.method) == (start_s, Method.INTEGRATED_AVERAGE)
    assert min(sample.time_s for sample in reading.trace) >= start_s
    assert pytest.approx(300.0) == reading.mean_power_w


@pytest.mark.parametrize("seconds", [0.0, 1.0, 2.1])
def test_averages_over_less_than_their_rise_are_too_short(clock: FakeClock, seconds: float) -> None:
    """A window without ten readings after the rise has no energy, and does not end before it began."""
    reading = measure(make_gpu_meter(clock, None, source=AVERAGED), clock, seconds)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.WINDOW_TOO_SHORT,))
    assert reading.duration_s >= 0


def test_a_lost_card_has_no_energy_and_is_not_asked_for_ever(clock: FakeClock) -> None:
    """Everything failing at the end gives None with the kind of error."""

    def lost(now_s: float) -> float:
        if now_s > 1010:
            raise DeviceLost("off the bus")
        return 300.0

    reading = measure(make_gpu_meter(clock, lambda now_s: lost(now_s) and steady_mj(now_s), lost), clock)
    assert (reading.energy_j, reading.reasons) == (None, ("device_lost",))


def test_random_start_delays_do_not_matter(clock: FakeClock) -> None:
    """Wherever between two steps a window is asked for, a constant power is measured exactly."""
    rng = random.Random(1)
    meter = make_gpu_meter(clock)
    for _ in range(5):
        clock.advance(rng.random())
        assert pytest.approx(300.0, rel=1e-3) == measure(meter, clock, 5.0).mean_power_w
