"""Control through the guard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probes.control import guard as guard_module
from probes.control.guard_client import GuardedControl
from probes.control.guard_config import DeviceRules
from probes.control.guard_link import GuardLink
from probes.control.guard_wire import Request
from probes.control.leases import Peer
from probes.errors import (
    ControlLeaseLost,
    DeviceInUse,
    GuardUnavailable,
    InvalidSetting,
    ProbeError,
    RestoreFailed,
    Uncontrolled,
)
from probes.identity import process_identity
from probes.settings import POWER_CAP, DeviceSettings
from tests.probes.control.control_contract import ControlContract
from tests.probes.control.kept_gpus import (
    BOTH,
    CAPPED,
    NO_PERMISSION,
    RESET_CLOCK,
    SET_LIMIT,
    UNKNOWN_ERROR,
    KeptGpus,
    make_kept_gpus,
)
from tests.probes.control.running_guard import RunningGuard, guarding, wait_until
from tests.probes.fake_gpu import FIRST_UUID

FREE = [(None, 700_000), (None, 500_000)]
SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]
MakeControl = Callable[..., GuardedControl]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@pytest.fixture
def guard(machine: KeptGpus) -> Iterator[RunningGuard]:
    with guarding(machine) as guard:
        guard.start()
        yield guard


@pytest.fixture
def make_control(guard: RunningGuard, machine: KeptGpus) -> Iterator[MakeControl]:
    made: list[GuardedControl] = []

    def make(*, longest_restart_s: float = 0.2) -> GuardedControl:
        control = GuardedControl(guard.socket, BOTH, "a job", longest_restart_s=longest_restart_s)
        made.append(control)
        return control

    yield make
    for gpu in machine.gpus:
        gpu.refusals.clear()
    for control in made:
        try:
            control.close()
        except RestoreFailed:
            continue  # its guard is gone, as the test wanted


def lose(control: GuardedControl) -> None:
    """Cut the connection as a guard does that no longer hears from us."""
    control._link._lose("cut by the test")


@pytest.fixture
def control(make_control: MakeControl) -> GuardedControl:
    return make_control()


class TestGuardedControl(ControlContract):
    """A control through the guard keeps the seam's promises."""


def test_it_says_which_guard_it_is(control: GuardedControl) -> None:
    """The description names the guard's process, which in these tests is this one."""
    assert str(os.getpid()) in control.description


def test_settings_follow_each_other(machine: KeptGpus, make_control: MakeControl) -> None:
    """A later apply replaces the former, and an empty one puts everything back."""
    control = make_control()
    control.apply(CAPPED)
    control.apply(DeviceSettings(power_cap_w=300))
    assert machine.state() == [(None, 300_000), (None, 300_000)]
    control.apply(DeviceSettings())
    assert machine.state() == FREE


def test_a_change_by_others_is_a_problem(machine: KeptGpus, make_control: MakeControl) -> None:
    """The guard reads back what was applied, and nothing after a restore."""
    control = make_control()
    control.apply(CAPPED)
    machine.gpus[0].limit_mw = 650_000
    assert control.problems() == ("external_change",)
    control.restore()
    assert control.problems() == ()


def _refuse_writes(machine: KeptGpus) -> None:
    machine.gpus[1].refusals[SET_LIMIT] = NO_PERMISSION


def _fail_to_roll_back(machine: KeptGpus) -> None:
    _refuse_writes(machine)
    machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR


@pytest.mark.parametrize(
    ("break_it", "watts", "error"),
    [
        (_refuse_writes, 400, Uncontrolled),
        (lambda _: None, 5000, InvalidSetting),
        (_fail_to_roll_back, 400, RestoreFailed),
    ],
)
def test_errors_are_those_of_control_from_within(
    machine: KeptGpus,
    make_control: MakeControl,
    break_it: Callable[[KeptGpus], None],
    watts: int,
    error: type[ProbeError],
) -> None:
    """POWER-23: what goes wrong in the guard is raised here under the same name, and nothing is expected to hold."""
    control = make_control()
    break_it(machine)
    with pytest.raises(error):
        control.apply(DeviceSettings(sm_clock_cap_mhz=1005, power_cap_w=watts))
    assert control.problems() == ()


