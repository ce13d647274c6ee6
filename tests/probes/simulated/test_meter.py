"""The energy of stretches of virtual time."""

from __future__ import annotations

import math

import pytest

from probes.device import Method, Reading
from probes.settings import DeviceSettings
from probes.simulated.description import UNCERTAINTY
from probes.simulated.device import SimulatedDevice
from probes.simulated.faults import Fault, FaultKind
from probes.simulated.options import Sensor, SimulationOptions
from probes.validity import Note, Reason
from tests.probes.simulated.toys import BUSY_W, LOADED_W, ToyWork, make_device, watts, work_for

TENTH = ToyWork(seconds=0.1)


def measured(
    device: SimulatedDevice, seconds: float = 20.0, *, work: ToyWork = TENTH, settings: DeviceSettings | None = None
) -> Reading:
    """Begin a run under these settings, work for a while, and return what a meter says."""
    settings = settings or DeviceSettings()
    device.configure(settings)
    device.begin("run")
    work_for(device, work, 3)
    meter = device.meter(settings=settings)
    start_s = meter.start()
    work_for(device, work, until_s=start_s + seconds)
    reading = meter.stop()
    meter.close()
    return reading


def scripted(*faults: Fault, **options: object) -> SimulatedDevice:
    return make_device(options=SimulationOptions(faults=faults, **options))  # type: ignore[arg-type] # whichever options a test names


def test_energy_is_exact_and_says_that_it_is_simulated() -> None:
    """A reading holds all joules of its stretch, with the model's uncertainty, and never calls itself measured."""
    reading = measured(make_device(num_gpus=2))
    assert reading.energy_j == pytest.approx(reading.duration_s * (BUSY_W + LOADED_W))
    assert reading.uncertainty_j == pytest.approx(UNCERTAINTY * (reading.energy_j or math.nan))
    assert (reading.method, reading.is_estimate, reading.is_valid) == (Method.SIMULATED, True, True)
    assert "nothing was measured" in reading.detail
    assert reading.device_uuids == ("SIM-TOY-X2",)
    assert reading.notes == ()


def test_an_edge_inside_a_step_cuts_it() -> None:
    """What a step draws before the stretch begins, and after it ends, does not count."""
    device = make_device()
    device.begin("run")
    device.run(ToyWork(seconds=4.0), 0.0)
    meter = device.meter()
    device.advance_to(1.0)
    assert meter.start() == 1.0
    device.advance_to(3.0)
    reading = meter.stop()
    assert (reading.start_s, reading.end_s, reading.energy_j) == (1.0, 3.0, 2 * BUSY_W)


def test_conditions_are_weighted_by_time() -> None:
    """Clocks are means over the exact time at each, and events have their share of it."""
    device = make_device()
    device.begin("run")
    meter = device.meter()
    meter.start()
    device.advance_to(device.run(ToyWork(seconds=3.0), 0.0))
    device.configure(DeviceSettings(power_cap_w=325))
    device.advance_to(device.run(ToyWork(seconds=0.5), device.now_s()))
    (seen,) = meter.stop().conditions
    assert seen.mean_clock_mhz == pytest.approx((3 * 1800 + 1 * 900) / 4)
    assert (seen.lowest_clock_mhz, seen.highest_clock_mhz) == (900, 1800)
    assert dict(seen.event_shares) == pytest.approx({"sw_power_cap": 0.25})
    assert (seen.power_limit_w, seen.num_samples, seen.device_uuid) == (325, 40, "SIM-TOY-X1")
    assert seen.highest_temperature_c == pytest.approx(30 + 40 * BUSY_W / 700)
    assert seen.end_temperature_c == pytest.approx(30 + 40 * 325 / 700)


@pytest.mark.parametrize("seconds", [1.0, 20.0, 3000.0])
def test_the_trace_is_short_and_holds_all_energy(seconds: float) -> None:
    """However long the stretch, its power is drawn in at most 64 samples whose mean is about the mean power."""
    reading = measured(make_device(), seconds, work=ToyWork(seconds=0.5))
    assert 4 <= len(reading.trace) <= 64
    assert [sample.power_w for sample in reading.trace] == pytest.approx([BUSY_W] * len(reading.trace))
    assert all(reading.start_s < sample.time_s < reading.end_s for sample in reading.trace)


