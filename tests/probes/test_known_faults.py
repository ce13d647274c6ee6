"""Faults that other tools had with energy and devices, each by its number, on the inputs that showed them."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from probes.cpu.paths import HostPaths
from probes.detect import Host, diagnose, find_device, list_devices
from probes.device import Device, DeviceKind, Method, Reading
from probes.errors import NotSupported, UnknownDevice
from probes.metering.gpu_meter import AVERAGE_RISE_S
from probes.metering.group import DeviceGroup
from probes.metering.integral import integrate_run
from probes.metering.sampler import Run, Sample
from probes.nvidia.gpu import GpuDevice
from probes.nvidia.nvml import Nvml
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_gpu import NOT_SUPPORTED, FakeGpu, Field
from tests.probes.fake_nvml import FakeNvml, install
from tests.probes.fake_sensors import SteppedPower, average_sensor
from tests.probes.scripted_card import AVERAGED, POWER, make_gpu_meter

COUNTER_CALL = "nvmlDeviceGetTotalEnergyConsumption"
POWER_CALL = "nvmlDeviceGetPowerUsage"
FIELDS_CALL = "nvmlDeviceGetFieldValues"
NOT_READY = pynvml.NVML_ERROR_NOT_READY
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


def make_gpus(clock: FakeClock, *powers_w: float) -> list[FakeGpu]:
    """So many cards in a row, told apart by their power."""
    return [
        FakeGpu(
            clock=clock,
            uuid=f"GPU-{number:x}{number:x}aa0000-0000-0000-0000-00000000000{number}",
            pci_id=f"00000000:{number + 1:02X}:00.0",
            power_mw=power_w * 1000,
        ).with_instant_power()
        for number, power_w in enumerate(powers_w)
    ]


def make_device(clock: FakeClock, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> GpuDevice:
    install(monkeypatch, FakeNvml(gpu))
    nvml = Nvml()
    (card,) = nvml.cards()
    return GpuDevice(nvml, card, clock=clock)


def measure(device: Device, clock: FakeClock, seconds: float = 30.0) -> Reading:
    meter = device.meter([])
    meter.start()
    clock.advance(seconds)
    return meter.stop()


def test_a_card_that_gives_power_but_no_energy(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """BUG-45 (a): power is integrated, the source is labelled, and the counter's absence is said once, with reason."""
    (gpu,) = make_gpus(clock, 250.0)
    gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    device = make_device(clock, gpu, monkeypatch)
    reading = measure(device, clock)
    assert (reading.method, reading.is_valid) == (Method.INTEGRATED, True)
    assert pytest.approx(250.0 * 30) == reading.energy_j
    told = [capability for capability in device.capabilities() if "energy counter" in capability.name]
    assert [(capability.is_available, "not supported" in capability.reason) for capability in told] == [(False, True)]


