"""The guard where there is one, else this process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from probes.control.guard_client import GuardedControl
from probes.control.guard_config import DeviceRules
from probes.control.journal import Holder, Journal
from probes.control.keeper import Keeper, Outcome
from probes.control.local import LocalControl
from probes.control.opening import blocked, guard_status, offered, open_control, recover
from probes.detect import Host
from probes.errors import GuardUnavailable, RestoreFailed
from probes.identity import process_identity
from probes.settings import Settable
from tests.probes.control.kept_gpus import BOTH, CAPPED, RESET_CLOCK, UNKNOWN_ERROR, KeptGpus, make_kept_gpus
from tests.probes.control.running_guard import RunningGuard, guarding
from tests.probes.fake_gpu import FIRST_UUID, SECOND_UUID

FREE = [(None, 700_000), (None, 500_000)]
SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@pytest.fixture
def guard(machine: KeptGpus) -> Iterator[RunningGuard]:
    """A guard that is not started: its places, and a host of real processes."""
    with guarding(machine) as guard:
        yield guard


def long_gone() -> Holder:
    return Holder(process=replace(process_identity(), started="1"), label="a job long gone")


def leave_set(host: Host, state_dir: Path, holder: Holder | None = None) -> None:
    """Let a process set both GPUs and never put them back."""
    Keeper(host, Journal(state_dir)).apply(BOTH, CAPPED, holder or long_gone())


def left_over_socket(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))


def outcomes(guard: RunningGuard, state_dir: Path) -> list[tuple[str, Outcome]]:
    done = recover(host=guard.host, state_dir=state_dir, guard_socket=guard.socket)
    return [(recovery.device_uuid, recovery.outcome) for recovery in done]


def test_the_guard_tells_what_it_allows(machine: KeptGpus) -> None:
    """What may be set is what the configuration and the device allow; a device that is not listed has no knobs."""
    rules = DeviceRules(ranges={"power_cap_w": (300, 450)})
    with guarding(machine, devices={FIRST_UUID: rules}) as guard:
        assert None is offered(FIRST_UUID, guard.socket)
        guard.start()
        assert (Settable(name="power_cap_w", values=(300, 450), is_range=True),) == offered(FIRST_UUID, guard.socket)
        assert offered(SECOND_UUID, guard.socket) == ()


def test_without_a_socket_this_process_sets(machine: KeptGpus, guard: RunningGuard, tmp_path: Path) -> None:
    """Where no guard is installed, control is from within, with the journal in the state folder."""
    control = open_control(
        BOTH, host=guard.host, state_dir=tmp_path / "own", guard_socket=guard.socket, label="a job",
        prior_caps_mhz={FIRST_UUID: 1500},
    )  # fmt: skip
    assert isinstance(control, LocalControl)
    control.apply(CAPPED)
    assert [entry.device_uuid for entry in Journal(tmp_path / "own").entries()] == list(BOTH)
    control.close()
    assert machine.state() == [((210, 1500), 700_000), FREE[1]]


def test_with_a_socket_the_guard_sets(machine: KeptGpus, guard: RunningGuard, tmp_path: Path) -> None:
    """Where a guard listens, control is through it, and the journal is its own."""
    guard.start()
    control = open_control(BOTH, host=guard.host, state_dir=tmp_path / "own", guard_socket=guard.socket, label="a job")
    assert isinstance(control, GuardedControl)
    control.apply(CAPPED)
    assert machine.state() == SET
    assert not (tmp_path / "own").exists()
    control.close()
    assert machine.state() == FREE


def test_a_guard_that_does_not_answer_is_not_passed_over(guard: RunningGuard, tmp_path: Path) -> None:
    """A socket that nobody serves is refused with the remedy: settings without the guard that was meant are worse."""
    left_over_socket(guard.socket)
    with pytest.raises(GuardUnavailable, match="start `wattfront guard` again"):
        open_control(BOTH, host=guard.host, state_dir=tmp_path, guard_socket=guard.socket, label="a job")


def test_a_start_without_journal_does_nothing(guard: RunningGuard, tmp_path: Path) -> None:
    """On a machine where nothing was ever set, neither folder nor driver is touched."""
    assert outcomes(guard, tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_a_start_puts_back_what_a_dead_process_left(machine: KeptGpus, guard: RunningGuard, tmp_path: Path) -> None:
    """POWER-34: without a guard, the next start puts back both GPUs; a second one finds nothing to do."""
    leave_set(guard.host, tmp_path)
    assert outcomes(guard, tmp_path) == [(FIRST_UUID, Outcome.PUT_BACK), (SECOND_UUID, Outcome.PUT_BACK)]
    assert machine.state() == FREE
    assert outcomes(guard, tmp_path) == []


def test_a_start_can_be_for_one_device(machine: KeptGpus, guard: RunningGuard, tmp_path: Path) -> None:
    """Named devices alone are put back."""
    leave_set(guard.host, tmp_path)
    done = recover(host=guard.host, state_dir=tmp_path, guard_socket=guard.socket, device_uuids=[SECOND_UUID])
    assert [recovery.device_uuid for recovery in done] == [SECOND_UUID]
    assert machine.state() == [SET[0], FREE[1]]


def test_a_start_leaves_the_living_alone(machine: KeptGpus, guard: RunningGuard, tmp_path: Path) -> None:
    """What a live process holds is its own to put back."""
    leave_set(guard.host, tmp_path, Holder(process=process_identity(), label="a job"))
    assert outcomes(guard, tmp_path) == []
    assert machine.state() == SET


def test_a_start_beside_a_killed_guard_does_its_work(machine: KeptGpus, guard: RunningGuard) -> None:
    """POWER-34: where only the guard's socket is left, this process puts back what its journal tells."""
    left_over_socket(guard.socket)
    leave_set(guard.host, guard.config.state_dir)
    assert outcomes(guard, guard.config.state_dir) == [(uuid, Outcome.PUT_BACK) for uuid in BOTH]
    assert machine.state() == FREE


