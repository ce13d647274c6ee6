"""Whether the fake driver keeps its word: its script is what `probes.nvidia.nvml` sees, at the instant it should."""

from __future__ import annotations

import pytest

from probes.errors import DeviceLost, NotPermitted, NotSupported, ProbeError
from probes.nvidia.nvml import Nvml
from probes.nvidia.nvml_values import PowerField
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FIRST_UUID, SECOND_UUID, FakeGpu, FakeNvml, install
from tests.probes.fake_sensors import ConstantPower, Counter, SquareWave, SteppedPower, average_sensor, duty_sensor

CEILING_W = 1050.0


@pytest.fixture
def gpu(clock: FakeClock) -> FakeGpu:
    return FakeGpu(clock=clock)


@pytest.fixture
def library(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    library = FakeNvml(gpu)
    install(monkeypatch, library)
    return library


@pytest.fixture
def nvml(library: FakeNvml) -> Nvml:
    return Nvml()


def test_the_counter_counts_each_power_for_its_time(nvml: Nvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """A change of power counts from its instant on, though nobody looked then."""
    before_mj = nvml.energy_mj(FIRST_UUID)
    gpu.at(clock.monotonic_s() + 4.0, lambda: setattr(gpu, "power_mw", 100_000))
    clock.advance(10.0)
    assert nvml.energy_mj(FIRST_UUID) - before_mj == 4 * 300_000 + 6 * 100_000


def test_the_counter_moves_in_ticks(nvml: Nvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """Within a tick it stands still; with each tick it moves by power times the tick."""
    seen = []
    for _ in range(5):
        seen.append(nvml.energy_mj(FIRST_UUID) - gpu.base_mj)
        clock.advance(0.05)
    assert seen == [0, 0, 30_000, 30_000, 60_000]


def test_power_may_follow_the_clock(nvml: Nvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """With power in proportion to the SM clock, a lock lowers the reading and what is counted from then on."""
    gpu.power_mw = lambda _now_s: 200.0 * gpu.present_sm_clock_mhz()
    before_mj = nvml.energy_mj(FIRST_UUID)
    clock.advance(1.0)
    nvml.set_sm_clock_range(FIRST_UUID, 210, 990)
    clock.advance(1.0)
    assert nvml.power_w(FIRST_UUID, ceiling_w=CEILING_W) == 198.0
    assert nvml.energy_mj(FIRST_UUID) - before_mj == 396_000 + 198_000


def test_another_actors_write_is_seen_from_its_instant(nvml: Nvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """A scripted change shows at its instant, not before, and not among our own writes."""
    nvml.set_sm_clock_range(FIRST_UUID, 210, 900)
    gpu.at(clock.monotonic_s() + 2.0, lambda: setattr(gpu, "limit_mw", 400_000))
    gpu.at(clock.monotonic_s() + 1.0, lambda: setattr(gpu, "locked", (210, 600)))
    seen = []
    for _ in range(3):
        seen.append((nvml.sm_clock_mhz(FIRST_UUID), nvml.power_limits(FIRST_UUID).enforced_w))
        clock.advance(1.0)
    assert seen == [(900, 700), (600, 700), (600, 400)]
    assert len(gpu.writes) == 1


def test_a_lock_that_has_no_effect_is_accepted(nvml: Nvml, gpu: FakeGpu) -> None:
    """The call succeeds and the clock stays."""
    gpu.is_lock_effective = False
    nvml.set_sm_clock_range(FIRST_UUID, 210, 900)
    assert (gpu.locked, nvml.sm_clock_mhz(FIRST_UUID)) == ((210, 900), 1980)


def test_a_lock_off_the_grid_is_rounded_down(nvml: Nvml) -> None:
    """A lock between two supported clocks gives the lower one."""
    nvml.set_sm_clock_range(FIRST_UUID, 210, 907)
    assert nvml.sm_clock_mhz(FIRST_UUID) == 900


def test_a_limit_out_of_band_is_in_force_over_what_is_set(nvml: Nvml, gpu: FakeGpu) -> None:
    """The set limit reads as set, the enforced one as the board's controller has it."""
    gpu.enforced_mw = 350_000
    nvml.set_power_limit_mw(FIRST_UUID, 500_000)
    limits = nvml.power_limits(FIRST_UUID)
    assert (limits.set_w, limits.enforced_w) == (500, 350)


def test_an_administrators_limit_is_found(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board of 700 W may have been set to 500 W before we came."""
    install(monkeypatch, FakeNvml(FakeGpu(clock=clock, limit_mw=500_000)))
    limits = Nvml().power_limits(FIRST_UUID)
    assert (limits.set_w, limits.default_mw, limits.highest_w) == (500, 700_000, 700)


def test_a_lost_gpu_answers_nothing(nvml: Nvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """From the instant it is lost, reads and writes fail and nothing is written."""
    gpu.lost_from_s = clock.monotonic_s() + 1.0
    nvml.energy_mj(FIRST_UUID)
    clock.advance(1.0)
    for call in (nvml.energy_mj, nvml.reset_sm_clock_range, nvml.power_limits):
        with pytest.raises(DeviceLost):
            call(FIRST_UUID)
    assert gpu.writes == []


def test_a_counter_reset_happens_at_its_instant(nvml: Nvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """After it the counter has only what was drawn since."""
    gpu.at(clock.monotonic_s() + 3.0, gpu.reset_counter)
    clock.advance(5.0)
    assert nvml.energy_mj(FIRST_UUID) == 2 * 300_000


def test_without_persistence_the_last_client_takes_the_settings_along(
    nvml: Nvml, gpu: FakeGpu, clock: FakeClock
) -> None:
    """Closing the last connection unloads the driver, and lock, limit and counter are as new."""
    gpu.is_persistent = False
    nvml.set_sm_clock_range(FIRST_UUID, 210, 900)
    nvml.set_power_limit_mw(FIRST_UUID, 500_000)
    nvml.close()
    clock.advance(1.0)
    assert (nvml.sm_clock_mhz(FIRST_UUID), nvml.power_limits(FIRST_UUID).set_w) == (1980, 700)
    assert nvml.energy_mj(FIRST_UUID) == 300_000


def test_another_client_keeps_the_driver_loaded(nvml: Nvml, gpu: FakeGpu) -> None:
    """While anyone holds a connection, closing ours changes nothing."""
    gpu.is_persistent = False
    other = Nvml()
    other.driver_version()
    nvml.set_power_limit_mw(FIRST_UUID, 500_000)
    nvml.close()
    assert other.power_limits(FIRST_UUID).set_w == 500


def test_with_persistence_settings_outlive_their_client(nvml: Nvml, gpu: FakeGpu) -> None:
    """What was set stays when its process goes."""
    nvml.set_sm_clock_range(FIRST_UUID, 210, 900)
    nvml.close()
    assert gpu.locked == (210, 900)


def test_a_refusal_may_come_and_go(nvml: Nvml, gpu: FakeGpu) -> None:
    """A function decides each time, and what was refused is journalled apart from what took effect."""
    codes = iter([4, 0])
    gpu.refusals["nvmlDeviceSetPowerManagementLimit"] = lambda: next(codes)
    with pytest.raises(NotPermitted):
        nvml.set_power_limit_mw(FIRST_UUID, 300_000)
    nvml.set_power_limit_mw(FIRST_UUID, 400_000)
    assert gpu.refused_writes == [("nvmlDeviceSetPowerManagementLimit", 300_000)]
    assert gpu.writes == [("nvmlDeviceSetPowerManagementLimit", 400_000)]


@pytest.mark.parametrize("name", ["nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v3"])
def test_a_refusal_may_name_the_call_with_or_without_its_version(nvml: Nvml, gpu: FakeGpu, name: str) -> None:
    """Either spelling meets the call that the bindings make."""
    gpu.refusals[name] = 4
    with pytest.raises(NotPermitted):
        nvml.cards()


def test_one_gpu_refuses_alone(nvml: Nvml, library: FakeNvml, clock: FakeClock) -> None:
    """Of two GPUs one takes the limit and the other does not."""
    refusing = FakeGpu(clock=clock, uuid=SECOND_UUID, refusals={"nvmlDeviceSetPowerManagementLimit": 4})
    library.gpus.append(refusing)
    nvml.set_power_limit_mw(FIRST_UUID, 500_000)
    with pytest.raises(NotPermitted):
        nvml.set_power_limit_mw(SECOND_UUID, 500_000)
    assert [gpu.limit_mw for gpu in library.gpus] == [500_000, 700_000]


def test_a_closed_connection_answers_nothing(nvml: Nvml, library: FakeNvml) -> None:
    """As with the real driver, a handle is of no use after the shutdown."""
    nvml.cards()
    library.num_shutdowns = library.num_inits
    with pytest.raises(ProbeError, match="not initialised"):
        nvml.sm_clock_mhz(FIRST_UUID)


def test_sensors_show_their_own_view_of_one_truth(nvml: Nvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """Half a second after a step field 186 is there, 185 half way, and the counter has the exact energy."""
    start_s = clock.monotonic_s()
    truth = SteppedPower(steps=((0.0, 100.0), (start_s + 2.0, 300.0)))
    gpu.with_sensors(instant=duty_sensor(truth), average=average_sensor(truth), counter=Counter(signal=truth))
    before_mj = nvml.energy_mj(FIRST_UUID)
    clock.advance(2.5)
    fields_w = [nvml.power_field_w(FIRST_UUID, field, ceiling_w=CEILING_W) for field in PowerField]
    assert fields_w == [200.0, 300.0]
    assert nvml.power_w(FIRST_UUID, ceiling_w=CEILING_W) == 200.0
    assert nvml.energy_mj(FIRST_UUID) - before_mj == 1000 * (2.0 * 100 + 0.5 * 300)


def test_sensors_without_a_counter_have_none(nvml: Nvml, gpu: FakeGpu) -> None:
    """A board without a counter says so, and 185 is not supported where nothing averages."""
    gpu.with_sensors(instant=ConstantPower(level_w=250.0))
    with pytest.raises(NotSupported):
        nvml.energy_mj(FIRST_UUID)
    with pytest.raises(NotSupported):
        nvml.power_field_w(FIRST_UUID, PowerField.AVERAGE, ceiling_w=CEILING_W)
    assert nvml.power_w(FIRST_UUID, ceiling_w=CEILING_W) == 250.0


def test_a_reset_reaches_a_counter_of_its_own(nvml: Nvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """Also a counter with its own signal begins anew."""
    wave = SquareWave(low_w=100.0, high_w=300.0, period_s=1.0)
    gpu.with_sensors(instant=wave, counter=Counter(signal=wave))
    nvml.energy_mj(FIRST_UUID)
    clock.advance(2.0)
    nvml.energy_mj(FIRST_UUID)
    gpu.reset_counter()
    clock.advance(1.0)
    assert nvml.energy_mj(FIRST_UUID) == 200_000


def test_temperature_and_events_may_change_with_time(nvml: Nvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """Functions of time are asked at each call."""
    start_s = clock.monotonic_s()
    gpu.temperature_c = lambda now_s: 40 + 2 * (now_s - start_s)
    gpu.event_bits = lambda now_s: 0x40 if now_s > start_s else 0
    before = nvml.temperature_c(FIRST_UUID), nvml.event_bits(FIRST_UUID)
    clock.advance(5.0)
    assert (before, nvml.temperature_c(FIRST_UUID), nvml.event_bits(FIRST_UUID)) == ((40, 0), 50, 0x40)
