"""One measuring process per device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probes.errors import DeviceInUse
from probes.holder import hold


def test_a_held_device_is_refused_with_its_holder(tmp_path: Path) -> None:
    """A second holder is refused with the first one's process id; another device is not affected."""
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
