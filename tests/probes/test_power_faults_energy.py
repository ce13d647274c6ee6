"""Faults of a GPU's energy and power readings, each by its number, through the driver's own bindings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.device import Method, Reading, Scope
from probes.errors import NotSupported
from probes.metering.group import DeviceGroup
from probes.nvidia.gpu import GpuDevice
from probes.nvidia.nvml import Nvml
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_gpu import NOT_SUPPORTED, SECOND_UUID, FakeGpu, Field
from tests.probes.fake_host import FakeProc
from tests.probes.fake_nvml import FakeNvml, install
from tests.probes.fake_sensors import SteppedPower, average_sensor

COUNTER_CALL = "nvmlDeviceGetTotalEnergyConsumption"
POWER_CALL = "nvmlDeviceGetPowerUsage"
ENGINE, STRANGER = 100, 200


@pytest.fixture
def gpu(clock: FakeClock) -> FakeGpu:
    """300 W, with a counter in steps of 100 ms and instantaneous power."""
    return FakeGpu(clock=clock).with_instant_power()


@pytest.fixture(autouse=True)
def library(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    library = FakeNvml(gpu)
    install(monkeypatch, library)
    return library


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    fake = FakeProc(tmp_path / "proc")
    for pid in (os.getpid(), ENGINE, STRANGER):
        fake.write_process(pid)
    return fake.root


def make_devices(clock: FakeClock, proc: Path = Path("/proc")) -> list[GpuDevice]:
    nvml = Nvml()
    return [GpuDevice(nvml, card, clock=clock, proc=proc) for card in nvml.cards()]


def make_device(clock: FakeClock) -> GpuDevice:
    return make_devices(clock)[0]


def measure(device: GpuDevice | DeviceGroup, clock: FakeClock, seconds: float = 30.0) -> Reading:
    meter = device.meter([ENGINE])
    meter.start()
    clock.advance(seconds)
    return meter.stop()


def without_counter(gpu: FakeGpu) -> FakeGpu:
    gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    return gpu


@pytest.mark.parametrize(
    ("has_field", "architecture", "method"),
    [(True, 9, Method.INTEGRATED), (False, 6, Method.INTEGRATED), (False, 9, Method.INTEGRATED_AVERAGE)],
)
def test_without_a_counter_power_is_integrated(
    clock: FakeClock, gpu: FakeGpu, has_field: bool, architecture: int, method: Method
) -> None:
    """POWER-1: without a counter field 186 is integrated, else the plain reading, under its own label; never 0 J."""
    without_counter(gpu).architecture = architecture
    gpu.fields = gpu.fields if has_field else {}
    reading = measure(make_device(clock), clock)
    assert method is reading.method
    assert pytest.approx(300.0) == reading.mean_power_w
    assert reading.is_valid


def test_without_any_source_there_is_no_meter(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-2: with neither energy nor power the source is None, so that a job can be refused when it is made."""
    without_counter(gpu).refusals[POWER_CALL] = NOT_SUPPORTED
    gpu.fields = {}
    device = make_device(clock)
    assert device.power_source is None
    with pytest.raises(NotSupported, match="neither energy nor power"):
        device.meter([ENGINE])


@pytest.mark.parametrize("is_reload", [True, False])
def test_a_counter_that_decreases_is_a_reset(clock: FakeClock, gpu: FakeGpu, is_reload: bool) -> None:
    """POWER-3: a driver reload or a reset of the counter leaves no energy: no negative, no absolute, no partial sum."""
    device = make_device(clock)
    _ = device.power_source
    gpu.at(clock.monotonic_s() + 10.0, gpu.reload_driver if is_reload else gpu.reset_counter)
    reading = measure(device, clock)
    assert reading.energy_j is None
    assert reading.reasons == (Reason.COUNTER_RESET,)


