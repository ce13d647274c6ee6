"""The CPU as a device, over fake kernel trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.cpu.cpu_device import CpuDevice
from probes.cpu.cpu_estimate import CpuPowerModel
from probes.cpu.paths import HostPaths
from probes.device import Device, Method
from probes.errors import DeviceLost
from probes.settings import CPU_CLOCK_CAP
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_host import (
    FakeProc,
    make_paths,
    write_own_group,
    write_policy,
    write_quota_v2,
    write_sensor,
    write_zone,
)

ENGINE = 100


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    """Two cores, of which the engine has used none so far."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    proc = FakeProc(tmp_path / "proc")
    proc.write_process(os.getpid())
    proc.write_process(ENGINE, ppid=os.getpid())
    return proc


@pytest.fixture
def paths(tmp_path: Path, proc: FakeProc) -> HostPaths:
    return make_paths(tmp_path, proc)


def make_device(paths: HostPaths, clock: FakeClock) -> CpuDevice:
    return CpuDevice(paths=paths, model=CpuPowerModel(), clock=clock)


def test_a_machine_without_anything_has_the_estimate_alone(paths: HostPaths, clock: FakeClock) -> None:
    """Without RAPL, clocks and sensors there is the estimate, nothing to set, and a reason for both."""
    device: Device = make_device(paths, clock)
    found = {capability.name: capability for capability in device.capabilities()}
    assert device.settables() == ()
    assert device.power_source is not None
    assert Method.ESTIMATE is device.power_source.method
    assert "is not there" in found["powercap RAPL"].reason
    assert not found[CPU_CLOCK_CAP].is_available
    assert "has no policies" in found[CPU_CLOCK_CAP].reason


def test_the_clock_cap_is_offered_where_there_is_a_tree(paths: HostPaths, clock: FakeClock) -> None:
    """With cpufreq the cap is settable, and its range is in the capabilities."""
    write_policy(paths.cpu)
    device = make_device(paths, clock)
    (settable,) = device.settables()
    assert (settable.name, settable.values) == (CPU_CLOCK_CAP, (800, 3600))
    assert device.capabilities()[-1].reason == "800 to 3600 MHz, 1 policies"


class TestStatus:
    """One look at the CPU."""

    def test_rapl_gives_the_mean_since_the_last_look(self, paths: HostPaths, clock: FakeClock) -> None:
        """The first look has no power, the second that of the time in between; RAPL knows energy only."""
        energy = write_zone(paths.powercap, "intel-rapl:0", "package-0", 1_000_000)
        device = make_device(paths, clock)
        assert device.status().power_w is None
        clock.advance(2.0)
        energy.write_text("201000000\n")
        assert device.status().power_w == 100.0

    def test_the_estimate_is_of_all_work_on_the_cores(self, paths: HostPaths, clock: FakeClock, proc: FakeProc) -> None:
        """With one of two cores busy, the model's power is halfway up; the source says estimate."""
        device = make_device(paths, clock)
        device.status()
        clock.advance(10.0)
        proc.work(10.0)
        assert pytest.approx(0.74 + 3.5) == device.status().power_w
        assert Method.ESTIMATE is device.power_source.method

    def test_clock_and_temperature_are_read_where_there_are_any(self, paths: HostPaths, clock: FakeClock) -> None:
        """The clock is the mean over our cores in MHz, the temperature the package's; without trees both are None."""
        bare = make_device(paths, clock).status()
        assert (bare.clock_mhz, bare.temperature_c) == (None, None)
        write_policy(paths.cpu, 0, cores="0", current_khz=3_000_000)
        write_policy(paths.cpu, 1, cores="1", current_khz=2_000_000)
        write_policy(paths.cpu, 2, cores="2", current_khz=800_000)
        write_sensor(paths.hwmon, 0, "k10temp", Tctl=55.0)
        status = make_device(paths, clock).status()
        assert (status.time_s, status.clock_mhz, status.temperature_c) == (clock.monotonic_s(), 2500.0, 55.0)

    def test_a_lost_package_is_device_lost(self, paths: HostPaths, clock: FakeClock) -> None:
        """When a counter is gone the look fails by name."""
        energy = write_zone(paths.powercap, "intel-rapl:0", "package-0", 1_000_000)
        device = make_device(paths, clock)
        energy.unlink()
        with pytest.raises(DeviceLost, match="energy_uj is gone"):
            device.status()

    def test_an_unreadable_counter_costs_the_power_alone(self, paths: HostPaths, clock: FakeClock) -> None:
        """Rubbish from the counter leaves power None and the clock told."""
        energy = write_zone(paths.powercap, "intel-rapl:0", "package-0", 1_000_000)
        write_policy(paths.cpu, current_khz=2_000_000)
        device = make_device(paths, clock)
        energy.write_text("")
        status = device.status()
        assert (status.power_w, status.clock_mhz) == (None, 2000.0)


class TestQuota:
    """A container that may use one and a half of two cores."""

    @pytest.fixture(autouse=True)
    def quota(self, paths: HostPaths) -> None:
        write_own_group(paths.proc, "0::/")
        write_quota_v2(paths.cgroup, "150000 100000")

    def test_it_is_in_the_details(self, paths: HostPaths, clock: FakeClock) -> None:
        """The device's cores are those it can use, a fraction included."""
        assert dict(make_device(paths, clock).info.details)["cores"] == "1.5"

    def test_only_usable_cores_idle(self, paths: HostPaths, clock: FakeClock) -> None:
        """The estimate charges the idle power of one and a half cores, and says so."""
        meter = make_device(paths, clock).meter([ENGINE])
        meter.start()
        clock.advance(10.0)
        reading = meter.stop()
        assert pytest.approx(1.5 * 0.74) == reading.mean_power_w
        assert "1.5 cores at" in reading.detail

    @pytest.mark.parametrize(("foreign_s", "is_valid"), [(9.0, True), (11.0, False)])
    def test_others_are_judged_over_all_cores(
        self, paths: HostPaths, clock: FakeClock, proc: FakeProc, foreign_s: float, is_valid: bool
    ) -> None:
        """Foreign load is a share of the two cores that others can take from us, not of our quota."""
        meter = make_device(paths, clock).meter([ENGINE])
        meter.start()
        clock.advance(10.0)
        proc.work(foreign_s)
        assert is_valid is meter.stop().is_valid
