"""Who a process is, and whether it can be known to have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from probes.identity import ProcessIdentity, is_other_boot, process_identity
from tests.probes.control.kept_gpus import KeptGpus, make_kept_gpus


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


def test_this_process_is_alive_and_here() -> None:
    """The kernel tells this process's start and PID namespace, and it is alive."""
    ourselves = process_identity()
    assert ourselves.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    assert (ourselves.is_alive(), ourselves.may_be_alive(), ourselves.is_elsewhere()) == (True, True, False)


def test_a_process_that_ended_is_dead() -> None:
    """Of this namespace, a process id with another start is somebody else's."""
    gone = replace(process_identity(), started="1")
    assert (gone.is_alive(), gone.may_be_alive(), gone.is_elsewhere()) == (False, False, False)


def test_a_process_of_another_namespace_is_neither_alive_nor_dead(machine: KeptGpus) -> None:
    """From a container the host's process ids mean nothing, not even where one of its own has the same number."""
    machine.enter_pid_namespace("host")
    process = machine.holder().process
    machine.enter_pid_namespace("container")
    proc = machine.proc.root
    assert (process.is_alive(proc), process.may_be_alive(proc), process.is_elsewhere(proc)) == (False, True, True)


def test_no_process_outlives_a_boot(machine: KeptGpus) -> None:
    """After a restart of the machine a process of any namespace is dead."""
    machine.enter_pid_namespace("host")
    process = machine.holder().process
    machine.enter_pid_namespace("container")
    machine.boot("another")
    assert not process.may_be_alive(machine.proc.root)


def test_an_identity_without_namespace_is_of_this_one(machine: KeptGpus) -> None:
    """What was written down before namespaces were is judged as it was then."""
    process = machine.holder().process
    assert process.pid_namespace == 0
    machine.enter_pid_namespace("host")
    assert process.is_alive(machine.proc.root)
    machine.proc.end_process(process.pid)
    assert not process.may_be_alive(machine.proc.root)


def test_an_unknown_boot_is_no_other_boot(machine: KeptGpus, tmp_path: Path) -> None:
    """Boots differ only where both are known."""
    assert is_other_boot("another", machine.proc.root)
    assert not is_other_boot("", machine.proc.root)
    assert not is_other_boot("another", tmp_path / "none")


def test_the_kernel_keeps_namespaces_apart() -> None:
    """A process of a real PID namespace of its own sees this one as elsewhere."""
    us = process_identity()
    identity = ProcessIdentity(pid=us.pid, started=us.started, boot_id=us.boot_id, pid_namespace=us.pid_namespace)
    code = f"from probes.identity import ProcessIdentity; print(({identity!r}).is_elsewhere())"
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no new PID namespace here: {error}")
    said = subprocess.run([*unshare, sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, timeout=60)
    assert said.stdout == b"True\n"
