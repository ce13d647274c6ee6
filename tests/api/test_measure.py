"""The energy of any command: what is metered, what the command gets, and what comes of its end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import psutil
import pytest

from api.measure import CannotStart, Measured, Run, measure
from probes.clock import SystemClock
from probes.cpu.cpu_device import CpuDevice
from probes.cpu.cpu_estimate import CpuPowerModel
from probes.cpu.paths import HostPaths
from probes.device import UNSET, Capability, DeviceInfo, Meter, PowerSource, Reading, Status
from probes.errors import NotSupported
from probes.settings import DeviceSettings, Settable
from tests.db.factories import make_device, make_reading
from tests.tuner.scripted import SOURCE

#: Burns this much CPU time, then ends.
BUSY_S = 0.4
BUSY = f"import time\nwhile time.process_time() < {BUSY_S}: pass"


class ListedMeter:
    """Gives the next reading of its device, and writes down what it is told."""

    def __init__(self, device: ListedDevice) -> None:
        self._device = device

    def start(self) -> float:
        self._device.on_start()
        self._device.calls.append("start")
        return 0.0

    def stop(self) -> Reading:
        self._device.calls.append("stop")
        return self._device.readings.pop(0)

    def close(self) -> None:
        self._device.calls.append("close")


@dataclass(slots=True)
class ListedDevice:
    """A device whose readings are listed beforehand."""

    readings: list[Reading]
    source: PowerSource | None = SOURCE
    on_start: Callable[[], None] = lambda: None
    calls: list[str] = field(default_factory=list)
    metered_pids: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def info(self) -> DeviceInfo:
        return make_device()

    @property
    def power_source(self) -> PowerSource | None:
        return self.source

    def capabilities(self) -> Sequence[Capability]:
        return ()

    def settables(self) -> Sequence[Settable]:
        return ()

    def status(self) -> Status:
        return Status(time_s=0.0)

    def meter(self, pids: Sequence[int], *, settings: DeviceSettings = UNSET) -> Meter:
        if self.source is None:
            raise NotSupported("offers neither energy nor power")
        self.metered_pids.append(tuple(pids))
        return ListedMeter(self)


class PatientClock(SystemClock):
    """Real time, but nobody has to wait for it."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    def wait(self, event: Event, timeout_s: float) -> bool:
        self.waits_s.append(timeout_s)
        return event.is_set()


def measured(command: Sequence[str], *readings: Reading, num_repeats: int = 1, idle_s: float = 0.0) -> Measured:
    device = ListedDevice(list(readings) or [make_reading() for _ in range(num_repeats)])
    return measure(device, command, clock=PatientClock(), num_repeats=num_repeats, idle_s=idle_s)


def test_the_meter_runs_from_before_the_command_to_after_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The command's own process is metered; it begins after the meter does, and has ended when the meter ends."""
    seen: list[bool] = []
    device = ListedDevice([make_reading()], on_start=lambda: seen.append((tmp_path / "begun").exists()))
    measure(device, ["sh", "-c", 'echo $$; : > "$0"', str(tmp_path / "begun")], clock=SystemClock())
    assert seen == [False]
    assert (tmp_path / "begun").exists()
    assert [(int(capfd.readouterr().out),)] == device.metered_pids
    assert device.calls == ["start", "stop", "close"]


