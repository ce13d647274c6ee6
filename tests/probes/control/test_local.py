"""Control from within this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.control.local import LocalControl
from probes.errors import DeviceInUse, Uncontrolled
from probes.settings import DeviceSettings
from tests.probes.control.control_contract import ControlContract
from tests.probes.control.kept_gpus import BOTH, CAPPED, UNKNOWN_ERROR, KeptGpus, make_kept_gpus

FREE = [(None, 700_000), (None, 500_000)]
SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@pytest.fixture
def control(machine: KeptGpus) -> Iterator[LocalControl]:
    control = LocalControl(machine.keeper(), BOTH, "job a")
    yield control
    for gpu in machine.gpus:
        gpu.refusals.clear()
    control.close()


class TestLocalControl(ControlContract):
    """A control from within keeps the seam's promises."""


def test_it_says_which_process_it_is(control: LocalControl) -> None:
    """The description names the process that does the setting."""
    assert str(os.getpid()) in control.description


def test_closing_leaves_no_entry(machine: KeptGpus, control: LocalControl) -> None:
    """What was given back is no longer in the journal."""
    control.apply(CAPPED)
    assert len(BOTH) == len(machine.journal.entries())
    control.close()
    assert machine.journal.entries() == ()


def test_a_change_by_others_is_a_problem(machine: KeptGpus, control: LocalControl) -> None:
    """The settings that were applied are those that are read back, and none after a restore."""
    control.apply(CAPPED)
    machine.gpus[0].limit_mw = 650_000
    assert control.problems() == ("external_change",)
    control.restore()
    assert control.problems() == ()


def test_after_a_failed_apply_nothing_is_expected(machine: KeptGpus, control: LocalControl) -> None:
    """When settings are refused, the former ones are gone too and are not missed."""
    control.apply(CAPPED)
    machine.gpus[1].refusals["nvmlDeviceSetPowerManagementLimit"] = lambda: UNKNOWN_ERROR if is_first() else 0
    tries: list[None] = []

    def is_first() -> bool:
        tries.append(None)
        return len(tries) == 1

    with pytest.raises(Uncontrolled):
        control.apply(DeviceSettings(power_cap_w=300))
    assert machine.state() == FREE
    assert control.problems() == ()


def test_a_device_of_another_holder_is_left_alone(machine: KeptGpus, control: LocalControl) -> None:
    """Who was refused because a device is in use does not undo the other's settings when closing."""
    other = machine.holder(pid=700, label="job b")
    machine.keeper().apply(BOTH, CAPPED, other)
    with pytest.raises(DeviceInUse, match=r"process 700 \(job b\)"):
        control.apply(DeviceSettings(power_cap_w=300))
    control.close()
    assert machine.state() == SET


def test_a_forked_child_neither_sets_nor_restores(machine: KeptGpus, control: LocalControl) -> None:
    """A child that inherited the control leaves the devices as its parent set them."""
    control.apply(CAPPED)
    num_writes = [len(gpu.writes) for gpu in machine.gpus]
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        seen = "no error"
        try:
            control.apply(DeviceSettings(power_cap_w=300))
        except Uncontrolled as error:
            seen = str(error)
        control.close()
        is_untouched = machine.state() == SET and num_writes == [len(gpu.writes) for gpu in machine.gpus]
        os.write(write_end, f"{is_untouched} {seen}".encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said.startswith(f"True device settings belong to process {os.getpid()}")
    assert len(machine.journal.entries()) == 2


@pytest.mark.parametrize(("closing", "printed"), [("", "restored"), ("control.close()", "restored closed")])
def test_an_exit_restores(closing: str, printed: str) -> None:
    """A process that ends without closing restores at exit; after closing, nothing is left to do there."""
    code = f"""
from probes.control.local import LocalControl
class Keeper:
    def restore(self, uuids, *, holder): print("restored", end="", flush=True)
control = LocalControl(Keeper(), ["GPU-1"], "job")
{closing}
{'print(" closed", end="", flush=True)' if closing else ""}
"""
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=120)
    assert ended.stdout.decode() == printed


def test_a_failed_restore_at_exit_is_logged() -> None:
    """At exit there is nobody to raise to: the error is in the log."""
    code = """
from probes.control.local import LocalControl
from probes.errors import RestoreFailed
class Keeper:
    def restore(self, uuids, *, holder): raise RestoreFailed("GPU-1: it does not answer")
LocalControl(Keeper(), ["GPU-1"], "job")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=120, text=True)
    assert "restore_failed_at_exit" in ended.stdout + ended.stderr
    assert "it does not answer" in ended.stdout + ended.stderr