def test_a_stuck_counter_is_replaced_by_power(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-4: a counter that stands still under load gives way to integrated power, and the reading says so."""
    gpu.energy_mj = lambda _now_s: 5_000_000
    reading = measure(make_device(clock), clock)
    assert (reading.method, reading.notes) == (Method.INTEGRATED, (Note.COUNTER_STUCK,))
    assert pytest.approx(300.0) == reading.mean_power_w
    assert reading.is_valid


def test_a_stuck_counter_without_power_is_a_reason(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-4: with nothing in its place the window has no energy, not 0 J."""
    gpu.energy_mj, gpu.fields = lambda _now_s: 5_000_000, {}
    reading = measure(make_device(clock), clock)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.COUNTER_STUCK,))


@pytest.mark.parametrize(("tick_s", "seconds"), [(0.1, 0.05), (0.1, 0.7), (0.02, 0.1)])
def test_a_window_below_ten_ticks_is_too_short(clock: FakeClock, gpu: FakeGpu, tick_s: float, seconds: float) -> None:
    """POWER-5: fewer than ten of this board's own steps are window_too_short, not 0 J."""
    gpu.tick_s = tick_s
    reading = measure(make_device(clock), clock, seconds)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.WINDOW_TOO_SHORT,))


def test_ten_ticks_of_a_fast_counter_are_enough(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-5: what is too short is decided by the measured step, not by an assumed one."""
    gpu.tick_s = 0.02
    reading = measure(make_device(clock), clock, 0.3)
    assert pytest.approx(300.0, rel=0.02) == reading.mean_power_w
    assert reading.is_valid


def test_repeated_readings_are_stale_not_zero(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-6: a counter that steps slower than it is looked at never draws 0 W, and keeps its last point."""
    gpu.tick_s, gpu.fields = 1.5, {}
    reading = measure(make_device(clock), clock, 60.0)
    assert len(reading.trace) >= 39
    assert all(200.0 < sample.power_w < 500.0 for sample in reading.trace)
    assert pytest.approx(300.0, rel=0.06) == reading.mean_power_w


def test_a_counter_past_32_bits_is_counted(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-7: crossing 2**32 millijoules in mid-window changes nothing."""
    gpu.base_mj = 2**32 - 3_000_000
    reading = measure(make_device(clock), clock)
    assert gpu.counted_mj() > 2**32
    assert pytest.approx(300.0) == reading.mean_power_w
    assert reading.is_valid


def test_an_entrys_own_code_decides(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-8: a field that failed inside a call that succeeded is absent, whatever its bytes, and the next is used."""
    without_counter(gpu).fields = {
        (186, 0): lambda _now_s: Field(value=499_120, code=NOT_SUPPORTED),
        (185, 0): lambda _now_s: Field(value=300_000),
    }
    reading = measure(make_device(clock), clock)
    assert reading.method is Method.INTEGRATED_AVERAGE
    assert pytest.approx(300.0) == reading.mean_power_w


@pytest.mark.parametrize("value_type", range(7))
def test_every_value_type_is_decoded(clock: FakeClock, gpu: FakeGpu, value_type: int) -> None:
    """POWER-9: double, the signed and the unsigned ones all give the same watts; 60 W fits the shortest."""
    without_counter(gpu).fields = {(186, 0): lambda _now_s: Field(value=60_000, value_type=value_type)}
    reading = measure(make_device(clock), clock)
    assert reading.method is Method.INTEGRATED
    assert pytest.approx(60.0) == reading.mean_power_w


def test_an_unknown_value_type_is_not_guessed(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-9: a type of a later driver makes the field absent, with the reason told."""
    without_counter(gpu).fields = {(186, 0): lambda _now_s: Field(value=60_000, value_type=42)}
    device = make_device(clock)
    assert device.power_source is not None
    assert device.power_source.method is Method.INTEGRATED_AVERAGE
    assert any("unknown value type 42" in capability.reason for capability in device.capabilities())


@pytest.mark.parametrize(("every_s", "reasons"), [(25.0, ()), (5.0, (Reason.IMPLAUSIBLE_READING,))])
def test_absurd_power_is_rejected_and_counted(
    clock: FakeClock, gpu: FakeGpu, every_s: float, reasons: tuple[str, ...]
) -> None:
    """POWER-10: above 1.5 times the highest limit a reading is left out; above 1 % of them the window is invalid."""

    def instant(now_s: float) -> Field:
        return Field(value=3_700_000 if 0.55 < (now_s - 1000.0) % every_s < 0.65 else 300_000)

    without_counter(gpu).fields = {(186, 0): instant}
    reading = measure(make_device(clock), clock)
    assert reasons == reading.reasons
    assert pytest.approx(300.0) == reading.mean_power_w
    assert any(note.startswith(f"{Note.READINGS_REJECTED}:") for note in reading.notes)


@pytest.mark.parametrize("milliwatts", [0, 2**32 - 1])
def test_no_value_is_no_source(clock: FakeClock, gpu: FakeGpu, milliwatts: int) -> None:
    """POWER-11, POWER-12: a field at 0 mW or with all bits set is passed over for the next."""
    without_counter(gpu).fields = {(186, 0): lambda _now_s: Field(value=milliwatts)}
    device = make_device(clock)
    assert device.power_source is not None
    assert device.power_source.detail == "NVML power usage"


@pytest.mark.parametrize("milliwatts", [0, 2**32 - 1])
def test_no_value_in_between_is_no_data(clock: FakeClock, gpu: FakeGpu, milliwatts: int) -> None:
    """POWER-11, POWER-12: once in a while the same values are left out, and do not pull the mean."""
    without_counter(gpu).fields = {
        (186, 0): lambda now_s: Field(value=milliwatts if int(now_s) % 15 == 3 else 300_000),
    }
    reading = measure(make_device(clock), clock)
    assert pytest.approx(300.0) == reading.mean_power_w
    assert reading.is_valid


def test_instant_power_goes_before_average_power(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-13: where fields 186 and 185 both answer, 186 is taken."""
    without_counter(gpu).fields[(185, 0)] = lambda _now_s: Field(value=100_000)
    reading = measure(make_device(clock), clock)
    assert reading.method is Method.INTEGRATED
    assert pytest.approx(300.0) == reading.mean_power_w


def test_average_power_is_trimmed_and_flagged(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-13: with averages alone what was before the window is trimmed off, and the reading says what it is."""
    load = SteppedPower(steps=((0.0, 60.0), (1010.0, 300.0)))
    average = average_sensor(load)
    without_counter(gpu).fields = {(185, 0): lambda now_s: Field(value=round(average.power_w(now_s) * 1000))}
    device = make_device(clock)
    _ = device.power_source
    clock.advance(1010.0 - clock.monotonic_s())
    reading = measure(device, clock)
    assert pytest.approx(1011.2) == reading.start_s
    assert pytest.approx(300.0) == reading.mean_power_w
    assert (reading.method, reading.notes) == (Method.INTEGRATED_AVERAGE, (Note.AVERAGED_POWER,))


def test_a_gap_in_power_is_not_bridged(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-14: more than three seconds without a reading are sampling_gap and no energy."""
    device = make_device(clock)
    assert without_counter(gpu)
    _ = device.power_source
    gap_s = clock.monotonic_s() + 10.0
    gpu.refusals["nvmlDeviceGetFieldValues"] = lambda: 999 if gap_s < clock.monotonic_s() < gap_s + 4.0 else 0
    reading = measure(device, clock)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.SAMPLING_GAP,))


def test_a_gap_in_the_looks_counts_although_the_counter_goes_on(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-14: for 25 s nobody saw clocks and events, so the counted energy is only for the record."""
    device = make_device(clock)
    _ = device.power_source
    hangs = [clock.monotonic_s() + 2.0]

    def answer_late() -> int:
        if hangs and clock.monotonic_s() > hangs[0]:
            hangs.clear()
            clock.jump(25.0)
        return 0

    gpu.refusals["nvmlDeviceGetCurrentClocksEventReasons"] = answer_late
    reading = measure(device, clock)
    assert hangs == []
    assert (reading.method, reading.reasons) == (Method.COUNTER, (Reason.SAMPLING_GAP,))
    assert pytest.approx(300.0, rel=0.01) == reading.mean_power_w


@pytest.mark.parametrize("has_counter", [True, False])
def test_a_dead_sampling_thread_is_noticed(clock: FakeClock, gpu: FakeGpu, has_counter: bool) -> None:
    """POWER-14: a crash of the thread makes the window invalid, not silently shorter."""
    if not has_counter:
        without_counter(gpu)
    device = make_device(clock)
    _ = device.power_source
    crash_s = clock.monotonic_s() + 10.0

    def instant(now_s: float) -> Field:
        if now_s > crash_s:
            raise ZeroDivisionError
        return Field(value=300_000)

    gpu.fields[(186, 0)] = instant
    reading = measure(device, clock)
    assert Reason.SAMPLER_DIED in reading.reasons
    assert not reading.is_valid


def test_a_window_that_power_does_not_reach_is_not_bracketed(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-15: without a reading at the end there is no energy, and nothing is extrapolated."""
    device = make_device(clock)
    without_counter(gpu)
    _ = device.power_source
    end_s = clock.monotonic_s() + 29.95
    gpu.refusals["nvmlDeviceGetFieldValues"] = lambda: 999 if clock.monotonic_s() > end_s else 0
    reading = measure(device, clock)
    assert (reading.energy_j, reading.reasons) == (None, ("probe_error", Reason.NOT_BRACKETED))


@pytest.mark.parametrize(("power_mw", "reasons"), [(312_000, ()), (330_000, (Reason.ENERGY_CROSSCHECK_FAILED,))])
def test_counter_and_integral_must_agree(
    clock: FakeClock, gpu: FakeGpu, power_mw: int, reasons: tuple[str, ...]
) -> None:
    """POWER-16: 4 % apart passes; 10 % apart is kept for the record, and invalid."""
    gpu.fields[(186, 0)] = lambda _now_s: Field(value=power_mw)
    reading = measure(make_device(clock), clock)
    assert pytest.approx(300.0) == reading.mean_power_w
    assert reasons == reading.reasons


def test_a_step_of_the_wall_clock_changes_nothing(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """POWER-17: a correction of the wall clock has no effect, since nobody looks at it."""
    monkeypatch.setattr("time.time", lambda: 1 / 0)
    assert measure(make_device(clock), clock).is_valid


def test_a_suspend_invalidates_the_window(clock: FakeClock) -> None:
    """POWER-17: boot time that runs ahead of monotonic time means that the machine slept."""
    meter = make_device(clock).meter([ENGINE])
    meter.start()
    clock.advance(15.0)
    clock.suspend(60.0)
    clock.advance(15.0)
    assert meter.stop().reasons == (Reason.SUSPENDED,)


@pytest.mark.parametrize("code", [15, 16])
@pytest.mark.parametrize("has_counter", [True, False])
def test_a_lost_gpu_fails_the_window(clock: FakeClock, gpu: FakeGpu, code: int, has_counter: bool) -> None:
    """POWER-18: a GPU that falls off the bus or needs a reset leaves None and device_lost, not the energy so far."""
    if not has_counter:
        without_counter(gpu)
    device = make_device(clock)
    _ = device.power_source
    lost_s = clock.monotonic_s() + 10.0

    def refuse() -> int:
        return code if clock.monotonic_s() > lost_s else 0

    for call in (COUNTER_CALL, POWER_CALL, "nvmlDeviceGetFieldValues"):
        if gpu.refusals.get(call) is None:
            gpu.refusals[call] = refuse
    reading = measure(device, clock)
    assert reading.energy_j is None
    assert reading.reasons[0] == "device_lost"


def test_one_lost_gpu_of_two_leaves_no_sum(clock: FakeClock, gpu: FakeGpu, library: FakeNvml, proc: Path) -> None:
    """POWER-19: with one of two cards gone the whole figure is invalid; never the sum of the rest."""
    second = FakeGpu(clock=clock, uuid=SECOND_UUID, pci_id="00000000:2A:00.0").with_instant_power()
    library.gpus.append(second)
    group = DeviceGroup(make_devices(clock, proc), clock=clock)
    _ = group.power_source
    second.lost_from_s = clock.monotonic_s() + 10.0
    reading = measure(group, clock)
    assert reading.energy_j is None
    assert Reason.GPU_COUNT_MISMATCH in reading.reasons


def test_an_engine_on_more_cards_than_are_measured_is_noticed(
    clock: FakeClock, gpu: FakeGpu, library: FakeNvml, proc: Path
) -> None:
    """POWER-19, POWER-20: the energy of one card is not that of an engine that computes on two."""
    gpu.compute_pids = (ENGINE,)
    library.gpus.append(
        FakeGpu(clock=clock, uuid=SECOND_UUID, pci_id="00000000:2A:00.0", compute_pids=(ENGINE, STRANGER))
    )
    assert measure(make_devices(clock, proc)[0], clock).reasons == (Reason.GPU_COUNT_MISMATCH,)


def test_cards_that_the_engine_does_not_use_are_left_out(
    clock: FakeClock, gpu: FakeGpu, library: FakeNvml, proc: Path
) -> None:
    """POWER-20: a neighbour's load on another card is neither counted nor held against the engine's."""
    gpu.compute_pids = (ENGINE,)
    neighbour = FakeGpu(clock=clock, uuid=SECOND_UUID, pci_id="00000000:2A:00.0", power_mw=600_000)
    neighbour.compute_pids = (STRANGER,)
    library.gpus.append(neighbour)
    reading = measure(make_devices(clock, proc)[0], clock)
    assert reading.is_valid is True
    assert pytest.approx(300.0) == reading.mean_power_w


def test_a_servers_cards_are_added_up(clock: FakeClock, gpu: FakeGpu, library: FakeNvml, proc: Path) -> None:
    """POWER-20: the energy of a server on two of three cards is that of both, over the stretch they have in common."""
    gpu.compute_pids = (ENGINE,)
    for number, power_mw in ((1, 200_000), (2, 600_000)):
        other = FakeGpu(clock=clock, uuid=f"{SECOND_UUID[:-1]}{number}", pci_id=f"00000000:2{number}:00.0")
        other.power_mw, other.tick_s = power_mw, 0.03
        other.compute_pids = (ENGINE,) if number == 1 else (STRANGER,)
        library.gpus.append(other)
    first, second, _third = make_devices(clock, proc)
    uuids = [device.info.uuid for device in (first, second)]
    reading = measure(DeviceGroup([device.beside(uuids) for device in (first, second)], clock=clock), clock)
    assert reading.reasons == ()
    assert tuple(uuids) == reading.device_uuids
    assert pytest.approx(500.0) == reading.mean_power_w
    assert [conditions.device_uuid for conditions in reading.conditions] == uuids


def test_a_superchip_counts_its_module(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-21: on GH200 the counter is of the module, labelled so, and checked against the module's power only."""
    gpu.name, gpu.power_mw = "NVIDIA GH200 480GB", 1_200_000
    gpu.fields = {
        (186, 1): lambda _now_s: Field(value=1_200_000),
        (186, 0): lambda _now_s: Field(value=400_000),
    }
    reading = measure(make_device(clock), clock)
    assert (reading.scope, reading.reasons, reading.notes) == (Scope.MODULE, (), ())
    assert pytest.approx(1200.0) == reading.mean_power_w


def test_slices_show_the_whole_card_and_say_so(clock: FakeClock, gpu: FakeGpu) -> None:
    """POWER-22: a slice's figure is the whole card's under the card's UUID, so that two can be told to be one."""
    gpu.is_mig = True
    readings = [measure(make_device(clock), clock) for _ in range(2)]
    assert [reading.notes for reading in readings] == [(Note.WHOLE_GPU_SHARED,)] * 2
    assert {reading.device_uuids for reading in readings} == {(gpu.uuid,)}