@pytest.mark.parametrize(("script", "exit_code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_commands(script: str, exit_code: int) -> None:
    """A run has the command's exit code, and 128 more than the signal that ended it; its energy counts all the same."""
    found = measured(["sh", "-c", script])
    assert exit_code == found.exit_code
    assert [exit_code] == [run.exit_code for run in found.counted]


@pytest.mark.parametrize("name", ["no-such-command", "./folder", "./plain"])
def test_what_cannot_be_started_says_why(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is not there, a folder and a file without permission are told apart, and nothing is measured."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    reason = "No such file" if name == "no-such-command" else "Permission denied"
    device = ListedDevice([make_reading()])
    with pytest.raises(CannotStart, match=f"cannot start '{name}': {reason}"):
        measure(device, [name], clock=SystemClock())
    assert device.calls == ["start", "close"]


def test_a_device_without_power_runs_nothing(tmp_path: Path) -> None:
    """Where nothing can be measured the command never begins."""
    with pytest.raises(NotSupported):
        measure(ListedDevice([], source=None), ["touch", str(tmp_path / "begun")], clock=SystemClock())
    assert list(tmp_path.iterdir()) == []


def test_the_command_gets_its_arguments_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    """Arguments arrive as given; of our pipes, and of the signals our interpreter ignores, the command has none."""
    measured([sys.executable, "-c", "import sys; print(sys.argv[1:])", "-x", "--", "two words", "", "é\udcff"])
    assert capfd.readouterr().out == "['-x', '--', 'two words', '', 'é\\udcff']\n"
    measured(["sh", "-c", "ls /proc/self/fd | wc -l; grep SigIgn /proc/self/status"])
    num_files, ignored = capfd.readouterr().out.split("\n", 1)
    assert int(num_files) == 4  # three standard streams, and the folder that ls looks at
    # Whoever started the tests may have had signals ignored (nohup does); a plain child shows which.
    plain = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    assert ignored.split() == plain.split()


def test_repeats_begin_after_different_delays() -> None:
    """Each repeat is delayed by another part of a second, so that a sensor does not see the same part of each run."""
    clock = PatientClock()
    device = ListedDevice([make_reading() for _ in range(4)])
    found = measure(device, ["true"], clock=clock, num_repeats=4)
    assert len(found.runs) == 4
    assert len(set(clock.waits_s)) == 4
    assert all(0 <= wait_s < 1 for wait_s in clock.waits_s)
    again = PatientClock()
    measure(ListedDevice([make_reading()] * 4), ["true"], clock=again, num_repeats=4, seed=1)
    assert again.waits_s != clock.waits_s


def test_a_single_run_is_not_delayed() -> None:
    """Without repeats the command begins at once."""
    clock = PatientClock()
    measure(ListedDevice([make_reading()]), ["true"], clock=clock)
    assert clock.waits_s == []


def test_a_failed_run_ends_the_repeats(tmp_path: Path) -> None:
    """The first run that does not end with 0 is the last; its code is the result, and the mean is of those before."""
    script = 'echo >> "$0"; [ $(wc -l < "$0") -lt 3 ]'
    readings = [make_reading(energy_j=energy_j) for energy_j in (10.0, 12.0, 99.0, 99.0)]
    found = measured(["sh", "-c", script, str(tmp_path / "count")], *readings, num_repeats=4)
    assert [run.exit_code for run in found.runs] == [0, 0, 1]
    assert found.exit_code == 1
    energy = found.energy_j()
    assert energy is not None
    assert energy.value == 11.0


def test_repeats_have_students_interval() -> None:
    """POWER-59: the mean of repeats has the 95 % interval of Student's t; one run has none, rather than one of 0."""
    readings = [make_reading(energy_j=energy_j) for energy_j in (10.0, 12.0, 14.0)]
    energy = measured(["true"], *readings, num_repeats=3).energy_j()
    assert energy is not None
    assert energy.value == pytest.approx(12.0)
    assert energy.high == pytest.approx(12.0 + 4.303 * 2 / 3**0.5)
    single = measured(["true"], readings[0]).energy_j()
    assert single is not None
    assert (single.value, single.low, single.high) == (10.0, None, None)


def test_invalid_runs_are_left_out_of_the_mean() -> None:
    """A run whose figure must not be used makes the whole invalid, and its joules are in no mean."""
    readings = [make_reading(energy_j=10.0), make_reading(energy_j=1e6, reasons=("counter_reset",))]
    found = measured(["true"], *readings, num_repeats=2)
    energy = found.energy_j()
    assert energy is not None
    assert (found.is_valid, energy.value) == (False, 10.0)


def test_no_figure_is_no_zero() -> None:
    """Without a usable run there is no mean of anything."""
    found = measured(["true"], make_reading(energy_j=None, reasons=("counter_reset",)))
    assert (found.energy_j(), found.mean_power_w(), found.duration_s()) == (None, None, None)
    assert not found.is_valid


def test_the_commands_end_is_no_fault() -> None:
    """That the metered process has ended is how the stretch ends; every other reason stands."""
    reading = make_reading(reasons=("engine_process_gone", "foreign_cpu_load"))
    assert measured(["true"], reading).runs[0].reading.reasons == ("foreign_cpu_load",)
    assert measured(["true"], make_reading(reasons=("engine_process_gone",))).is_valid


def test_idle_power_stands_apart() -> None:
    """The device is measured before the first run without the command, and its energy is in no run."""
    idle, run = make_reading(energy_j=60.0), make_reading(energy_j=300.0)
    found = measured(["true"], idle, run, idle_s=30.0)
    assert (found.idle, found.runs) == (idle, (Run(exit_code=0, reading=run),))
    assert measured(["true"]).idle is None


def test_the_time_of_all_its_children_is_the_commands() -> None:
    """On a CPU without counters the estimate holds the work of the command's children, those that ended included."""
    model = CpuPowerModel(idle_w=0.0, max_w=1.0)
    device = CpuDevice(paths=HostPaths(powercap=Path("/nonexistent")), model=model, clock=SystemClock())
    found = measure(device, ["sh", "-c", f"{sys.executable} -c '{BUSY}'; true"], clock=SystemClock())
    reading = found.runs[0].reading
    assert reading.energy_j is not None
    assert reading.energy_j >= BUSY_S - 0.05  # watts are CPU seconds here, and /proc counts them in ticks of 10 ms
    assert "engine_process_gone" not in reading.reasons


def test_no_process_is_left_behind() -> None:
    """Neither a run nor a command that cannot start leaves a child of ours."""
    before = set(psutil.Process().children())
    measured(["true"])
    with pytest.raises(CannotStart):
        measured(["no-such-command"])
    assert set(psutil.Process().children()) <= before
