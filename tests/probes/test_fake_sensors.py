"""Whether the fakes' power curves, sensors and counters are what they say: benchmarks take them for the truth."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.fake_sensors import (
    ConstantPower,
    Counter,
    HeldMean,
    PowerSignal,
    SquareWave,
    SteppedPower,
    average_sensor,
    duty_sensor,
)

WAVE = SquareWave(low_w=100.0, high_w=500.0, period_s=0.1, duty=0.25, phase_s=0.03)
STEPS = SteppedPower(steps=((0.0, 100.0), (5.0, 300.0), (7.5, 200.0)))
SIGNALS = [
    ConstantPower(level_w=300.0),
    WAVE,
    STEPS,
    duty_sensor(WAVE),
    average_sensor(STEPS, phase_s=0.02),
]

instants = st.floats(min_value=0.0, max_value=20.0)


def by_rectangles_j(signal: PowerSignal, start_s: float, end_s: float, num: int = 20_000) -> float:
    step_s = (end_s - start_s) / num
    return sum(signal.power_w(start_s + (index + 0.5) * step_s) for index in range(num)) * step_s


@pytest.mark.parametrize("signal", SIGNALS)
def test_energy_is_the_integral_of_power(signal: PowerSignal) -> None:
    """Each closed form agrees with a fine sum of its own power, over a stretch that begins and ends anywhere."""
    assert signal.energy_j(0.317, 9.213) == pytest.approx(by_rectangles_j(signal, 0.317, 9.213), rel=2e-4)


@pytest.mark.parametrize("signal", SIGNALS)
@given(times=st.tuples(instants, instants, instants))
def test_energies_of_neighbouring_stretches_add_up(signal: PowerSignal, times: tuple[float, float, float]) -> None:
    """The energy of a stretch is that of its two parts, wherever it is cut."""
    start_s, middle_s, end_s = sorted(times)
    parts_j = signal.energy_j(start_s, middle_s) + signal.energy_j(middle_s, end_s)
    assert signal.energy_j(start_s, end_s) == pytest.approx(parts_j, abs=1e-2)


def test_a_square_wave_has_the_mean_of_its_duty() -> None:
    """A quarter at 500 W and the rest at 100 W are 200 W over whole periods."""
    assert WAVE.energy_j(12.345, 22.345) == pytest.approx(2000.0)


def test_a_duty_sensor_in_phase_with_the_load_is_blind_to_a_part() -> None:
    """A load of the sensor's own period reads as if it were always high, or always low."""
    in_phase = SquareWave(low_w=100.0, high_w=500.0, period_s=0.1, duty=0.25)
    always_high = duty_sensor(in_phase, phase_s=0.025)
    always_low = duty_sensor(in_phase, phase_s=0.075)
    assert always_high.energy_j(10.0, 20.0) == pytest.approx(5000.0)
    assert always_low.energy_j(10.0, 20.0) == pytest.approx(1000.0)
    assert in_phase.energy_j(10.0, 20.0) == pytest.approx(2000.0)


def test_a_duty_sensor_is_right_about_steady_power() -> None:
    """What does not change reads as it is, whenever it is looked at."""
    assert duty_sensor(ConstantPower(level_w=321.0)).power_w(17.03) == pytest.approx(321.0)


def test_a_sensor_holds_what_it_showed() -> None:
    """Between two refreshes nothing changes; after one second the average has risen to the whole step."""
    sensor = average_sensor(STEPS)
    shown = [sensor.power_w(time_s) for time_s in (5.0, 5.05, 5.099, 5.1, 5.55, 6.0)]
    assert shown == pytest.approx([100.0, 100.0, 100.0, 120.0, 200.0, 300.0])


@pytest.mark.parametrize("tick_s", [0.01, 0.1])
def test_a_counter_moves_in_ticks_and_adds_up(tick_s: float) -> None:
    """Looked at every 2 ms it stands still within a tick, and over ten seconds it has the true energy."""
    counter = Counter(signal=WAVE, tick_s=tick_s)
    shown = [counter(100.0 + index * 0.002) for index in range(5001)]
    num_steps = sum(later != earlier for earlier, later in pairwise(shown))
    assert round(10.0 / tick_s) == num_steps
    assert (shown[-1] - shown[0]) / 1000 == pytest.approx(WAVE.energy_j(100.0, 110.0), abs=0.01)


def test_a_counter_does_not_depend_on_how_often_it_is_read() -> None:
    """Two looks ten seconds apart give what five thousand give."""
    often, rarely = (Counter(signal=duty_sensor(WAVE)) for _ in range(2))
    seen = [often(100.0 + index * 0.002) for index in range(5001)]
    assert [rarely(100.0), rarely(110.0)] == [seen[0], seen[-1]]


def test_a_counter_of_a_sensor_has_the_sensors_error() -> None:
    """Hardware that adds up a blind sensor counts what the sensor saw, not what was drawn."""
    in_phase = SquareWave(low_w=100.0, high_w=500.0, period_s=0.1, duty=0.25)
    counter = Counter(signal=HeldMean(signal=in_phase, window_s=0.025, phase_s=0.025))
    before_mj = counter(100.0)
    assert (counter(110.0) - before_mj) / 1000 == pytest.approx(5000.0)


def test_a_reset_counter_begins_at_nothing() -> None:
    """After a reset it shows zero, and goes on from there."""
    counter = Counter(signal=ConstantPower(level_w=100.0))
    counter(100.0)
    counter(200.0)
    counter.reset()
    assert [counter(200.0), counter(201.0)] == [0, 100_000]
