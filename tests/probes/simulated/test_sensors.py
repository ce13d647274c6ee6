"""Simulated sensors and their artefacts."""

from __future__ import annotations

import pytest

from probes.errors import DeviceLost
from probes.simulated.device import SimulatedDevice
from probes.simulated.faults import Fault, FaultKind
from probes.simulated.options import SimulationOptions
from tests.probes.simulated.toys import BUSY_W, LOADED_W, ToyWork, make_device

BRIEF = ToyWork(seconds=0.025)


def sensing(**options: object) -> SimulatedDevice:
    """Return a device with a model loaded and its sensors on."""
    device = make_device(options=SimulationOptions(has_sensors=True, **options))  # type: ignore[arg-type] # whichever options a test names
    device.begin("run")
    return device


def pulses(device: SimulatedDevice, offset_s: float, until_s: float) -> None:
    """Work for 25 ms of each 100 ms, from `offset_s` after each begins."""
    for number in range(round(until_s * 10)):
        device.advance_to(number / 10 + offset_s)
        device.run(BRIEF, device.now_s())
    device.advance_to(until_s)


def test_the_counter_moves_in_steps() -> None:
    """Between two ticks the counter shows the energy until the first of them."""
    device = sensing()
    seen = []
    for now_s in (0.05, 0.1, 0.1999, 0.2, 0.25):
        device.advance_to(now_s)
        seen.append(device.sensors.counter_mj())
    assert seen == [0, 10_000, 10_000, 20_000, 20_000]


def test_the_counter_is_off_by_gain_and_offset() -> None:
    """Over ten seconds it counts the true energy times its gain and its offset in watts."""
    device = sensing(sensor_gain=0.95, sensor_offset_w=2.0)
    device.advance_to(10.0)
    assert device.sensors.counter_mj() == pytest.approx(10_000 * (0.95 * LOADED_W + 2.0), abs=2)


@pytest.mark.parametrize(("offset_s", "expected_w"), [(0.075, BUSY_W), (0.02, LOADED_W)])
def test_instant_power_is_blind_most_of_the_time(offset_s: float, expected_w: float) -> None:
    """Bursts in the last 25 of each 100 ms look like full load, bursts before it like none."""
    device = sensing()
    pulses(device, offset_s, 1.0)
    assert device.sensors.instant_w() == pytest.approx(expected_w, rel=1e-6)


def test_average_power_trails() -> None:
    """Half a second after load began a mean over one second shows half of the rise, and all of it after a second."""
    device = sensing()
    device.advance_to(2.0)
    device.run(ToyWork(seconds=2.0), 2.0)
    seen = []
    for now_s in (2.0, 2.5, 3.0):
        device.advance_to(now_s)
        seen.append(device.sensors.average_w())
    assert seen == pytest.approx([LOADED_W, (LOADED_W + BUSY_W) / 2, BUSY_W], rel=1e-6)


def test_readings_are_of_all_gpus() -> None:
    """Power and energy are those of the whole device."""
    device = make_device(num_gpus=4, options=SimulationOptions(has_sensors=True))
    device.begin("run")
    device.advance_to(1.0)
    sensors = device.sensors
    assert (sensors.counter_mj(), sensors.instant_w()) == pytest.approx((400_000, 400.0))


def test_a_stuck_counter_stands_still_while_power_goes_on() -> None:
    """From the scripted instant on the counter shows what it showed then."""
    device = sensing(faults=(Fault(kind=FaultKind.COUNTER_STUCK, from_s=1.0),))
    device.advance_to(0.99)
    before = device.sensors.counter_mj()
    device.advance_to(9.0)
    assert device.sensors.counter_mj() == before
    assert device.sensors.instant_w() == pytest.approx(LOADED_W)


def test_a_reset_counter_begins_anew_once() -> None:
    """At the scripted instant it falls to nothing and counts on from there."""
    device = sensing(faults=(Fault(kind=FaultKind.COUNTER_RESET, from_s=5.0),))
    device.advance_to(6.05)
    assert device.sensors.counter_mj() == pytest.approx(1.1 * LOADED_W * 1000, abs=2)


def test_a_lost_device_answers_nothing() -> None:
    """Every read raises DeviceLost."""
    device = sensing(faults=(Fault(kind=FaultKind.DEVICE_LOST, from_s=1.0),))
    device.advance_to(1.0)
    for read in (device.sensors.counter_mj, device.sensors.instant_w, device.sensors.average_w):
        with pytest.raises(DeviceLost):
            read()
