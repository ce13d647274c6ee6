"""Two fake GPUs under a keeper, with a process table and a journal in a folder of the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from probes.control.journal import Holder, Journal
from probes.control.keeper import Keeper
from probes.cpu.paths import HostPaths
from probes.detect import Host
from probes.identity import ProcessIdentity, process_identity
from probes.nvidia.nvml import Nvml
from probes.settings import DeviceSettings
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_gpu import FIRST_UUID, SECOND_UUID, FakeGpu
from tests.probes.fake_host import FakeProc
from tests.probes.fake_nvml import FakeNvml, install

BOOT = "5f2a-boot"
BOTH = (FIRST_UUID, SECOND_UUID)
CAPPED = DeviceSettings(sm_clock_cap_mhz=1005, power_cap_w=400)
#: The driver's codes.
NO_PERMISSION = 4
UNKNOWN_ERROR = 999
SET_CLOCK = "nvmlDeviceSetGpuLockedClocks"
RESET_CLOCK = "nvmlDeviceResetGpuLockedClocks"
SET_LIMIT = "nvmlDeviceSetPowerManagementLimit"
GET_LIMIT = "nvmlDeviceGetPowerManagementLimit"


@dataclass(slots=True, kw_only=True)
class KeptGpus:
    """The machine: kill the holder, restart it, or script its GPUs."""

    clock: FakeClock
    gpus: tuple[FakeGpu, FakeGpu]
    proc: FakeProc
    host: Host
    journal: Journal

    def keeper(self, *, prior_caps_mhz: Mapping[str, int] | None = None) -> Keeper:
        """Return a keeper as a newly started process has it."""
        return Keeper(self.host, self.journal, prior_caps_mhz=prior_caps_mhz)

    def holder(self, pid: int = 700, label: str = "job a") -> Holder:
        """Start a process and return it as a holder."""
        self.proc.write_process(pid)
        return Holder(process=process_identity(pid, self.proc.root), label=label)

    def kill(self, holder: Holder) -> None:
        """End a holder's process."""
        self.proc.end_process(holder.process.pid)

    def boot(self, boot_id: str = BOOT) -> None:
        """Let the kernel tell another boot."""
        folder = self.proc.root / "sys/kernel/random"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "boot_id").write_text(f"{boot_id}\n")

    def enter_pid_namespace(self, name: str) -> None:
        """Let the process table be that of another PID namespace; as with real ones, each name has its own inode."""
        namespace = self.proc.root / f"pid:{name}"
        namespace.touch()
        link = self.proc.root / "self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(namespace)

    def state(self) -> list[tuple[tuple[int, int] | None, int]]:
        """Return what is set on each GPU: locked clocks and the limit in mW."""
        return [(gpu.locked, gpu.limit_mw) for gpu in self.gpus]


def make_kept_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    """Return a machine with two GPUs, the second with an administrator's limit of 500 W."""
    clock = FakeClock()
    gpus = (
        FakeGpu(clock=clock),
        FakeGpu(clock=clock, uuid=SECOND_UUID, pci_id="00000000:2A:00.0", limit_mw=500_000),
    )
    install(monkeypatch, FakeNvml(*gpus))
    proc = FakeProc(folder / "proc")
    machine_id = folder / "machine-id"
    machine_id.write_text("a machine\n")
    paths = HostPaths(proc=proc.root, cpu=folder / "cpu", machine_id=machine_id)
    host = Host(nvml=Nvml(), clock=clock, environ={}, paths=paths)
    machine = KeptGpus(clock=clock, gpus=gpus, proc=proc, host=host, journal=Journal(folder / "journal"))
    machine.boot()
    return machine


def dead_holder() -> Holder:
    """Return somebody who no longer runs."""
    return Holder(process=ProcessIdentity(pid=999, started="1", boot_id=BOOT), label="a job long gone")
