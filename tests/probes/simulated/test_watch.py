"""What a meter sees of the device."""

from __future__ import annotations

import pytest

from probes.device import PowerSample
from probes.settings import DeviceSettings
from probes.simulated.watch import NUM_TRACE_SAMPLES, MachineWatch, thinned
from tests.probes.simulated.toys import BUSY_W, ToyWork, make_device, work_for


def test_looks_grow_rarer_the_longer_the_stretch() -> None:
    """A second, a minute and an hour each have some dozens of power samples at most, none of which loses energy."""
    for seconds in (1.0, 60.0, 3600.0):
        device = make_device()
        device.begin("run")
        watch = MachineWatch(device, DeviceSettings())
        device.clock.add(watch)
        work_for(device, ToyWork(), until_s=seconds)
        trace = watch.trace()
        assert min(seconds * 4, 31) <= len(trace) <= NUM_TRACE_SAMPLES
        assert watch.energy_j() == pytest.approx(BUSY_W * seconds)
        assert {sample.power_w for sample in trace} == {BUSY_W}


def test_conditions_do_not_depend_on_when_it_looked() -> None:
    """A clock that was there for a moment between two looks has its exact share."""
    device = make_device()
    device.begin("run")
    watch = MachineWatch(device, DeviceSettings())
    device.clock.add(watch)
    work_for(device, ToyWork(seconds=0.01), 1)
    device.configure(DeviceSettings(sm_clock_cap_mhz=900))
    work_for(device, ToyWork(seconds=0.005), 1)
    device.configure(DeviceSettings())
    work_for(device, ToyWork(seconds=0.98), 1)
    conditions, _ = watch.judged("SIM")
    assert conditions.lowest_clock_mhz == 900
    assert conditions.mean_clock_mhz == pytest.approx(1800 - 900 * 0.01)


@pytest.mark.parametrize(("number", "left"), [(0, 0), (64, 64), (65, 33), (600, 60)])
def test_a_long_trace_is_thinned_evenly(number: int, left: int) -> None:
    """Every so many samples one is kept, and no more than 64 in all."""
    trace = [PowerSample(time_s=float(at), power_w=1.0) for at in range(number)]
    assert len(thinned(trace)) == left
