"""A simulated device as any other."""

from __future__ import annotations

from dataclasses import replace
from threading import Event

import pytest

from probes.clock import Clock
from probes.control.attain import cap_attained
from probes.device import Device, DeviceKind, Method, Scope
from probes.errors import DeviceLost, NotSupported
from probes.settings import DeviceSettings, Settable
from probes.settle import idle_power
from probes.simulated.accelerators import ACCELERATORS
from probes.simulated.device import SimulatedDevice
from probes.simulated.faults import Fault, FaultKind
from probes.simulated.lane import HOLD_S
from probes.simulated.options import SimulationOptions
from probes.validity import Reason
from tests.probes.simulated.toys import IDLE_W, LOADED_W, ToyWork, make_device, work_for


def test_it_is_a_device_on_a_clock() -> None:
    """It fits the seam of all devices, and its clock that of all clocks."""
    device: Device = make_device()
    clock: Clock = make_device().clock
    assert (device.info.kind, clock.monotonic_s()) == (DeviceKind.SIMULATED, 0.0)


def test_it_says_what_it_is_everywhere() -> None:
    """Name, driver, source and capabilities all tell that it is simulated."""
    device = make_device(num_gpus=8, seed=5)
    assert (device.info.uuid, device.info.name) == ("SIM-TOY-X8", "8x Toy (simulated)")
    assert device.info.driver.startswith("simulation ")
    assert dict(device.info.details)["seed"] == "5"
    assert (device.power_source.method, device.power_source.scope) == (Method.SIMULATED, Scope.GPU)
    assert all("simulated" in capability.reason for capability in device.capabilities())


def test_it_offers_its_knobs() -> None:
    """The clocks are a list, the power cap a range of whole watts, both of each GPU."""
    clocks = tuple(range(300, 1801, 15))
    assert make_device(num_gpus=8).settables() == (
        Settable(name="sm_clock_cap_mhz", values=clocks),
        Settable(name="power_cap_w", values=(200, 700), is_range=True),
    )


def test_a_look_shows_the_work_in_progress_and_the_one_that_just_ended() -> None:
    """Power, clock, temperature, limit and events are those of the present instant, its left side included."""
    device = make_device(num_gpus=2)
    device.configure(DeviceSettings(power_cap_w=400))
    device.begin("run")
    end_s = device.run(ToyWork(), 0.0)
    for now_s in (end_s / 2, end_s):
        device.advance_to(now_s)
        seen = device.status()
        assert (seen.time_s, seen.power_w, seen.clock_mhz) == (now_s, 400 + LOADED_W, 1200)
        assert (seen.events, seen.power_limit_w) == (("sw_power_cap",), 800)
        assert seen.temperature_c == pytest.approx(30 + 40 * 400 / 700)


def test_a_pause_shows_idle_power_and_soon_an_idle_clock() -> None:
    """After work the clock stays up for a while, then it falls, with the event."""
    device = make_device()
    assert (device.status().power_w, device.status().clock_mhz, device.status().events) == (IDLE_W, 300, ("idle",))
    device.begin("run")
    work_for(device, ToyWork(), 2)
    device.advance_to(2.0)
    assert (device.status().power_w, device.status().clock_mhz, device.status().events) == (LOADED_W, 1800, ())
    device.advance_to(2.0 + HOLD_S)
    assert (device.status().clock_mhz, device.status().events) == (300, ("idle",))


def test_the_lowest_clock_in_use_is_shown() -> None:
    """Of two groups the slower one's clock is told, and the events of both; a group at rest says nothing."""

    class Uneven:
        def settle(self, work: object, **_: float) -> tuple[float, float, float]:
            assert isinstance(work, ToyWork)
            return work.seconds, 200.0, 600.0 if work.num_gpus == 3 else 900.0

    device = make_device(num_gpus=4, response=Uneven())
    device.begin("run")
    device.run(ToyWork(num_gpus=3, seconds=1.0), 0.0, lane=0)
    device.run(ToyWork(seconds=40.0), 0.0, lane=1)
    seen = []
    for now_s in (0.5, 30.0):
        device.advance_to(now_s)
        seen.append(device.status().clock_mhz)
    assert seen == [600, 900]


def test_a_lost_device_does_not_answer() -> None:
    """From the scripted instant on a look raises DeviceLost."""
    device = make_device(options=SimulationOptions(faults=(Fault(kind=FaultKind.DEVICE_LOST, from_s=1.0),)))
    assert device.status().power_w == IDLE_W
    device.clock.wait(Event(), 1.0)
    with pytest.raises(DeviceLost):
        device.status()


def test_sensors_are_there_when_switched_on() -> None:
    """Without the option there are none, and the error names it."""
    with pytest.raises(NotSupported, match="has_sensors=True"):
        _ = make_device().sensors
    assert make_device(options=SimulationOptions(has_sensors=True)).sensors.counter_mj() == 0


def test_idle_power_is_measured_as_on_any_device() -> None:
    """The procedure for real devices takes no real time and finds the idle power with a model loaded."""
    device = make_device(num_gpus=2)
    device.begin("run")
    assert idle_power(device, device.clock, 30.0).mean_power_w == pytest.approx(2 * LOADED_W)


@pytest.mark.parametrize(("faults", "reasons"), [((), ()), ((FaultKind.CAP_IGNORED,), (Reason.CLOCK_NOT_ATTAINED,))])
def test_whether_a_cap_is_attained_is_found_out_as_on_a_real_gpu(
    faults: tuple[FaultKind, ...], reasons: tuple[Reason, ...]
) -> None:
    """The check of the clock after a step passes for a cap that holds, and fails for one that is ignored."""
    device = make_device(options=SimulationOptions(faults=tuple(Fault(kind=kind) for kind in faults)))
    device.configure(DeviceSettings(sm_clock_cap_mhz=900))
    device.begin("run")
    work_for(device, ToyWork(), 1)
    assert cap_attained(lambda: device.status().clock_mhz, 900, 15, device.clock) == reasons


@pytest.mark.parametrize("key", ACCELERATORS)
def test_every_accelerator_works(key: str) -> None:
    """Each of the table does a step between idle power and its limit, faster than a second, and can be metered."""
    accelerator = ACCELERATORS[key]
    device = SimulatedDevice(accelerator)
    device.begin("run")
    meter = device.meter()
    meter.start()
    work = replace(
        ToyWork(), weight_bytes=1.6e10, kv_bytes=4e9, gemm_flops=1e12, num_layers=32, num_tokens=64, num_sampled=64
    )
    work_for(device, work, 20)
    reading = meter.stop()
    assert reading.is_valid
    assert accelerator.idle_w < (reading.mean_power_w or 0) <= accelerator.tdp_w
    assert reading.duration_s < 20
    assert (reading.uncertainty_j or 0) / (reading.energy_j or 1) == (0.5 if accelerator.is_preliminary else 0.15)
    assert ("only announced" in reading.detail) == accelerator.is_preliminary
