"""Which devices there are, and what names mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.cpu.cpu_device import cpu_uuid
from probes.cpu.cpu_estimate import CpuPowerModel
from probes.cpu.paths import HostPaths
from probes.detect import Host, diagnose, find_device, list_devices, probe_all
from probes.device import Device, DeviceKind, Method, Scope
from probes.errors import UnknownDevice
from probes.metering.group import members_of
from probes.nvidia.nvml import Nvml
from probes.validity import Note, Reason
from tests.probes import fake_amdsmi
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_host import FakeProc, write_zone
from tests.probes.fake_nvml import FIRST_UUID, SECOND_UUID, FakeGpu, FakeNvml, install

CPUINFO = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu avx avx2 avx512f amx_tile

processor\t: 1
model name\t: another
"""


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    proc = FakeProc(tmp_path / "proc", num_cores=max(os.sched_getaffinity(0)) + 1)
    proc.write_process(os.getpid())
    (proc.root / "cpuinfo").write_text(CPUINFO)
    (tmp_path / "machine-id").write_text("0123456789abcdef\n")
    governor = tmp_path / "cpu" / f"cpu{min(os.sched_getaffinity(0))}" / "cpufreq" / "scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("performance\n")
    return HostPaths(
        proc=proc.root,
        powercap=tmp_path / "powercap",
        cpu=tmp_path / "cpu",
        machine_id=tmp_path / "machine-id",
    )


