"""Control from within this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from probes.control.local import LocalControl
from probes.control.seam import DeviceControl
from probes.errors import DeviceInUse, RestoreFailed, Uncontrolled
from probes.settings import DeviceSettings
from tests.probes.control.kept_gpus import BOTH, CAPPED, RESET_CLOCK, UNKNOWN_ERROR, KeptGpus, make_kept_gpus

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


def test_settings_come_and_go(machine: KeptGpus, control: LocalControl) -> None:
    """It keeps the promise of a DeviceControl: what is applied holds until restored, then all is as found."""
    seam: DeviceControl = control
    seam.apply(CAPPED)
    assert machine.state() == SET
    assert seam.problems() == ()
    seam.restore()
    seam.restore()
    assert machine.state() == FREE
    assert str(os.getpid()) in seam.description


def test_closing_restores(machine: KeptGpus, control: LocalControl) -> None:
    """Close gives everything back, and can be repeated."""
    control.apply(CAPPED)
    control.close()
    control.close()
    assert machine.state() == FREE
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


def test_a_signal_does_not_interrupt_a_restore(machine: KeptGpus, control: LocalControl) -> None:
    """POWER-33: a SIGTERM that arrives between two writes of a restore is handled after the last of them."""
    heard: list[list[tuple[tuple[int, int] | None, int]]] = []

    def hear(_number: int, _frame: FrameType | None) -> None:
        heard.append(machine.state())
        raise SystemExit(1)

    def interrupt() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    control.apply(CAPPED)
    machine.gpus[0].refusals[RESET_CLOCK] = interrupt
    former = signal.signal(signal.SIGTERM, hear)
    try:
        with pytest.raises(SystemExit):
            control.restore()
    finally:
        signal.signal(signal.SIGTERM, former)
    assert heard == [FREE]
    assert machine.journal.entries() == ()


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


def test_a_failed_restore_is_tried_again(machine: KeptGpus, control: LocalControl) -> None:
    """Close raises when a device does not take back what was found, and succeeds once it does."""
    control.apply(CAPPED)
    machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
    with pytest.raises(RestoreFailed, match="sm_clock_cap_mhz"):
        control.close()
    del machine.gpus[0].refusals[RESET_CLOCK]
    control.close()
    assert machine.state() == FREE


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