def test_a_start_beside_a_guard_lets_it_do_the_work(machine: KeptGpus, guard: RunningGuard) -> None:
    """The guard tries again what failed, and its journal is left to it."""
    guard.start()
    machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
    with pytest.raises(RestoreFailed):
        leave_and_restore(guard)
    assert outcomes(guard, guard.config.state_dir) == [(FIRST_UUID, Outcome.FAILED)]
    machine.gpus[0].refusals.clear()
    assert outcomes(guard, guard.config.state_dir) == [(FIRST_UUID, Outcome.PUT_BACK)]
    assert machine.state() == FREE


def leave_and_restore(guard: RunningGuard) -> None:
    control = GuardedControl(guard.socket, BOTH, "a job")
    control.apply(CAPPED)
    control.close()


def test_a_journal_of_our_own_is_ours_beside_a_guard(machine: KeptGpus, guard: RunningGuard, tmp_path: Path) -> None:
    """What was set without the guard, before there was one, is in another journal and is put back as well."""
    guard.start()
    leave_set(guard.host, tmp_path)
    assert outcomes(guard, tmp_path) == [(uuid, Outcome.PUT_BACK) for uuid in BOTH]
    assert machine.state() == FREE


def test_devices_are_blocked_by_what_is_left_there(machine: KeptGpus, guard: RunningGuard, tmp_path: Path) -> None:
    """Devices that a dead process left set are named with the reason, and free once they are put back."""
    assert blocked(tmp_path / "none") == {}
    leave_set(guard.host, tmp_path)
    assert set(blocked(tmp_path)) == set(BOTH)
    assert "(a job long gone) ended and left it set" in blocked(tmp_path)[FIRST_UUID]
    machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
    outcomes(guard, tmp_path)
    assert set(blocked(tmp_path)) == {FIRST_UUID}
    assert "sm_clock_cap_mhz" in blocked(tmp_path)[FIRST_UUID]
    machine.gpus[0].refusals.clear()
    outcomes(guard, tmp_path)
    assert blocked(tmp_path) == {}


def test_a_held_device_is_not_blocked(guard: RunningGuard, tmp_path: Path) -> None:
    """What a live process has set will be put back by it; that it is in use is told elsewhere."""
    leave_set(guard.host, tmp_path, Holder(process=process_identity(), label="a job"))
    assert blocked(tmp_path) == {}


def test_settings_of_another_boot_block_nothing(machine: KeptGpus, tmp_path: Path) -> None:
    """A restart undid them."""
    leave_set(machine.host, tmp_path, machine.holder())
    assert blocked(tmp_path) == {}


def test_a_damaged_entry_blocks(tmp_path: Path) -> None:
    """POWER-38: a device whose entry cannot be read may be set to anything; the file is named."""
    (tmp_path / f"{FIRST_UUID}.json").write_text("{")
    assert f"{FIRST_UUID}.json cannot be read" in blocked(tmp_path)[FIRST_UUID]


def test_a_holder_in_another_namespace_does_not_block(machine: KeptGpus) -> None:
    """Seen from a container, a worker of the host may well be alive: that its device is in use is told elsewhere."""
    machine.enter_pid_namespace("host")
    leave_set(machine.host, machine.journal.folder, machine.holder())
    machine.proc.end_process(700)
    machine.enter_pid_namespace("container")
    assert blocked(machine.journal.folder, paths=machine.host.paths) == {}
    machine.enter_pid_namespace("host")
    assert set(blocked(machine.journal.folder, paths=machine.host.paths)) == set(BOTH)


def test_a_failed_restore_of_another_boot_blocks_nothing(machine: KeptGpus) -> None:
    """A restart undid what could not be put back."""
    keeper = machine.keeper()
    keeper.apply([FIRST_UUID], CAPPED, machine.holder())
    machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
    with pytest.raises(RestoreFailed):
        keeper.restore([FIRST_UUID])
    assert set(blocked(machine.journal.folder, paths=machine.host.paths)) == {FIRST_UUID}
    machine.boot("another")
    assert blocked(machine.journal.folder, paths=machine.host.paths) == {}


def test_a_socket_that_may_not_be_looked_for_is_none(
    machine: KeptGpus, guard: RunningGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the socket's folder is closed to this user there is no guard for it; it sets for itself."""

    def refuse(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    own = tmp_path / "own"
    control = open_control(BOTH, host=guard.host, state_dir=own, guard_socket=guard.socket, label="a job")
    assert isinstance(control, LocalControl)
    control.close()
    assert outcomes(guard, own) == []
    assert guard_status(guard.socket) is None


def test_a_guard_that_serves_tells_its_status(machine: KeptGpus, guard: RunningGuard) -> None:
    """What is held is in it; a socket that nobody serves tells nothing."""
    guard.start()
    control = GuardedControl(guard.socket, BOTH, "a job")
    control.apply(CAPPED)
    status = guard_status(guard.socket)
    assert status is not None
    assert [held.device_uuid for held in status.held] == sorted(BOTH)
    control.close()
    left_over_socket(guard.socket.parent / "d" / "other.sock")
    assert guard_status(guard.socket.parent / "d" / "other.sock") is None
