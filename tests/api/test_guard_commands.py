"""`wattfront guard` and `wattfront restore`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.errors import UsageError
from api.guard_commands import guard, restore
from api.settings import Settings
from probes.control.guard_client import GuardedControl
from probes.control.journal import Holder, Journal
from probes.control.keeper import Keeper
from probes.detect import Host
from probes.errors import DeviceInUse, InvalidSetting, RestoreFailed
from probes.identity import process_identity
from tests.api.commands import run
from tests.api.conftest import Main
from tests.db.factories import REPOSITORY
from tests.probes.control.kept_gpus import BOTH, CAPPED, RESET_CLOCK, UNKNOWN_ERROR, KeptGpus, make_kept_gpus
from tests.probes.control.running_guard import guarding
from tests.probes.fake_gpu import FIRST_UUID, SECOND_UUID
from tests.probes.native import fixtures
from tests.probes.native.fake_library import NativeNvml

native_library = fixtures.native_library
native_nvml = fixtures.native_nvml

LONGEST_S = 60.0
FREE = [(None, 700_000), (None, 500_000)]
SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", guard_socket=tmp_path / "guard.sock")


def leave_set(settings: Settings, *, is_alive: bool = False) -> None:
    """Let a process set both GPUs and never put them back."""
    process = process_identity() if is_alive else replace(process_identity(), started="1")
    holder = Holder(process=process, label="a job")
    Keeper(Host(), Journal(settings.state_dir)).apply(BOTH, CAPPED, holder)


def restored(settings: Settings, *arguments: str) -> Result:
    return CliRunner().invoke(restore, list(arguments), obj=settings)


def test_nothing_to_put_back_is_said(settings: Settings) -> None:
    """Without a journal the command says so, makes nothing, and succeeds."""
    for arguments in ([], ["GPU-89"]):
        result = restored(settings, *arguments)
        assert (result.exit_code, result.output.startswith("nothing to put back")) == (0, True)
    assert not settings.state_dir.exists()


def test_what_was_put_back_is_told_by_device_and_knob(machine: KeptGpus, settings: Settings) -> None:
    """Each device and knob has a line with what was found; a second time there is nothing to do."""
    leave_set(settings)
    result = restored(settings)
    assert (result.exit_code, machine.state()) == (0, FREE)
    assert sorted(line for line in result.output.splitlines() if line.startswith("GPU-")) == [
        f"{FIRST_UUID}: power_cap_w put back (limit_mw 700000)",
        f"{FIRST_UUID}: sm_clock_cap_mhz put back (none was known before: the lock is undone)",
        f"{SECOND_UUID}: power_cap_w put back (limit_mw 500000)",
        f"{SECOND_UUID}: sm_clock_cap_mhz put back (none was known before: the lock is undone)",
    ]
    assert restored(settings).output.startswith("nothing to put back")


@pytest.mark.parametrize("device", [SECOND_UUID, SECOND_UUID.lower(), "GPU-89aa", "89aa"])
def test_one_device_can_be_named(machine: KeptGpus, settings: Settings, device: str) -> None:
    """A UUID or its beginning, with or without GPU-, is that device alone."""
    leave_set(settings)
    assert restored(settings, device).exit_code == 0
    assert machine.state() == [SET[0], FREE[1]]


def test_a_name_that_fits_two_is_refused(machine: KeptGpus, settings: Settings) -> None:
    """The beginning of several UUIDs is refused with those, and nothing is put back."""
    leave_set(settings)
    error = restored(settings, "GPU-89").exception
    assert isinstance(error, UsageError)
    assert f"the beginning of {FIRST_UUID}, {SECOND_UUID}" in str(error)
    assert machine.state() == SET


def test_a_device_in_use_is_refused(machine: KeptGpus, settings: Settings) -> None:
    """POWER-37: what a live process holds is left to it, and its id is named."""
    leave_set(settings, is_alive=True)
    error = restored(settings).exception
    assert isinstance(error, DeviceInUse)
    assert f"{FIRST_UUID} is set by process {os.getpid()} (a job)" in str(error)
    assert machine.state() == SET


def test_what_could_not_be_put_back_is_told(machine: KeptGpus, settings: Settings) -> None:
    """A failed restore ends with code 1 and the reason; the other device is put back, and a later try succeeds."""
    leave_set(settings)
    machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
    result = restored(settings)
    assert result.exit_code == 1
    assert f"{FIRST_UUID}: sm_clock_cap_mhz could not be put back" in result.output
    assert "code 999" in result.output
    assert machine.state()[1] == FREE[1]
    machine.gpus[0].refusals.clear()
    assert restored(settings).exit_code == 0
    assert machine.state() == FREE


def test_a_damaged_entry_is_reset(machine: KeptGpus, settings: Settings) -> None:
    """POWER-38: a device whose entry cannot be read is reset, and the file is named."""
    leave_set(settings)
    (settings.state_dir / f"{SECOND_UUID}.json").write_text("{")
    result = restored(settings, SECOND_UUID)
    assert result.exit_code == 0
    assert f"{SECOND_UUID}: reset: what was found is not known any more" in result.output
    assert f"{SECOND_UUID}.json" in result.output
    assert machine.state() == [SET[0], (None, 700_000)]


def test_a_clock_cap_of_the_operator_is_put_back(machine: KeptGpus, settings: Settings) -> None:
    """POWER-36: what was declared when it was set is what is put back."""
    caps = {FIRST_UUID: 1500}
    holder = Holder(process=replace(process_identity(), started="1"), label="a job")
    Keeper(Host(), Journal(settings.state_dir), prior_caps_mhz=caps).apply([FIRST_UUID], CAPPED, holder)
    result = restored(settings, "--state-dir", str(settings.state_dir))
    assert f"{FIRST_UUID}: sm_clock_cap_mhz put back (cap_mhz 1500)" in result.output.splitlines()
    assert machine.gpus[0].locked == (210, 1500)


def test_the_guard_does_it_where_it_runs(machine: KeptGpus) -> None:
    """A restore beside a guard is the guard's, so that it needs no privilege."""
    with guarding(machine) as running:
        running.start()
        settings = Settings(state_dir=running.config.state_dir, guard_socket=running.socket)
        control = GuardedControl(running.socket, BOTH, "a job")
        control.apply(CAPPED)
        assert isinstance(restored(settings).exception, DeviceInUse)
        machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
        with pytest.raises(RestoreFailed):
            control.close()
        assert restored(settings).exit_code == 1
        machine.gpus[0].refusals.clear()
        result = restored(settings)
        assert (result.exit_code, machine.state()) == (0, FREE)
        assert f"{FIRST_UUID}: sm_clock_cap_mhz put back" in result.output


