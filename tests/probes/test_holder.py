"""One measuring process per device."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from probes.errors import DeviceInUse
from probes.holder import hold, hold_all


def test_a_held_device_is_refused_with_its_holder(tmp_path: Path) -> None:
    """POWER-37: a second holder is refused with the first one's process id; another device is not affected."""
    with (
        hold("CPU-1", folder=tmp_path),
        hold("CPU-2", folder=tmp_path),
        pytest.raises(DeviceInUse, match=f"CPU-1 is being measured by process {os.getpid()}"),
        hold("CPU-1", folder=tmp_path),
    ):
        pass


def test_a_device_is_free_after_its_holder(tmp_path: Path) -> None:
    """Leaving the context, also by an exception, frees the device."""
    with pytest.raises(ValueError, match="x"), hold("GPU-1", folder=tmp_path):
        raise ValueError("x")

    with hold("GPU-1", folder=tmp_path):
        pass


def test_a_killed_holder_frees_the_device(tmp_path: Path) -> None:
    """The lock ends with the process that held it, even by SIGKILL."""
    code = (
        "import sys; from pathlib import Path; from probes.holder import hold\n"
        f"with hold('GPU-1', folder=Path({str(tmp_path)!r})):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DeviceInUse, match=f"process {holder.pid}"), hold("GPU-1", folder=tmp_path):
            pass
        holder.kill()

    with hold("GPU-1", folder=tmp_path):
        pass


def test_a_group_holds_its_members(tmp_path: Path) -> None:
    """POWER-37: a held group's GPUs are all held: neither one of them nor another group with it is free."""
    with hold("GPU-1+GPU-2", folder=tmp_path):
        for wanted in ("GPU-1", "GPU-2", "GPU-2+GPU-3"):
            with pytest.raises(DeviceInUse, match=f"process {os.getpid()}"), hold(wanted, folder=tmp_path):
                pass
        with hold("GPU-3", folder=tmp_path):
            pass
    with hold("GPU-2+GPU-3", folder=tmp_path):
        pass


def test_all_or_none_are_held(tmp_path: Path) -> None:
    """Where the last of several is taken, those before it are free again."""
    with hold("GPU-3", folder=tmp_path):
        with pytest.raises(DeviceInUse, match="GPU-3"), hold_all(["GPU-3", "GPU-1", "GPU-2"], folder=tmp_path):
            pass
        with hold_all(["GPU-2", "GPU-1", "GPU-2"], folder=tmp_path):
            pass


def test_two_that_want_the_same_take_turns(tmp_path: Path) -> None:
    """Two threads that name the same GPUs in opposite orders never hold them at once, and both get their turns."""
    holding = []
    overlaps = []

    def take(uuids: list[str]) -> int:
        num_held = 0
        while num_held < 20:
            try:
                with hold_all(uuids, folder=tmp_path):
                    holding.append(uuids)
                    overlaps.append(len(holding) > 1)
                    holding.remove(uuids)
                    num_held += 1
            except DeviceInUse:
                continue
        return num_held

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(take, [["GPU-1", "GPU-2"], ["GPU-2", "GPU-1"]])) == [20, 20]
    assert not any(overlaps)
