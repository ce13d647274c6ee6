"""Faults of CPU energy counters, as they reach a reading through the CPU device and its meter."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from probes.cpu.cpu_device import CpuDevice
from probes.cpu.cpu_estimate import CpuPowerModel
from probes.cpu.paths import HostPaths
from probes.device import Meter, Method, Reading, Scope
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_host import RANGE_UJ, FakeProc, make_paths, refuse, write_zone

MICROJOULES_PER_JOULE = 1_000_000


@dataclass(slots=True, kw_only=True)
class Host:
    """A machine of two cores whose packages draw a constant power each, in counters that start over at RANGE_UJ."""

    paths: HostPaths
    clock: FakeClock

    def zone(self, folder: str, name: str, energy_uj: int = 1, *, max_range_uj: int | None = RANGE_UJ) -> Path:
        return write_zone(self.paths.powercap, folder, name, energy_uj, max_range_uj=max_range_uj)

    def device(self) -> CpuDevice:
        return CpuDevice(paths=self.paths, model=CpuPowerModel(), clock=self.clock)

    def run(self, seconds: float, *power_w: float, files: list[Path], range_uj: int = RANGE_UJ) -> None:
        """Let time pass in half seconds, each counter moving by its power."""
        for _ in range(round(seconds / 0.5)):
            for file, power in zip(files, power_w, strict=True):
                energy_uj = int(file.read_text()) + round(power * 0.5 * MICROJOULES_PER_JOULE)
                file.write_text(f"{energy_uj % range_uj}\n")
            self.clock.advance(0.5)


@pytest.fixture
def host(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    proc = FakeProc(tmp_path / "proc")
    proc.write_process(os.getpid())
    return Host(paths=make_paths(tmp_path, proc), clock=clock)


def started(host: Host) -> Meter:
    meter = host.device().meter([os.getpid()])
    meter.start()
    return meter


def measured(host: Host, *files: Path, power_w: tuple[float, ...] = (100.0,)) -> Reading:
    meter = started(host)
    host.run(10.0, *power_w, files=list(files))
    return meter.stop()


def test_a_counter_for_root_alone_has_a_reason(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """POWER-49: where energy_uj may not be read, RAPL is absent with the file's name, and the figure is an estimate."""
    file = host.zone("intel-rapl:0", "package-0")
    refuse(monkeypatch, file, error=PermissionError(errno.EACCES, "Permission denied"))
    device = host.device()
    rapl = device.capabilities()[0]
    assert not rapl.is_available
    assert "energy_uj may only be read by root" in rapl.reason
    assert Method.ESTIMATE is device.power_source.method


def test_a_counter_closed_during_a_window_has_no_energy(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """POWER-49: permission that is lost before the end gives None and not_permitted, never 0 J."""
    file = host.zone("intel-rapl:0", "package-0")
    meter = started(host)
    host.run(2.0, 100.0, files=[file])
    refuse(monkeypatch, file, error=PermissionError(errno.EACCES, "Permission denied"))
    host.clock.advance(2.0)
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, ("not_permitted",))


def test_one_wrap_adds_the_range(host: Host) -> None:
    """POWER-50: a counter that starts over within the window is 1 kJ all the same."""
    file = host.zone("intel-rapl:0", "package-0", RANGE_UJ - 300 * MICROJOULES_PER_JOULE)
    reading = measured(host, file)
    assert pytest.approx(1000.0) == reading.energy_j
    assert reading.is_valid


def test_a_wrap_in_every_look_is_each_counted(host: Host) -> None:
    """POWER-50: a short range that wraps many times in a window, once between two looks at most, loses nothing."""
    range_uj = 2_000 * MICROJOULES_PER_JOULE
    file = host.zone("intel-rapl:0", "package-0", 5, max_range_uj=range_uj)
    meter = started(host)
    host.run(30.0, 800.0, files=[file], range_uj=range_uj)
    assert pytest.approx(24_000.0) == meter.stop().energy_j


def test_a_failed_look_is_bridged_without_phantom_energy(host: Host) -> None:
    """POWER-51: an error between two good looks adds no range and loses no joule."""
    file = host.zone("intel-rapl:0", "package-0", RANGE_UJ // 2)
    meter = started(host)
    host.run(4.0, 100.0, files=[file])
    before = file.read_text()
    file.write_text("")
    host.clock.advance(1.0)
    file.write_text(f"{int(before) + 100 * MICROJOULES_PER_JOULE}\n")
    host.run(5.0, 100.0, files=[file])
    reading = meter.stop()
    assert pytest.approx(1000.0) == reading.energy_j
    assert reading.is_valid


def test_failed_looks_for_too_long_are_a_gap(host: Host) -> None:
    """POWER-51: silence in which a wrap could hide invalidates the window."""
    file = host.zone("intel-rapl:0", "package-0")
    meter = started(host)
    host.run(2.0, 100.0, files=[file])
    before = file.read_text()
    file.write_text("")
    host.clock.advance(4.0)
    file.write_text(before)
    host.run(2.0, 100.0, files=[file])
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (Reason.SAMPLING_GAP,))


@pytest.mark.parametrize("max_range_uj", [None, 0])
def test_a_fall_without_a_range_is_dropped(host: Host, max_range_uj: int | None) -> None:
    """POWER-52: with max_energy_range_uj missing or 0 a fall gives None and counter_reset, never negative energy."""
    file = host.zone("intel-rapl:0", "package-0", 900_000_000, max_range_uj=max_range_uj)
    meter = started(host)
    host.run(2.0, 100.0, files=[file])
    file.write_text("100\n")
    host.run(2.0, 100.0, files=[file])
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (Reason.COUNTER_RESET,))