def test_a_card_that_supports_nothing(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """BUG-45 (b): a Jetson that starts NVML and then supports nothing is listed, without a source and without 0 J."""
    (gpu,) = make_gpus(clock, 10.0)
    gpu.fields = {}
    gpu.refusals = dict.fromkeys(
        (
            COUNTER_CALL,
            POWER_CALL,
            FIELDS_CALL,
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetTemperatureV",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetPowerManagementLimitConstraints",
            "nvmlDeviceGetSupportedMemoryClocks",
            "nvmlDeviceGetPersistenceMode",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetVbiosVersion",
            "nvmlDeviceGetMigMode",
        ),
        NOT_SUPPORTED,
    )
    device = make_device(clock, gpu, monkeypatch)
    assert device.power_source is None
    assert list(device.settables()) == []
    assert not any(capability.is_available for capability in device.capabilities())
    assert device.status().power_w is None
    with pytest.raises(NotSupported, match="neither energy nor power"):
        device.meter([])


@pytest.mark.parametrize("has_counter", [True, False])
def test_a_driver_that_is_not_ready_at_first(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, has_counter: bool
) -> None:
    """BUG-45 (c): the first answer "not ready" is asked again and does not cost the source for good."""
    (gpu,) = make_gpus(clock, 250.0)
    answers = dict.fromkeys((COUNTER_CALL, FIELDS_CALL, POWER_CALL), 1)

    def once_not_ready(call: str) -> Callable[[], int]:
        def refusal() -> int:
            left, answers[call] = answers[call], 0
            return NOT_READY if left else 0

        return refusal

    gpu.refusals = {call: once_not_ready(call) for call in answers}
    if not has_counter:
        gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    reading = measure(make_device(clock, gpu, monkeypatch), clock)
    assert reading.method is (Method.COUNTER if has_counter else Method.INTEGRATED)
    assert pytest.approx(250.0) == reading.mean_power_w


def test_a_machine_without_the_library(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """BUG-45 (d): without NVML there are no GPUs and no crash, and the reason is told."""
    install(monkeypatch, None)
    host = Host(nvml=Nvml(), clock=clock, environ={}, paths=HostPaths())
    assert [device.info.kind for device in list_devices(host)] == [DeviceKind.CPU]
    (told,) = [capability for capability in diagnose(host) if capability.name == "NVML"]
    assert (told.is_available, "not found" in told.reason) == (False, True)


@pytest.mark.parametrize(("outage_s", "reasons"), [(2.0, ()), (5.0, (Reason.SAMPLING_GAP,))])
def test_power_that_fails_in_the_middle(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, outage_s: float, reasons: tuple[str, ...]
) -> None:
    """BUG-45 (e): "unknown error" for two seconds is bridged; for longer there is no energy, and never 0 J."""
    (gpu,) = make_gpus(clock, 250.0)
    gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    device = make_device(clock, gpu, monkeypatch)
    _ = device.power_source
    fails_s = clock.monotonic_s() + 10.0
    gpu.refusals[FIELDS_CALL] = lambda: UNKNOWN if fails_s < clock.monotonic_s() < fails_s + outage_s else 0
    reading = measure(device, clock)
    assert reasons == reading.reasons
    assert (reading.energy_j is None) is bool(reasons)
    assert reading.mean_power_w == (None if reasons else pytest.approx(250.0))
    (note,) = reading.notes
    assert pytest.approx(outage_s / 30, abs=0.011) == float(note.removeprefix(f"{Note.READINGS_REJECTED}:"))


@pytest.mark.parametrize(
    ("visible", "powers_w"),
    [
        ("2,3", [300.0, 400.0]),
        ("3,2", [400.0, 300.0]),
        ("GPU-11aa", [200.0]),
        ("", []),
        ("-1", []),
        ("0,7", [100.0]),
        (None, [100.0, 200.0, 300.0, 400.0]),
    ],
)
def test_the_measured_card_is_the_one_the_engine_uses(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, visible: str | None, powers_w: list[float]
) -> None:
    """BUG-46: the n-th device is the card that CUDA calls so, and its reading keeps that card's UUID."""
    gpus = make_gpus(clock, 100.0, 200.0, 300.0, 400.0)
    install(monkeypatch, FakeNvml(*gpus))
    environ = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
    devices = [
        device
        for device in list_devices(Host(nvml=Nvml(), clock=clock, environ=environ))
        if device.info.kind is DeviceKind.GPU
    ]
    readings = [measure(device, clock) for device in devices]
    assert [pytest.approx(power_w) for power_w in powers_w] == [reading.mean_power_w for reading in readings]
    uuid_by_power = {100.0 * (number + 1): gpu.uuid for number, gpu in enumerate(gpus)}
    assert [(uuid_by_power[power_w],) for power_w in powers_w] == [reading.device_uuids for reading in readings]


def test_nvmls_own_order_does_not_matter(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """BUG-46: where NVML counts the cards in another order than the bus, `cuda:0` is the first on the bus."""
    gpus = make_gpus(clock, 100.0, 200.0, 300.0, 400.0)
    install(monkeypatch, FakeNvml(*reversed(gpus)))
    devices = list_devices(Host(nvml=Nvml(), clock=clock, environ={}))
    assert pytest.approx(100.0) == measure(find_device("cuda:0", devices), clock).mean_power_w


def test_an_external_servers_card_is_found_by_name(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """BUG-46: a card is found by its UUID, and one that CUDA does not show is refused with what there is."""
    gpus = make_gpus(clock, 100.0, 200.0, 300.0, 400.0)
    install(monkeypatch, FakeNvml(*gpus))
    devices = list_devices(Host(nvml=Nvml(), clock=clock, environ={"CUDA_VISIBLE_DEVICES": "2,3"}))
    found = find_device(gpus[2].uuid, devices)
    assert pytest.approx(300.0) == measure(found, clock).mean_power_w
    with pytest.raises(UnknownDevice, match=gpus[3].uuid):
        find_device(gpus[0].uuid, devices)


@pytest.mark.parametrize("visible", ["MIG-aaaa", "MIG-aaaa,MIG-bbbb"])
def test_slices_are_the_whole_card_counted_once(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    """BUG-47: one slice or both named, there is one device, with the whole card's power, labelled, and no knobs."""
    (gpu,) = make_gpus(clock, 350.0)
    gpu.is_mig, gpu.slices = True, ("MIG-aaaa", "MIG-bbbb")
    install(monkeypatch, FakeNvml(gpu))
    host = Host(nvml=Nvml(), clock=clock, environ={"CUDA_VISIBLE_DEVICES": visible})
    (device,) = [device for device in list_devices(host) if device.info.kind is DeviceKind.GPU]
    reading = measure(device, clock)
    assert pytest.approx(350.0) == reading.mean_power_w
    assert (reading.notes, reading.device_uuids) == ((Note.WHOLE_GPU_SHARED,), (gpu.uuid,))
    assert list(device.settables()) == []
    with pytest.raises(UnknownDevice, match="counted once"):
        DeviceGroup([device, device], clock=clock)


def burst() -> SteppedPower:
    """60 W, 300 W for two seconds, 60 W: 600 J."""
    return SteppedPower(steps=((0.0, 60.0), (1010.0, 300.0), (1012.0, 60.0)))


def test_trailing_averages_of_a_short_burst_are_not_believed(clock: FakeClock) -> None:
    """BUG-50: averages over the burst would give 480 J for 600 J; so short a window is refused instead."""
    average = average_sensor(burst())
    meter = make_gpu_meter(clock, None, average.power_w, source=AVERAGED)
    clock.advance(10.0)
    meter.start()
    clock.advance(2.0)
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (Reason.WINDOW_TOO_SHORT,))


@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_a_counter_sees_a_short_burst_as_it_was(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """BUG-50: counted from step to step two seconds have their 600 J; 0.3 s are too short to say."""
    (gpu,) = make_gpus(clock, 60.0)
    load = burst()
    gpu.power_mw = lambda now_s: load.power_w(now_s) * 1000
    average = average_sensor(load)
    gpu.fields = {(185, 0): lambda now_s: Field(value=round(average.power_w(now_s) * 1000))}
    device = make_device(clock, gpu, monkeypatch)
    _ = device.power_source
    clock.advance(1009.95 - clock.monotonic_s())
    reading = measure(device, clock, seconds - 0.06)
    if seconds < 1.0:
        assert (reading.energy_j, reading.reasons) == (None, (Reason.WINDOW_TOO_SHORT,))
    else:
        assert pytest.approx(600.0, rel=0.01) == reading.energy_j


def test_averages_over_a_long_window_leave_out_what_was_before(clock: FakeClock) -> None:
    """BUG-50: thirty steady seconds after idling have their own power, though averages still rise when they begin."""
    average = average_sensor(SteppedPower(steps=((0.0, 60.0), (1010.0, 300.0))))
    meter = make_gpu_meter(clock, None, average.power_w, source=AVERAGED)
    clock.advance(10.0)
    meter.start()
    clock.advance(30.0)
    reading = meter.stop()
    assert pytest.approx(300.0) == reading.mean_power_w
    assert pytest.approx(30.0 - AVERAGE_RISE_S) == reading.duration_s
    assert reading.notes == (Note.AVERAGED_POWER,)


def test_a_missing_reading_and_two_out_of_order_do_no_harm() -> None:
    """BUG-50: readings at 10 Hz of which one is not there and two came in the wrong order give the same energy."""
    samples = [Sample(time_s=i / 10, value=100.0 + i) for i in range(51)]
    samples[20], samples[21] = samples[21], samples[20]
    del samples[33]
    run = Run(opening=samples[0], closing=samples[-1], samples=tuple(samples), failures=(), has_died=False)
    assert pytest.approx(625.0) == integrate_run(run, POWER, 0.0, 5.0).energy_j
