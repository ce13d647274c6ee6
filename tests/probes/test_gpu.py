"""A GPU as a device: sources found by asking."""

from __future__ import annotations

import pytest

from probes.device import Method, Reading, Scope
from probes.errors import NotSupported
from probes.gpu import GpuDevice
from probes.nvml import Nvml
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FIRST_UUID, NOT_SUPPORTED, FakeGpu, FakeNvml, Field, install

COUNTER_CALL = "nvmlDeviceGetTotalEnergyConsumption"
POWER_CALL = "nvmlDeviceGetPowerUsage"


@pytest.fixture
def gpu(clock: FakeClock) -> FakeGpu:
    return FakeGpu(clock=clock).with_instant_power()


@pytest.fixture(autouse=True)
def library(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    library = FakeNvml(gpu)
    install(monkeypatch, library)
    return library


def make_device(clock: FakeClock, *, is_slice: bool = False) -> GpuDevice:
    nvml = Nvml()
    (card,) = nvml.cards()
    return GpuDevice(nvml, card, clock=clock, cuda_ordinal=0, is_slice=is_slice)


def measure(device: GpuDevice, clock: FakeClock, seconds: float = 30.0) -> Reading:
    meter = device.meter([])
    meter.start()
    clock.advance(seconds)
    return meter.stop()


def method_of(device: GpuDevice) -> Method:
    assert device.power_source is not None
    return device.power_source.method


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
    """A counter that rises is used, checked against instantaneous power, and agrees."""
    device = make_device(clock)
    reading = measure(device, clock)
    assert (reading.scope, reading.method) == (Scope.GPU, Method.COUNTER)
    assert pytest.approx(9000.0) == reading.energy_j
    assert (reading.is_valid, reading.notes) == (True, ())
    assert not reading.is_estimate


def test_a_counter_that_stands_still_while_idle_is_still_taken(clock: FakeClock, gpu: FakeGpu) -> None:
    """The call being supported is enough; that it did not move is said in the capability."""
    gpu.energy_mj = lambda _now_s: 77
    device = make_device(clock)
    assert Method.COUNTER is method_of(device)
    assert "stands still" in device.capabilities()[0].reason


def test_without_a_counter_instant_power_is_integrated(clock: FakeClock, gpu: FakeGpu) -> None:
    """A GPU before Volta, a laptop or a guest without the counter is integrated from field 186, never 0 J."""
    gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    reading = measure(make_device(clock), clock)
    assert Method.INTEGRATED is reading.method
    assert pytest.approx(9000.0) == reading.energy_j
    assert reading.is_valid


def test_without_instant_power_the_average_is_used_and_labelled(clock: FakeClock, gpu: FakeGpu) -> None:
    """Field 185 stands in for 186 under a method and a note of its own."""
    gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    gpu.fields = {(185, 0): lambda _now_s: Field(value=300_000)}
    reading = measure(make_device(clock), clock)
    assert (reading.method, reading.notes) == (Method.INTEGRATED_AVERAGE, (Note.AVERAGED_POWER,))
    assert pytest.approx(9000.0) == reading.energy_j


@pytest.mark.parametrize(("architecture", "method"), [(6, Method.INTEGRATED), (7, Method.INTEGRATED_AVERAGE)])
def test_plain_power_is_last_and_an_average_since_ampere(
    clock: FakeClock, gpu: FakeGpu, architecture: int, method: Method
) -> None:
    """Without fields the plain call is integrated, labelled by what it means on that generation."""
    gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    gpu.fields, gpu.architecture = {}, architecture
    assert method is method_of(make_device(clock))


def test_zero_power_is_no_source(clock: FakeClock, gpu: FakeGpu) -> None:
    """A field that reads 0 mW is passed over for the next."""
    gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    gpu.fields = {(186, 0): lambda _now_s: Field(value=0)}
    device = make_device(clock)
    assert device.power_source is not None
    assert device.power_source.detail == "NVML power usage"


def test_a_gpu_without_any_source_has_none(clock: FakeClock, gpu: FakeGpu) -> None:
    """Where nothing can be read the source is None, a meter is refused, and each candidate has its reason."""
    gpu.refusals = {COUNTER_CALL: NOT_SUPPORTED, POWER_CALL: NOT_SUPPORTED}
    gpu.fields = {}
    device = make_device(clock)
    assert device.power_source is None
    assert not any(capability.is_available for capability in device.capabilities())
    assert all("not supported by this GPU" in capability.reason for capability in device.capabilities())
    with pytest.raises(NotSupported, match="neither energy nor power"):
        device.meter([])


def test_averages_do_not_check_the_counter(clock: FakeClock, gpu: FakeGpu) -> None:
    """A trailing average lags behind, so it is no judge of a counter."""
    gpu.fields = {(185, 0): lambda _now_s: Field(value=500_000)}
    gpu.power_usage_mw = lambda _now_s: 500_000
    assert measure(make_device(clock), clock).is_valid


def test_absurd_power_does_not_pass(clock: FakeClock, gpu: FakeGpu) -> None:
    """More than 1 % of readings above 1.5 times the highest limit make the window invalid."""
    gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    gpu.fields[(186, 0)] = lambda now_s: Field(value=3_700_000 if int(now_s) % 10 == 5 else 300_000)
    reading = measure(make_device(clock), clock)
    assert reading.reasons == (Reason.IMPLAUSIBLE_READING,)
    assert pytest.approx(9000.0) == reading.energy_j


def test_a_lost_gpu_makes_the_window_invalid(clock: FakeClock, gpu: FakeGpu) -> None:
    """A GPU that falls off the bus in mid-window gives None and device_lost, not the energy so far."""
    meter = make_device(clock).meter([])
    meter.start()
    clock.advance(10.0)
    gpu.refusals = {COUNTER_CALL: 15, POWER_CALL: 15, "nvmlDeviceGetFieldValues": 15}
    clock.advance(10.0)
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, ("device_lost",))