@pytest.mark.parametrize("max_range_uj", [None, 0])
def test_without_a_range_and_a_fall_energy_is_known(host: Host, max_range_uj: int | None) -> None:
    """POWER-52: a counter without a range is usable as long as it only rises."""
    file = host.zone("intel-rapl:0", "package-0", 5, max_range_uj=max_range_uj)
    assert pytest.approx(1000.0) == measured(host, file).energy_j


def test_swapped_zones_are_told_apart_by_name(host: Host) -> None:
    """POWER-53: with the zones' numbers swapped the sum and the names are the same as without."""
    second = host.zone("intel-rapl:0", "package-1")
    first = host.zone("intel-rapl:1", "package-0")
    reading = measured(host, first, second, power_w=(100.0, 20.0))
    assert pytest.approx(1200.0) == reading.energy_j
    assert reading.detail == "RAPL: package-0, package-1"


def test_zones_inside_a_package_are_not_counted_twice(host: Host) -> None:
    """POWER-54: cores and uncore are part of their package, so 100 W with 70 W of cores are 100 W."""
    files = [
        host.zone("intel-rapl:0", "package-0"),
        host.zone("intel-rapl:0:0", "core"),
        host.zone("intel-rapl:0:1", "uncore"),
    ]
    reading = measured(host, *files, power_w=(100.0, 70.0, 10.0))
    assert pytest.approx(1000.0) == reading.energy_j
    assert (reading.scope, reading.notes) == (Scope.CPU_PACKAGE, (Note.WHOLE_HOST,))


def test_psys_is_not_added_to_the_packages(host: Host) -> None:
    """POWER-54: psys contains the package and more; neither it nor the mmio twin is added."""
    files = [
        host.zone("intel-rapl:0", "package-0"),
        host.zone("intel-rapl:1", "psys"),
        host.zone("intel-rapl-mmio:0", "package-0"),
    ]
    assert pytest.approx(1000.0) == measured(host, *files, power_w=(100.0, 180.0, 100.0)).energy_j


def test_amds_packages_have_no_dram(host: Host) -> None:
    """POWER-54: AMD's zones bear the same names, package and core; the scope says that DRAM is not in it."""
    files = [
        host.zone("intel-rapl:0", "package-0"),
        host.zone("intel-rapl:0:0", "core"),
        host.zone("intel-rapl:1", "package-1"),
        host.zone("intel-rapl:1:0", "core"),
    ]
    reading = measured(host, *files, power_w=(90.0, 60.0, 110.0, 80.0))
    assert pytest.approx(2000.0) == reading.energy_j
    assert (reading.scope, reading.detail) == (Scope.CPU_PACKAGE, "RAPL: package-0, package-1")


def test_dram_beside_its_package_is_counted_once(host: Host) -> None:
    """POWER-54: on servers DRAM lies in a zone below the package but not in its counter, so both are added."""
    files = [host.zone("intel-rapl:0", "package-0"), host.zone("intel-rapl:0:0", "dram")]
    reading = measured(host, *files, power_w=(100.0, 30.0))
    assert pytest.approx(1300.0) == reading.energy_j
    assert Scope.CPU_PACKAGE_DRAM is reading.scope


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_package_that_disappears_invalidates_the_window(host: Host, comes_back: bool) -> None:
    """POWER-55: a zone gone by hotplug gives no sum of the rest; back from 0 it is a counter that began anew."""
    files = [host.zone("intel-rapl:0", "package-0"), host.zone("intel-rapl:1", "package-1", RANGE_UJ // 2)]
    meter = started(host)
    host.run(3.0, 100.0, 100.0, files=files)
    files[1].unlink()
    host.run(1.0, 100.0, files=files[:1])
    if comes_back:
        host.zone("intel-rapl:1", "package-1", 0)
        host.run(3.0, 100.0, 100.0, files=files)
    reading = meter.stop()
    expected = Reason.COUNTER_RESET if comes_back else "device_lost"
    assert (reading.energy_j, reading.reasons) == (None, (expected,))


def test_a_counter_that_wraps_faster_than_it_is_looked_at_is_refused(host: Host) -> None:
    """POWER-56: a range of 400 J could wrap unseen, so it is no source at all, and the reason says how fast."""
    host.zone("intel-rapl:0", "package-0", max_range_uj=400 * MICROJOULES_PER_JOULE)
    device = host.device()
    assert "wrap within 0.40 s" in device.capabilities()[0].reason
    assert Method.ESTIMATE is device.power_source.method


def test_looks_that_came_too_late_for_a_wrap_are_a_gap(host: Host) -> None:
    """POWER-56: when the sampler was held up for longer than half the time of a wrap, the window is invalid."""
    range_uj = 4_000 * MICROJOULES_PER_JOULE
    file = host.zone("intel-rapl:0", "package-0", max_range_uj=range_uj)
    meter = started(host)
    host.run(3.0, 100.0, files=[file], range_uj=range_uj)
    host.clock.jump(2.5)
    host.run(3.0, 100.0, files=[file], range_uj=range_uj)
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (Reason.SAMPLING_GAP,))


def test_microjoules_survive_a_long_run(host: Host) -> None:
    """POWER-7: beyond what a double can count in microjoules the difference is still exact to the last of them."""
    start_uj = 2**62
    file = host.zone("intel-rapl:0", "package-0", start_uj, max_range_uj=2**63)
    meter = started(host)
    host.run(2.0, 100.000002, files=[file], range_uj=2**63)
    reading = meter.stop()
    assert reading.energy_j == 200.000004
    assert float(start_uj + 1) == float(start_uj)
