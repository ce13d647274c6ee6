"""A GPU as a device: what it offers is found out by asking."""

from __future__ import annotations

import os
from pathlib import Path

import pynvml
import pytest

from probes.device import Capability, Method, Reading, Scope, Status
from probes.errors import DeviceLost, NotSupported
from probes.nvidia.gpu import GpuDevice
from probes.nvidia.nvml import Nvml
from probes.settings import POWER_CAP, SM_CLOCK_CAP, DeviceSettings, Settable
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_gpu import FIRST_UUID, NOT_SUPPORTED, SECOND_UUID, FakeGpu, Field
from tests.probes.fake_host import FakeProc
from tests.probes.fake_nvml import FakeNvml, install

COUNTER_CALL = "nvmlDeviceGetTotalEnergyConsumption"
POWER_CALL = "nvmlDeviceGetPowerUsage"
ENGINE, STRANGER = 100, 200


@pytest.fixture
def gpu(clock: FakeClock) -> FakeGpu:
    return FakeGpu(clock=clock).with_instant_power()


@pytest.fixture(autouse=True)
def library(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    library = FakeNvml(gpu)
    install(monkeypatch, library)
    return library


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """An engine, this process, and a stranger."""
    fake = FakeProc(tmp_path / "proc")
    for pid in (os.getpid(), ENGINE, STRANGER):
        fake.write_process(pid)
    return fake.root


def make_device(clock: FakeClock, *, is_slice: bool = False, proc: Path = Path("/proc")) -> GpuDevice:
    nvml = Nvml()
    card = nvml.cards()[0]
    return GpuDevice(nvml, card, clock=clock, cuda_ordinal=0, is_slice=is_slice, proc=proc)


def measure(
    device: GpuDevice, clock: FakeClock, seconds: float = 30.0, *, settings: DeviceSettings | None = None
) -> Reading:
    meter = device.meter([ENGINE], settings=settings or DeviceSettings())
    meter.start()
    clock.advance(seconds)
    return meter.stop()


def capability_of(device: GpuDevice, name: str) -> Capability:
    (found,) = [capability for capability in device.capabilities() if capability.name == name]
    return found


def test_it_is_described_by_uuid(clock: FakeClock) -> None:
    """UUID, name and driver are there, and PCI id, firmware, limits and ordinal in the details."""
    info = make_device(clock).info
    assert (info.uuid, info.kind, info.driver) == (FIRST_UUID, "gpu", "570.86.10")
    assert dict(info.details) == {
        "pci_id": "0000:18:00.0",
        "vbios": "96.00.89",
        "power_limit_w": "700.0",
        "max_power_limit_w": "700.0",
        "is_mig": "False",
        "cuda_ordinal": "0",
    }


def test_the_counter_is_first_choice(clock: FakeClock) -> None:
    """A counter that rises is used from step to step, checked against instantaneous power, and agrees."""
    reading = measure(make_device(clock), clock)
    assert (reading.scope, reading.method) == (Scope.GPU, Method.COUNTER)
    assert pytest.approx(300.0) == reading.mean_power_w
    assert (reading.is_valid, reading.notes, reading.is_estimate) == (True, (), False)
    assert reading.uncertainty_j is not None
    assert reading.uncertainty_j < 2.0


def test_averages_do_not_check_the_counter(clock: FakeClock, gpu: FakeGpu) -> None:
    """A trailing average lags behind, so it is no judge of a counter."""
    gpu.fields = {(185, 0): lambda _now_s: Field(value=500_000)}
    gpu.power_usage_mw = lambda _now_s: 500_000
    assert measure(make_device(clock), clock).is_valid


def test_a_superchip_without_module_power_is_not_checked_against_the_gpu(clock: FakeClock, gpu: FakeGpu) -> None:
    """Figures of different scope are never compared."""
    gpu.name, gpu.power_mw = "NVIDIA GH200 480GB", 1_200_000
    gpu.fields = {(186, 0): lambda _now_s: Field(value=400_000)}
    assert measure(make_device(clock), clock).is_valid


def test_probing_happens_once(clock: FakeClock) -> None:
    """Asking for the source again does not wait for the counter again."""
    device = make_device(clock)
    _ = device.power_source
    before_s = clock.monotonic_s()
    _ = device.power_source, device.capabilities(), device.status(), device.settables()
    assert before_s == clock.monotonic_s()


def test_a_status_is_one_look(clock: FakeClock, gpu: FakeGpu) -> None:
    """Power, clocks, temperature, limit and clock events of this moment."""
    gpu.event_bits = 0x24
    device = make_device(clock)
    _ = device.power_source
    assert device.status() == Status(
        time_s=clock.monotonic_s(),
        power_w=300.0,
        clock_mhz=1980,
        memory_clock_mhz=2619,
        temperature_c=45,
        power_limit_w=700.0,
        events=("sw_power_cap", "sw_thermal"),
    )


def test_a_status_without_everything_is_none_where_it_lacks(clock: FakeClock, gpu: FakeGpu) -> None:
    """A laptop's card that tells neither temperature nor limit tells the rest."""
    gpu.refusals = {
        "nvmlDeviceGetTemperatureV": NOT_SUPPORTED,
        "nvmlDeviceGetTemperature": NOT_SUPPORTED,
        "nvmlDeviceGetEnforcedPowerLimit": NOT_SUPPORTED,
    }
    status = make_device(clock).status()
    assert (status.power_w, status.clock_mhz) == (300.0, 1980)
    assert (status.temperature_c, status.power_limit_w) == (None, None)


def test_a_status_of_a_lost_card_is_an_error(clock: FakeClock, gpu: FakeGpu) -> None:
    """A card that fell off the bus raises DeviceLost."""
    device = make_device(clock)
    _ = device.power_source
    gpu.lost_from_s = clock.monotonic_s()
    with pytest.raises(DeviceLost):
        device.status()


def test_capabilities_are_of_energy_of_everything_else_and_of_the_knobs(clock: FakeClock) -> None:
    """Whatever was asked is listed once, with what came of it."""
    names = [capability.name for capability in make_device(clock).capabilities()]
    assert names[0] == "NVML total energy counter"
    assert {"SM clock", "temperature", "clock events", "power limit", "persistence mode"} <= set(names)
    assert names[-2:] == ["SM clock cap", "power cap"]
    assert len(set(names)) == len(names)


def test_clock_and_limit_can_be_capped(clock: FakeClock, gpu: FakeGpu) -> None:
    """The SM clock takes the supported values, the limit any watt of its range, and the memory clock is no knob."""
    assert list(make_device(clock).settables()) == [
        Settable(name=SM_CLOCK_CAP, values=gpu.clocks_mhz),
        Settable(name=POWER_CAP, values=(200, 700), is_range=True),
    ]


def test_a_virtual_gpu_is_shared_and_has_no_knobs(clock: FakeClock, gpu: FakeGpu) -> None:
    """A guest's share of a card has the power of the whole card and nothing of its own to set."""
    gpu.virtualization = pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    device = make_device(clock)
    assert measure(device, clock).notes == (Note.VIRTUAL_GPU, Note.WHOLE_GPU_SHARED)
    assert list(device.settables()) == []
    assert "vGPU" in capability_of(device, "SM clock cap").reason


def test_a_reading_has_the_cards_conditions(clock: FakeClock, gpu: FakeGpu) -> None:
    """Under a cap that holds the reading is valid, and its conditions show the capped clock."""
    gpu.locked = (210, 1200)
    reading = measure(make_device(clock), clock, settings=DeviceSettings(sm_clock_cap_mhz=1200))
    (conditions,) = reading.conditions
    assert (reading.reasons, conditions.device_uuid, conditions.mean_clock_mhz) == ((), FIRST_UUID, 1200)


def test_a_cap_between_two_clocks_is_judged_by_the_lower(clock: FakeClock, gpu: FakeGpu) -> None:
    """A cap of 1000 MHz on a card that has 990 and 1005 is held by 990."""
    gpu.clocks_mhz = (210, 990, 1005, 1980)
    gpu.locked = (210, 990)
    assert measure(make_device(clock), clock, settings=DeviceSettings(sm_clock_cap_mhz=1000)).is_valid


def test_a_foreign_process_on_the_card_is_a_reason(clock: FakeClock, gpu: FakeGpu, proc: Path) -> None:
    """The engine alone is fine; a stranger who computes for a moment invalidates the window."""
    gpu.compute_pids = (ENGINE, os.getpid())
    device = make_device(clock, proc=proc)
    assert measure(device, clock).is_valid
    now_s = clock.monotonic_s()
    gpu.at(now_s + 10.0, lambda: setattr(gpu, "compute_pids", (ENGINE, STRANGER)))
    gpu.at(now_s + 12.0, lambda: setattr(gpu, "compute_pids", (ENGINE,)))
    assert measure(device, clock).reasons == (Reason.FOREIGN_GPU_PROCESS,)


def test_an_observer_without_an_engine_judges_nobody(clock: FakeClock, gpu: FakeGpu, proc: Path) -> None:
    """A meter without pids cannot tell strangers from an engine."""
    gpu.compute_pids = (STRANGER,)
    meter = make_device(clock, proc=proc).meter([])
    meter.start()
    clock.advance(30.0)
    assert meter.stop().is_valid


def test_an_engine_on_a_second_card_needs_both_measured(
    clock: FakeClock, gpu: FakeGpu, library: FakeNvml, proc: Path
) -> None:
    """One card's energy is not that of an engine on two, unless the other is measured beside it."""
    gpu.compute_pids = (ENGINE,)
    second = FakeGpu(clock=clock, uuid=SECOND_UUID, pci_id="00000000:2A:00.0", compute_pids=(ENGINE,))
    library.gpus.append(second)
    device = make_device(clock, proc=proc)
    assert measure(device, clock).reasons == (Reason.GPU_COUNT_MISMATCH,)
    assert measure(device.beside([FIRST_UUID, SECOND_UUID]), clock).is_valid


def test_a_gpu_without_any_source_refuses_a_meter(clock: FakeClock, gpu: FakeGpu) -> None:
    """Where neither energy nor power can be read, no meter is opened; the clocks can still be looked at."""
    gpu.refusals = {COUNTER_CALL: NOT_SUPPORTED, POWER_CALL: NOT_SUPPORTED}
    gpu.fields = {}
    device = make_device(clock)
    assert device.power_source is None
    with pytest.raises(NotSupported, match="neither energy nor power"):
        device.meter([])
    assert (device.status().power_w, device.status().clock_mhz) == (None, 1980)


def test_a_limit_that_somebody_else_changes_is_noticed(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-28: a limit set anew in mid-window is read back within a second, though it is as before at the end."""
    device = make_device(clock)
    _ = device.power_source
    now_s = clock.monotonic_s()
    gpu.at(now_s + 10.0, lambda: setattr(gpu, "limit_mw", 500_000))
    gpu.at(now_s + 12.0, lambda: setattr(gpu, "limit_mw", 700_000))
    assert measure(device, clock).reasons == (Reason.EXTERNAL_CHANGE,)


def test_a_clock_that_somebody_else_unlocks_is_noticed(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-28: a lock has no read-back, but a clock above the cap for a tenth of the window shows."""
    gpu.locked = (210, 1200)
    device = make_device(clock)
    _ = device.power_source
    gpu.at(clock.monotonic_s() + 27.0, lambda: setattr(gpu, "locked", None))
    reading = measure(device, clock, settings=DeviceSettings(sm_clock_cap_mhz=1200))
    assert reading.reasons == (Reason.CLOCK_NOT_HELD,)


def test_a_lower_limit_in_force_is_told(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-29: a limit set out of band below the one that was set is limit_overridden."""
    gpu.limit_mw, gpu.enforced_mw = 500_000, 400_000
    reading = measure(make_device(clock), clock, settings=DeviceSettings(power_cap_w=500))
    assert reading.reasons == (Reason.LIMIT_OVERRIDDEN,)
    assert reading.conditions[0].power_limit_w == 400.0


def test_lost_persistence_is_noticed(clock: FakeClock, gpu: FakeGpu) -> None:
    """Persistence mode going off in mid-window is a reason: the next unload of the driver takes our settings."""
    device = make_device(clock)
    _ = device.power_source
    gpu.at(clock.monotonic_s() + 10.0, lambda: setattr(gpu, "is_persistent", False))
    assert measure(device, clock).reasons == (Reason.PERSISTENCE_LOST,)


@pytest.mark.parametrize(("seconds", "reasons"), [(0.1, ()), (3.0, (Reason.HW_THERMAL,))])
def test_heat_counts_when_it_lasts(clock: FakeClock, gpu: FakeGpu, seconds: float, reasons: tuple[str, ...]) -> None:
    """A thermal slowdown in more than 1 % of the samples invalidates the window; a moment of it does not."""
    device = make_device(clock)
    _ = device.power_source
    hot_s = clock.monotonic_s() + 10.0
    gpu.event_bits = lambda now_s: 0x40 if hot_s < now_s <= hot_s + seconds else 0
    reading = measure(device, clock)
    assert reasons == reading.reasons
    assert [event for event, _share in reading.conditions[0].event_shares] == ["hw_thermal"]