@pytest.fixture
def library(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs, the second first in NVML's order."""
    second = FakeGpu(clock=clock, uuid=SECOND_UUID, pci_id="00000000:3A:00.0").with_instant_power()
    library = FakeNvml(second, FakeGpu(clock=clock).with_instant_power())
    install(monkeypatch, library)
    return library


def make_host(paths: HostPaths, clock: FakeClock, **environ: str) -> Host:
    return Host(nvml=Nvml(), clock=clock, environ=environ, paths=paths, cpu_power=CpuPowerModel())


def uuids_of(devices: tuple[Device, ...]) -> list[str]:
    return [device.info.uuid for device in devices]


@pytest.mark.usefixtures("library")
class TestWithGpus:
    """A machine with two GPUs of one model."""

    def test_gpus_come_in_cudas_order_then_the_cpu(self, paths: HostPaths, clock: FakeClock) -> None:
        """GPUs are listed by PCI id, not by NVML's index, and the CPU is last."""
        devices = list_devices(make_host(paths, clock))
        assert uuids_of(devices)[:2] == [FIRST_UUID, SECOND_UUID]
        assert [device.info.kind for device in devices] == [DeviceKind.GPU, DeviceKind.GPU, DeviceKind.CPU]

    def test_hidden_gpus_are_not_listed(self, paths: HostPaths, clock: FakeClock) -> None:
        """CUDA_VISIBLE_DEVICES decides, and an empty one means no GPU at all."""
        assert uuids_of(list_devices(make_host(paths, clock, CUDA_VISIBLE_DEVICES="1")))[:-1] == [SECOND_UUID]
        assert len(list_devices(make_host(paths, clock, CUDA_VISIBLE_DEVICES=""))) == 1

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("auto", FIRST_UUID),
            ("gpu", FIRST_UUID),
            ("cuda", FIRST_UUID),
            ("cuda:1", SECOND_UUID),
            (SECOND_UUID, SECOND_UUID),
            ("GPU-89AA", SECOND_UUID),
            ("8932f937", FIRST_UUID),
        ],
    )
    def test_names_mean_one_device(self, paths: HostPaths, clock: FakeClock, name: str, expected: str) -> None:
        """Kinds, CUDA ordinals, UUIDs and unique beginnings, with or without GPU-, in any case."""
        assert expected == find_device(name, list_devices(make_host(paths, clock))).info.uuid

    def test_ordinals_follow_the_variable(self, paths: HostPaths, clock: FakeClock) -> None:
        """With 1,0 visible, cuda:0 is the second card."""
        devices = list_devices(make_host(paths, clock, CUDA_VISIBLE_DEVICES="1,0"))
        assert find_device("cuda:0", devices).info.uuid == SECOND_UUID

    def test_ambiguous_beginnings_are_refused(self, paths: HostPaths, clock: FakeClock) -> None:
        """A beginning shared by two UUIDs is an error that lists them."""
        with pytest.raises(UnknownDevice, match=f"beginning of 2 UUIDs.*{FIRST_UUID}"):
            find_device("GPU-89", list_devices(make_host(paths, clock)))

    def test_diagnosis_names_every_source(self, paths: HostPaths, clock: FakeClock) -> None:
        """Each GPU's counter and power, RAPL and the estimate are there with what was seen."""
        found = {capability.name: capability for capability in diagnose(make_host(paths, clock))}
        assert found["NVML"].is_available
        assert found["NVML"].reason == "2 of 2 GPUs visible"
        assert "rose by" in found[f"{FIRST_UUID}: NVML total energy counter"].reason
        assert "not supported" in found[f"{SECOND_UUID}: NVML average power of the gpu, field 185"].reason
        assert "has no" in found["powercap RAPL"].reason or "is not there" in found["powercap RAPL"].reason
        assert found["CPU estimate"].is_available

    def test_amd_gpus_come_after_nvidias(
        self, paths: HostPaths, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An AMD GPU stands between NVIDIA's and the CPU, and all GPUs are those of the first one's maker."""
        fake_amdsmi.install(monkeypatch, fake_amdsmi.FakeAmdSmi(fake_amdsmi.FakeCard(clock=clock)))
        host = make_host(paths, clock)
        devices = list_devices(host)
        assert [device.info.name for device in devices[1:3]] == ["NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"]
        assert [device.info.uuid for device in members_of(find_device("gpu:all", devices))] == [FIRST_UUID, SECOND_UUID]
        assert find_device(devices[2].info.uuid, devices) is devices[2]
        assert find_device("gpu:all", devices[2:]) is devices[2]
        found = [capability for capability in diagnose(host) if capability.name == "AMD SMI"]
        assert [capability.is_available for capability in found] == [True]

    def test_several_names_are_a_group(self, paths: HostPaths, clock: FakeClock) -> None:
        """Names with commas between mean these GPUs in this order; one name alone means the device itself."""
        devices = list_devices(make_host(paths, clock))
        group = find_device("cuda:1, GPU-8932", devices, clock=clock)
        assert [member.info.uuid for member in members_of(group)] == [SECOND_UUID, FIRST_UUID]
        assert [member.info.uuid for member in members_of(find_device("gpu:all", devices))] == [FIRST_UUID, SECOND_UUID]
        assert find_device(FIRST_UUID, devices) is devices[0]

    def test_probing_several_takes_the_time_of_one(self, paths: HostPaths, clock: FakeClock) -> None:
        """All power sources are learned at once, the CPU's too, and in order of the devices."""
        devices = list_devices(make_host(paths, clock))
        before_s = clock.monotonic_s()
        assert devices[0].power_source is not None
        alone_s = clock.monotonic_s() - before_s
        fresh = list_devices(make_host(paths, clock))
        before_s = clock.monotonic_s()
        sources = probe_all(fresh, clock=clock)
        assert [source.scope for source in sources if source] == [Scope.GPU, Scope.GPU, Scope.CPU_SHARE]
        assert alone_s > 0.1
        assert clock.monotonic_s() - before_s < alone_s + 0.05


def test_ordinals_between_different_models_are_refused(paths: HostPaths, clock: FakeClock, library: FakeNvml) -> None:
    """Unless CUDA counts in PCI order, cuda:N of mixed GPUs is nobody for certain; with it, it is."""
    library.gpus[0].name = "NVIDIA GeForce RTX 4090"
    with pytest.raises(UnknownDevice, match="no device 'cuda:0'"):
        find_device("cuda:0", list_devices(make_host(paths, clock)))
    ordered = list_devices(make_host(paths, clock, CUDA_DEVICE_ORDER="PCI_BUS_ID"))
    assert find_device("cuda:0", ordered).info.uuid == FIRST_UUID


@pytest.mark.parametrize(("init_code", "words"), [(18, "differ in version"), (9, "not loaded")])
def test_a_broken_driver_leaves_the_cpu_and_a_reason(
    paths: HostPaths, clock: FakeClock, library: FakeNvml, init_code: int, words: str
) -> None:
    """A driver that does not work costs the GPUs, not the service, and says why."""
    library.init_code = init_code
    host = make_host(paths, clock)
    assert [device.info.kind for device in list_devices(host)] == [DeviceKind.CPU]
    assert words in diagnose(host)[0].reason


class TestWithoutGpus:
    """A machine without an NVIDIA driver."""

    @pytest.fixture(autouse=True)
    def no_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No library is found."""
        install(monkeypatch, None)

    def test_there_is_the_cpu_alone(self, paths: HostPaths, clock: FakeClock) -> None:
        """Without a driver the CPU is what auto means, and the reason is in the diagnosis."""
        host = make_host(paths, clock)
        (cpu,) = list_devices(host)
        assert cpu is find_device("auto", [cpu])
        assert "library libnvidia-ml.so.1 not found" in diagnose(host)[0].reason

    @pytest.mark.parametrize("name", ["gpu", "cuda:0", "GPU-8932", "tpu", ""])
    def test_unknown_names_say_what_there_is(self, paths: HostPaths, clock: FakeClock, name: str) -> None:
        """An unknown device is an error that names it and lists the CPU."""
        devices = list_devices(make_host(paths, clock))
        with pytest.raises(UnknownDevice, match=rf"no device '{name}'; there is CPU-.*Xeon"):
            find_device(name, devices)

    def test_no_devices_at_all(self) -> None:
        """An empty list is told as such."""
        with pytest.raises(UnknownDevice, match="no device at all"):
            find_device("auto", [])

    def test_the_cpu_is_described(self, paths: HostPaths, clock: FakeClock) -> None:
        """Model, cores, governor and instruction sets are there, and the kernel as its driver."""
        (cpu,) = list_devices(make_host(paths, clock))
        assert cpu.info.name == "Intel(R) Xeon(R) Platinum 8480+"
        assert os.uname().release == cpu.info.driver
        cores = str(len(os.sched_getaffinity(0)))
        expected = {"cores": cores, "isa": "avx2 avx512 amx", "governor": "performance"}
        assert expected == dict(cpu.info.details)

    def test_the_cpu_can_be_found_by_its_uuid(self, paths: HostPaths, clock: FakeClock) -> None:
        """`cpu`, the UUID and its beginning all mean the CPU."""
        (cpu,) = list_devices(make_host(paths, clock))
        assert all(cpu is find_device(name, [cpu]) for name in ("cpu", cpu.info.uuid, cpu.info.uuid[4:10]))

    def test_without_rapl_the_estimate_stands_in(self, paths: HostPaths, clock: FakeClock) -> None:
        """The CPU always has a source; without counters it is the estimate, metered for the given process."""
        (cpu,) = list_devices(make_host(paths, clock))
        assert cpu.power_source is not None
        assert Method.ESTIMATE is cpu.power_source.method
        meter = cpu.meter([os.getpid()])
        meter.start()
        clock.advance(10.0)
        reading = meter.stop()
        assert (reading.scope, reading.is_valid) == (Scope.CPU_SHARE, True)
        assert (cpu.info.uuid,) == reading.device_uuids

    def test_rapl_is_preferred_and_is_of_the_whole_host(self, paths: HostPaths, clock: FakeClock) -> None:
        """A readable counter is used, and its reading says that it holds everybody's work."""
        file = write_zone(paths.powercap, "intel-rapl:0", "package-0", 1_000)
        (cpu,) = list_devices(make_host(paths, clock))
        meter = cpu.meter([os.getpid()])
        meter.start()
        clock.advance(0.4)
        file.write_text("41001000\n")
        clock.advance(0.6)
        reading = meter.stop()
        assert (reading.scope, reading.method) == (Scope.CPU_PACKAGE, Method.COUNTER)
        assert pytest.approx(41.0) == reading.energy_j
        assert reading.notes == (Note.WHOLE_HOST,)
        assert reading.is_valid

    def test_rapl_windows_watch_the_engine_too(self, paths: HostPaths, clock: FakeClock) -> None:
        """An engine that is gone makes a counted window invalid as well."""
        file = write_zone(paths.powercap, "intel-rapl:0", "package-0", 1_000)
        (cpu,) = list_devices(make_host(paths, clock))
        meter = cpu.meter([4242])
        meter.start()
        file.write_text("51000\n")
        clock.advance(1.0)
        assert meter.stop().reasons == (Reason.ENGINE_PROCESS_GONE,)


def test_a_cpus_id_is_stable_and_its_own() -> None:
    """The same machine and model give the same id, another machine another, and the machine id is not in it."""
    first = cpu_uuid("machine-1", "Xeon")
    assert first == cpu_uuid("machine-1", "Xeon")
    assert first != cpu_uuid("machine-2", "Xeon")
    assert first.startswith("CPU-")
    assert "machine" not in first