def test_a_guard_with_a_journal_of_its_own_is_asked(machine: KeptGpus, settings: Settings) -> None:
    """Without an entry here, what the guard could not put back is tried again, and code 1 tells that it failed."""
    with guarding(machine) as running:
        running.start()
        settings = replace_socket(settings, running.socket)
        control = GuardedControl(running.socket, BOTH, "a job")
        control.apply(CAPPED)
        assert isinstance(restored(settings).exception, DeviceInUse)
        machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
        with pytest.raises(RestoreFailed):
            control.close()
        result = restored(settings)
        assert (result.exit_code, f"{FIRST_UUID}: could not be put back" in result.output) == (1, True)
        assert restored(settings, SECOND_UUID).exit_code == 0
        machine.gpus[0].refusals.clear()
        result = restored(settings, FIRST_UUID)
        assert (result.exit_code, machine.state()) == (0, FREE)
        assert f"{FIRST_UUID}: put back" in result.output
        assert restored(settings).output.startswith("nothing to put back")


def replace_socket(settings: Settings, socket: Path) -> Settings:
    return Settings(state_dir=settings.state_dir, guard_socket=socket)


def test_a_holder_in_another_namespace_is_left_alone(machine: KeptGpus, settings: Settings) -> None:
    """A worker of another container may be alive: its devices stay set, and it is named."""
    process = process_identity()
    elsewhere = replace(process, started="1", pid_namespace=process.pid_namespace + 1)
    Keeper(Host(), Journal(settings.state_dir)).apply(BOTH, CAPPED, Holder(process=elsewhere, label="a job"))
    error = restored(settings).exception
    assert isinstance(error, DeviceInUse)
    assert f"{FIRST_UUID} is set by process {os.getpid()} (a job) in another PID namespace" in str(error)
    assert machine.state() == SET


def test_a_configuration_that_is_wrong_is_refused(tmp_path: Path) -> None:
    """The guard does not start on a file that it does not understand, and names key and value."""
    config = tmp_path / "guard.toml"
    config.write_text("lapse_s = 0\n")
    config.chmod(0o600)
    error = CliRunner().invoke(guard, ["--config", str(config)]).exception
    assert isinstance(error, InvalidSetting)
    assert f"{config}: lapse_s is 0" in str(error)


def test_exit_codes_tell_how_it_went(machine: KeptGpus, settings: Settings, main_with: Main) -> None:
    """As a command: a device in use is bad input (2, one sentence); with nothing to do it is done (0)."""
    leave_set(settings, is_alive=True)
    refused = run("restore", "--state-dir", settings.state_dir)
    assert (refused.code, machine.state()) == (2, SET)
    assert f"{FIRST_UUID} is set by process {os.getpid()} (a job)" in refused.complaint
    assert main_with("restore", "--state-dir", settings.state_dir / "other").code == 0
    assert main_with("guard", "--socket", "guard.sock").complaint.startswith(
        "--socket is guard.sock: give the whole path"
    )


@contextmanager
def guard_process(nvml: NativeNvml, folder: Path) -> Iterator[subprocess.Popen[str]]:
    code = f"""
from pathlib import Path
from api.guard_commands import guard
guard(["--socket", {str(folder / "g.sock")!r}, "--state-dir", {str(folder / "state")!r}])
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=nvml.environ(is_privileged=True),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_guard_command_serves_until_told_to_end(
    native_nvml: NativeNvml, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It says where it listens, and on SIGTERM puts back what is held and exits with 0."""
    folder = tmp_path_factory.mktemp("g")
    with guard_process(native_nvml, folder) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert f"guard listens on {folder / 'g.sock'}\n" in lines
        uuid = native_nvml.gpu().uuid.decode()
        control = GuardedControl(folder / "g.sock", [uuid], "a job")
        control.apply(CAPPED)
        assert native_nvml.gpu().locked == (210, 1005)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONGEST_S) == 0
        assert native_nvml.gpu().locked is None
        assert control.problems() == ("control_lease_lost",)