def test_an_idle_stretch_has_idle_power_and_says_so() -> None:
    """With nothing to do the device draws idle power, at its lowest clock."""
    device = make_device()
    device.begin("run")
    meter = device.meter()
    meter.start()
    device.advance_to(30.0)
    reading = meter.stop()
    assert reading.mean_power_w == LOADED_W
    assert reading.is_valid
    assert reading.conditions[0].mean_clock_mhz == 300
    assert reading.conditions[0].event_shares == (("idle", 1.0),)


def test_a_stretch_across_two_runs_holds_both() -> None:
    """A meter that is open while one run ends and another begins loses nothing."""
    device = make_device()
    device.begin("first")
    meter = device.meter()
    meter.start()
    work_for(device, TENTH, 10)
    device.begin("second")
    work_for(device, TENTH, 10)
    reading = meter.stop()
    assert reading.energy_j == pytest.approx(2 * BUSY_W)
    assert reading.conditions[0].mean_clock_mhz == pytest.approx(1800)


def test_a_meter_that_was_not_started_says_so() -> None:
    """Stopping without a start, or twice, gives an invalid reading without energy."""
    meter = make_device().meter()
    assert meter.stop().reasons == (Reason.NOT_STARTED,)
    meter.start()
    meter.close()
    meter.close()
    assert meter.stop().energy_j is None


def test_a_stretch_without_length_has_no_energy() -> None:
    """Nothing can be said of an instant."""
    meter = make_device().meter()
    meter.start()
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (Reason.WINDOW_TOO_SHORT,))


def test_a_power_cap_at_work_is_noted() -> None:
    """A reading under a cap that lowers the clock is valid and says so; one under a cap above the draw is silent."""
    capped = measured(make_device(), settings=DeviceSettings(power_cap_w=400))
    assert (capped.is_valid, capped.notes) == (True, (Note.POWER_LIMITED,))
    assert capped.mean_power_w == pytest.approx(400)
    inert = measured(make_device(), settings=DeviceSettings(power_cap_w=600))
    assert inert.mean_power_w == pytest.approx(BUSY_W)
    assert inert.notes == ()


def test_a_clock_cap_that_holds_is_no_reason() -> None:
    """At a cap that is kept the reading is valid, at the power of that clock."""
    reading = measured(make_device(), settings=DeviceSettings(sm_clock_cap_mhz=900))
    assert reading.mean_power_w == pytest.approx(watts(900))
    assert reading.reasons == ()


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [
        (FaultKind.SW_THERMAL, (Reason.SW_THERMAL,)),
        (FaultKind.HW_THERMAL, (Reason.HW_THERMAL, Reason.HW_SLOWDOWN)),
        (FaultKind.HW_SLOWDOWN, (Reason.HW_SLOWDOWN,)),
        (FaultKind.POWER_BRAKE, (Reason.HW_SLOWDOWN, Reason.POWER_BRAKE)),
    ],
)
def test_throttles_count_against_a_reading(kind: FaultKind, reasons: tuple[Reason, ...]) -> None:
    """A throttle for a part of the stretch gives the reasons that a real GPU's reading gets."""
    reading = measured(scripted(Fault(kind=kind, from_s=10.0, until_s=12.0, clock_mhz=600)))
    assert reading.reasons == reasons


def test_a_throttle_before_the_stretch_does_not() -> None:
    """What was over when the stretch began is no reason."""
    fault = Fault(kind=FaultKind.SW_THERMAL, until_s=0.1, clock_mhz=600)
    assert measured(scripted(fault), seconds=5.0).reasons == ()


def test_an_ignored_clock_cap_is_not_held() -> None:
    """A clock above its cap makes the reading invalid."""
    device = scripted(Fault(kind=FaultKind.CAP_IGNORED))
    reading = measured(device, settings=DeviceSettings(sm_clock_cap_mhz=900))
    assert reading.reasons == (Reason.CLOCK_NOT_HELD,)