def test_a_device_in_use_is_refused(machine: KeptGpus, make_control: MakeControl) -> None:
    """POWER-37: a second control learns the first one's process id, and closing it changes nothing."""
    first, second = make_control(), make_control()
    first.apply(CAPPED)
    with pytest.raises(DeviceInUse, match=f"process {os.getpid()}"):
        second.apply(DeviceSettings(power_cap_w=300))
    second.close()
    assert machine.state() == SET


def test_what_the_guard_does_not_allow_is_refused(machine: KeptGpus) -> None:
    """A knob or value outside the guard's configuration is refused by name."""
    with guarding(machine, devices={"*": DeviceRules(ranges={POWER_CAP: (300, 600)})}) as guard:
        guard.start()
        control = GuardedControl(guard.socket, BOTH, "a job")
        with pytest.raises(Uncontrolled, match="sm_clock_cap_mhz may not be set"):
            control.apply(CAPPED)
        with pytest.raises(InvalidSetting, match="allows 300 to 600"):
            control.apply(DeviceSettings(power_cap_w=250))
        control.close()


def test_a_lost_lease_is_a_problem(machine: KeptGpus, make_control: MakeControl) -> None:
    """POWER-41: once the connection is gone the settings do not hold, the restore is sure, and a new lease begins."""
    control = make_control(longest_restart_s=60)
    control.apply(CAPPED)
    lose(control)
    assert control.problems() == ("control_lease_lost",)
    control.restore()
    assert machine.state() == FREE
    control.apply(CAPPED)
    assert machine.state() == SET
    assert control.problems() == ()


def test_a_loss_that_the_restore_finds_is_told_afterwards(machine: KeptGpus, make_control: MakeControl) -> None:
    """POWER-41: whoever asks only after the restore still learns that the settings were gone, until the next apply."""
    control = make_control(longest_restart_s=60)
    control.apply(CAPPED)
    lose(control)
    control.restore()
    control.restore()
    assert machine.state() == FREE
    assert control.problems() == ("control_lease_lost",)
    control.apply(CAPPED)
    assert control.problems() == ()
    control.restore()
    assert control.problems() == ()


