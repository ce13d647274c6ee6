"""Who holds a job, and whether that process is gone."""

from __future__ import annotations

import subprocess
import sys

from api.owners import is_dead, owner_name
from tests.api.commands import wait_until


def test_this_process_is_alive() -> None:
    """A worker does not take itself, or a worker of another machine, for dead."""
    assert not is_dead(owner_name())
    assert not is_dead("elsewhere:1:1")
    assert not is_dead("elsewhere:999999999:1")


def test_a_process_that_ended_is_dead() -> None:
    """A worker of this machine whose process is gone is dead, also while nobody has reaped it."""
    code = "from api.owners import owner_name; print(owner_name(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        assert not is_dead(owner)
        process.kill()
        wait_until(lambda: is_dead(owner), what="the kill to be seen")
    assert is_dead(owner)


def test_a_process_id_that_was_used_again_is_dead() -> None:
    """An owner whose process id now belongs to a process with another start is dead."""
    host, pid, start = owner_name().rsplit(":", 2)
    assert is_dead(f"{host}:{pid}:{int(start) + 1}")