def test_settings_that_change_in_the_middle_count_against_a_reading() -> None:
    """Another power limit than the one that was set, or two in one stretch, are an external change."""
    device = make_device()
    settings = DeviceSettings(power_cap_w=400)
    device.configure(settings)
    device.begin("run")
    meter = device.meter(settings=settings)
    meter.start()
    work_for(device, TENTH, 20)
    device.configure(DeviceSettings(power_cap_w=600))
    work_for(device, TENTH, 20)
    assert meter.stop().reasons == (Reason.EXTERNAL_CHANGE,)


@pytest.mark.parametrize("sensor", Sensor)
def test_a_lost_device_has_no_energy(sensor: Sensor) -> None:
    """A reading that ends after the device was lost says why it has none."""
    device = scripted(Fault(kind=FaultKind.DEVICE_LOST, from_s=5.0), sensor=sensor, has_sensors=True)
    meter = device.meter()
    meter.start()
    device.advance_to(10.0)
    reading = meter.stop()
    assert (reading.energy_j, reading.uncertainty_j) == (None, None)
    assert "device_lost" in reading.reasons


def test_a_counter_is_off_by_up_to_a_tick_at_either_edge() -> None:
    """A stretch that is not aligned with the counter's steps is right within the uncertainty that it states."""
    device = make_device(options=SimulationOptions(sensor=Sensor.COUNTER, has_sensors=True))
    reading = measured(device, 20.03, work=ToyWork(seconds=0.07))
    true_j = reading.duration_s * BUSY_W
    error_j = abs((reading.energy_j or math.nan) - true_j)
    assert 0 < error_j <= 0.2 * BUSY_W
    assert reading.uncertainty_j == pytest.approx(UNCERTAINTY * (reading.energy_j or 0) + 0.2 * BUSY_W, rel=0.01)
    assert (reading.method, reading.is_valid) == (Method.SIMULATED, True)
    assert "counter" in reading.detail


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(FaultKind.COUNTER_STUCK, Reason.COUNTER_STUCK), (FaultKind.COUNTER_RESET, Reason.COUNTER_RESET)],
)
def test_a_broken_counter_is_told_as_on_a_real_gpu(kind: FaultKind, reason: Reason) -> None:
    """A counter that stands still, or falls, gives no energy and its reason."""
    from_s = 0.2 if kind is FaultKind.COUNTER_STUCK else 9.0
    device = scripted(Fault(kind=kind, from_s=from_s), sensor=Sensor.COUNTER, has_sensors=True)
    reading = measured(device)
    assert (reading.energy_j, reading.reasons) == (None, (reason,))


def test_an_instant_sensor_misses_what_it_does_not_see() -> None:
    """Bursts between its glimpses are not in the integral, though they are in the true energy."""
    device = make_device(options=SimulationOptions(sensor=Sensor.INSTANT, has_sensors=True))
    device.begin("run")
    meter = device.meter()
    meter.start()
    for number in range(200):
        device.advance_to(number / 10)
        device.run(ToyWork(seconds=0.07), device.now_s())
    device.advance_to(20.0)
    true_j = device.ledger.energy(20.0).run_j
    assert meter.stop().energy_j == pytest.approx(20 * LOADED_W, rel=0.02)
    assert true_j == pytest.approx(20 * (LOADED_W + 0.7 * (BUSY_W - LOADED_W)), rel=1e-3)


def test_an_averaging_sensor_brings_the_past_along() -> None:
    """Just after load began the integral of trailing means is too low by about half a second of the rise."""
    device = make_device(options=SimulationOptions(sensor=Sensor.AVERAGE, has_sensors=True))
    device.begin("run")
    device.advance_to(5.0)
    meter = device.meter()
    meter.start()
    work_for(device, TENTH, until_s=25.0)
    reading = meter.stop()
    missed_j = reading.duration_s * BUSY_W - (reading.energy_j or math.nan)
    assert missed_j == pytest.approx(0.5 * (BUSY_W - LOADED_W), rel=0.25)
    assert reading.notes == (Note.AVERAGED_POWER,)
    assert len(reading.trace) <= 64
