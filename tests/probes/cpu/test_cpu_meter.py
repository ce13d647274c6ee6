"""Readings of a CPU whose clocks can be read and capped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.control.cpu_actuators import CpuClockCap
from probes.cpu.cpu_device import CpuDevice
from probes.cpu.cpu_estimate import CpuPowerModel
from probes.cpu.paths import HostPaths
from probes.device import Scope
from probes.settings import DeviceSettings
from probes.validity import Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_host import FakeProc, make_paths, write_policy, write_pstate, write_sensor, write_zone

ENGINE = 100


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostPaths:
    """A machine of two cores, on which an engine runs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    proc = FakeProc(tmp_path / "proc")
    proc.write_process(os.getpid())
    proc.write_process(ENGINE, ppid=os.getpid())
    return make_paths(tmp_path, proc)


@pytest.fixture(autouse=True)
def cap_file(paths: HostPaths) -> Path:
    """One policy for both cores, capped at 2 GHz."""
    write_pstate(paths.cpu)
    return write_policy(paths.cpu, cap_khz=2_000_000, current_khz=1_900_000)


def make_device(paths: HostPaths, clock: FakeClock) -> CpuDevice:
    return CpuDevice(paths=paths, model=CpuPowerModel(), clock=clock)


def test_conditions_are_those_of_the_window(paths: HostPaths, clock: FakeClock, cap_file: Path) -> None:
    """Clock and temperature are looked at twice a second, from start to stop."""
    write_sensor(paths.hwmon, 0, "coretemp", Package_id_0=50.0)
    device = make_device(paths, clock)
    meter = device.meter([ENGINE])
    meter.start()
    clock.advance(5.0)
    cap_file.with_name("scaling_cur_freq").write_text("1500000\n")
    clock.advance(5.0)
    (conditions,) = meter.stop().conditions
    assert conditions.device_uuid == device.info.uuid
    assert 20 <= conditions.num_samples <= 22
    assert (conditions.lowest_clock_mhz, conditions.highest_clock_mhz) == (1500.0, 1900.0)
    assert pytest.approx(1700.0, abs=20.0) == conditions.mean_clock_mhz
    assert (conditions.start_temperature_c, conditions.highest_temperature_c) == (50.0, 50.0)


@pytest.mark.parametrize("has_rapl", [True, False])
def test_a_cap_that_holds_is_valid(paths: HostPaths, clock: FakeClock, has_rapl: bool) -> None:
    """With the cap that was set in force throughout, nothing speaks against a reading of either source."""
    energy = write_zone(paths.powercap, "intel-rapl:0", "package-0", 1) if has_rapl else None
    meter = make_device(paths, clock).meter([ENGINE], settings=DeviceSettings(cpu_clock_cap_mhz=2000))
    meter.start()
    clock.advance(5.0)
    if energy:
        energy.write_text("400000001\n")
    clock.advance(5.0)
    reading = meter.stop()
    assert reading.reasons == ()
    assert (Scope.CPU_PACKAGE if has_rapl else Scope.CPU_SHARE) is reading.scope


def test_another_cap_than_the_one_set_is_an_external_change(paths: HostPaths, clock: FakeClock, cap_file: Path) -> None:
    """POWER-28: a cap lifted by somebody else before the window invalidates it, though it never changed in it."""
    CpuClockCap(paths, "CPU-1").set(1000)
    cap_file.write_text("2000000\n")
    meter = make_device(paths, clock).meter([ENGINE], settings=DeviceSettings(cpu_clock_cap_mhz=1000))
    meter.start()
    clock.advance(10.0)
    reading = meter.stop()
    assert reading.reasons == (Reason.EXTERNAL_CHANGE,)
    assert reading.energy_j is not None


def test_a_core_taken_offline_before_the_window_does_not_matter(paths: HostPaths, clock: FakeClock) -> None:
    """POWER-55: a policy that went with its cores since the device was opened is not missed in a later window."""
    gone = write_policy(paths.cpu, 1, cores="1")
    device = make_device(paths, clock)
    gone.with_name("affected_cpus").write_text("\n")
    gone.unlink()
    meter = device.meter([ENGINE])
    meter.start()
    clock.advance(10.0)
    assert meter.stop().reasons == ()


@pytest.mark.parametrize("settings", [DeviceSettings(), DeviceSettings(cpu_clock_cap_mhz=2000)])
@pytest.mark.parametrize("limit", ["policy", "max_perf_pct", "no_turbo"])
def test_a_cap_changed_in_the_window_is_an_external_change(
    paths: HostPaths, clock: FakeClock, cap_file: Path, settings: DeviceSettings, limit: str
) -> None:
    """POWER-28: a cap or a limit of intel_pstate that changes in the window invalidates it, set by us or not."""
    meter = make_device(paths, clock).meter([ENGINE], settings=settings)
    meter.start()
    clock.advance(5.0)
    if limit == "policy":
        cap_file.write_text("1800000\n")
    else:
        write_pstate(paths.cpu, **{limit: 70 if limit == "max_perf_pct" else 1})
    clock.advance(5.0)
    assert meter.stop().reasons == (Reason.EXTERNAL_CHANGE,)


def test_a_cap_that_cannot_be_read_back_does_not_count_as_held(
    paths: HostPaths, clock: FakeClock, cap_file: Path
) -> None:
    """A policy that is gone at stop cannot be vouched for."""
    meter = make_device(paths, clock).meter([ENGINE])
    meter.start()
    clock.advance(10.0)
    cap_file.unlink()
    assert Reason.EXTERNAL_CHANGE in meter.stop().reasons


def test_a_meter_that_never_started_says_so(paths: HostPaths, clock: FakeClock) -> None:
    """Stopping or closing without a start gives not_started and no conditions; closing twice is harmless."""
    meter = make_device(paths, clock).meter([ENGINE])
    reading = meter.stop()
    assert (reading.reasons, reading.conditions) == ((Reason.NOT_STARTED,), ())
    meter.start()
    meter.close()
    meter.close()
    assert meter.stop().reasons == (Reason.NOT_STARTED,)