@pytest.mark.parametrize(("is_mig", "is_slice"), [(True, False), (False, True)])
def test_a_sliced_card_is_shared(clock: FakeClock, gpu: FakeGpu, is_mig: bool, is_slice: bool) -> None:
    """Power of a MIG slice cannot be measured: the figure is of the whole card and says so."""
    gpu.is_mig = is_mig
    assert measure(make_device(clock, is_slice=is_slice), clock).notes == (Note.WHOLE_GPU_SHARED,)


def test_a_gpu_without_mig_is_not_shared(clock: FakeClock, gpu: FakeGpu) -> None:
    """A driver that refuses the MIG question means no MIG."""
    gpu.refusals["nvmlDeviceGetMigMode"] = NOT_SUPPORTED
    assert measure(make_device(clock), clock).notes == ()


def test_a_superchip_counts_its_module(clock: FakeClock, gpu: FakeGpu) -> None:
    """On GH200 the counter is of the module, labelled so, and checked against the module's power only."""
    gpu.name, gpu.power_mw = "NVIDIA GH200 480GB", 1_200_000
    gpu.fields = {
        (186, 1): lambda _now_s: Field(value=1_200_000),
        (186, 0): lambda _now_s: Field(value=400_000),
    }
    reading = measure(make_device(clock), clock)
    assert (reading.scope, reading.is_valid) == (Scope.MODULE, True)
    assert pytest.approx(36_000.0) == reading.energy_j


def test_a_superchip_without_module_power_is_not_checked_against_the_gpu(clock: FakeClock, gpu: FakeGpu) -> None:
    """Figures of different scope are never compared."""
    gpu.name, gpu.power_mw = "NVIDIA GH200 480GB", 1_200_000
    gpu.fields = {(186, 0): lambda _now_s: Field(value=400_000)}
    assert measure(make_device(clock), clock).is_valid


def test_probing_happens_once(clock: FakeClock, library: FakeNvml) -> None:
    """Asking for the source again does not wait for the counter again."""
    device = make_device(clock)
    _ = device.power_source
    before_s = clock.monotonic_s()
    _ = device.power_source, device.capabilities()
    assert before_s == clock.monotonic_s()