def test_our_lease_is_known_by_its_token(
    machine: KeptGpus, guard: RunningGuard, make_control: MakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker in a container, whose process id there is not the guard's, is not told that what it set is put back."""
    seen = Peer(process=process_identity(os.getppid()), uid=os.geteuid(), gids=frozenset())
    monkeypatch.setattr(guard_module, "peer_of", lambda *_: seen)
    control = make_control()
    control.apply(CAPPED)
    kept = os.dup(control._link._socket.fileno())  # as if the guard had not noticed yet
    try:
        lose(control)
        with pytest.raises(RestoreFailed, match="its lease has not ended"):
            control.restore()
        assert machine.state() == SET
    finally:
        os.close(kept)


def test_another_lease_of_this_process_is_not_ours(machine: KeptGpus, make_control: MakeControl) -> None:
    """A restore after a lost lease does not wait for what the same process holds through another connection."""
    first, second = make_control(longest_restart_s=60), make_control()
    first.apply(CAPPED)
    lose(first)
    wait_until(lambda: machine.state() == FREE, what="the end of the first lease")
    second.apply(CAPPED)
    first.restore()
    assert machine.state() == SET


def test_an_empty_apply_that_loses_the_lease_still_owes_a_restore(
    guard: RunningGuard, make_control: MakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was applied before is not forgotten when nobody answers that it is put back."""
    control = make_control()
    control.apply(CAPPED)

    def lose_and_ask(link: GuardLink, request: Request) -> None:
        link._lose("cut by the test")
        raise ControlLeaseLost("cut by the test")

    with monkeypatch.context() as cut:
        cut.setattr(GuardLink, "ask", lose_and_ask)
        with pytest.raises(ControlLeaseLost):
            control.apply(DeviceSettings())
    guard.stop()
    with pytest.raises(RestoreFailed, match="may still be set"):
        control.close()


def test_a_roll_back_that_failed_is_not_forgotten(machine: KeptGpus, make_control: MakeControl) -> None:
    """POWER-32: after an apply that could not be undone, restore and close say so until the guard has put it back."""
    control = make_control(longest_restart_s=60)
    _fail_to_roll_back(machine)
    with pytest.raises(RestoreFailed):
        control.apply(CAPPED)
    for end in (control.restore, control.close, control.close):
        with pytest.raises(RestoreFailed, match="sm_clock_cap_mhz"):
            end()
    machine.gpus[0].refusals.clear()
    control.close()
    assert machine.state() == FREE


def test_a_new_lease_begins_after_the_old_one_has_ended(machine: KeptGpus, make_control: MakeControl) -> None:
    """Applying after a lost lease waits until what it set is put back, so that what is found is what was there."""
    control = make_control(longest_restart_s=60)
    control.apply(CAPPED)
    lose(control)
    control.apply(DeviceSettings(power_cap_w=300))
    assert machine.state() == [(None, 300_000), (None, 300_000)]
    control.restore()
    assert machine.state() == FREE


def test_a_guard_that_ends_is_a_problem(machine: KeptGpus, guard: RunningGuard, make_control: MakeControl) -> None:
    """When the guard stops it has put back everything, but there is nobody to say so: the restore is not sure."""
    control = make_control()
    control.apply(CAPPED)
    guard.stop()
    assert control.problems() == ("control_lease_lost",)
    with pytest.raises(RestoreFailed, match=r"may still be set.*it is not there"):
        control.restore()
    assert machine.state() == FREE


def test_a_guard_that_comes_back_makes_sure(machine: KeptGpus, guard: RunningGuard, make_control: MakeControl) -> None:
    """Once a guard listens again, the same control restores without an error and can apply anew."""
    control = make_control()
    control.apply(CAPPED)
    guard.stop()
    with pytest.raises(GuardUnavailable):
        GuardedControl(guard.socket, BOTH, "another job")
    guard.start()
    control.restore()
    control.apply(CAPPED)
    assert machine.state() == SET


def test_an_apply_that_loses_the_lease_is_made_sure_of(
    machine: KeptGpus, make_control: MakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the answer to an apply does not come, closing makes sure that nothing is left set."""
    control = make_control(longest_restart_s=60)
    asked = GuardLink.ask

    def ask_and_lose(link: GuardLink, request: Request) -> None:
        asked(link, request)
        link._lose("cut by the test")
        raise ControlLeaseLost("cut by the test")

    monkeypatch.setattr(GuardLink, "ask", ask_and_lose)
    with pytest.raises(ControlLeaseLost):
        control.apply(CAPPED)
    monkeypatch.setattr(GuardLink, "ask", asked)
    control.close()
    assert machine.state() == FREE


def test_a_forked_child_leaves_the_lease_alone(machine: KeptGpus, make_control: MakeControl) -> None:
    """A child neither restores nor ends what its parent holds, and is refused as any other process would be."""
    control = make_control()
    control.apply(CAPPED)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        seen = [*control.problems()]
        control.restore()
        try:
            control.apply(DeviceSettings(power_cap_w=300))
        except DeviceInUse as error:
            seen.append(str(error))
        control.close()
        os.write(write_end, "; ".join(seen).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said.startswith(f"{FIRST_UUID} is set by process {os.getpid()}")
    assert control.problems() == ()
    assert machine.state() == SET
