"""Faults of control: refused, not taken, left behind. Each test is one known way of getting it wrong.

What takes another process to show (a killed holder under the guard, a stopped one) is tested with the guard.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.control.actuators import actuators_of
from probes.control.attain import cap_attained
from probes.control.guard_client import GuardedControl
from probes.control.journal import Entry
from probes.control.keeper import Outcome
from probes.control.local import LocalControl
from probes.errors import DeviceInUse, InvalidSetting, NotSupported, RestoreFailed, Uncontrolled
from probes.nvidia.gpu import GpuDevice
from probes.nvidia.nvml import Nvml
from probes.settings import DEVICE_KNOBS, DeviceSettings, Settable
from probes.validity import Reason
from tests.probes.control.kept_gpus import (
    BOTH,
    CAPPED,
    NO_PERMISSION,
    RESET_CLOCK,
    SET_CLOCK,
    SET_LIMIT,
    UNKNOWN_ERROR,
    KeptGpus,
    make_kept_gpus,
)
from tests.probes.control.running_guard import guarding, wait_until
from tests.probes.fake_gpu import FIRST_UUID, NOT_SUPPORTED, SECOND_UUID, FakeGpu
from tests.probes.fake_nvml import FakeNvml

INVALID_ARGUMENT = 2
FREE = [(None, 700_000), (None, 500_000)]
CAPPED_CLOCK = DeviceSettings(sm_clock_cap_mhz=1005)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@pytest.fixture
def gpu(machine: KeptGpus) -> FakeGpu:
    return machine.gpus[0]


@pytest.fixture
def control(machine: KeptGpus) -> Iterator[LocalControl]:
    control = LocalControl(machine.keeper(), BOTH, "job a")
    yield control
    for gpu in machine.gpus:
        gpu.refusals.clear()
    control.close()


def clocks_of(machine: KeptGpus, uuid: str = FIRST_UUID) -> Settable:
    """Return the clock caps that a GPU takes."""
    (settable,) = (
        actuator.settable() for actuator in actuators_of(uuid, machine.host, {}) if actuator.knob == "sm_clock_cap_mhz"
    )
    return settable


def attained(machine: KeptGpus, cap_mhz: int) -> tuple[Reason, ...]:
    """Return what the check under load says of the first GPU."""
    clocks = clocks_of(machine)
    return cap_attained(
        lambda: machine.host.nvml.sm_clock_mhz(FIRST_UUID), cap_mhz, clocks.step_below(cap_mhz), machine.clock
    )


@pytest.mark.parametrize("refused", [SET_CLOCK, SET_LIMIT])
def test_power_23_a_refused_write_is_uncontrolled(machine: KeptGpus, control: LocalControl, refused: str) -> None:
    """POWER-23: a write refused for lack of permission raises, names the permission, and nothing is set."""
    for gpu in machine.gpus:
        gpu.refusals.update(dict.fromkeys((refused, RESET_CLOCK), NO_PERMISSION))
    chosen = CAPPED_CLOCK if refused == SET_CLOCK else DeviceSettings(power_cap_w=400)
    with pytest.raises(Uncontrolled, match="CAP_SYS_ADMIN"):
        control.apply(chosen)
    assert machine.state() == FREE
    assert machine.journal.entries() == ()


def test_power_24_a_knob_that_is_not_supported_is_not_offered(
    machine: KeptGpus, gpu: FakeGpu, control: LocalControl
) -> None:
    """POWER-24: a board without a settable limit says so before anything is sampled; asking anyway is an error."""
    gpu.refusals["nvmlDeviceGetPowerManagementLimitConstraints"] = NOT_SUPPORTED
    power, clock = actuators_of(FIRST_UUID, machine.host, {})
    with pytest.raises(NotSupported, match="not supported by this GPU"):
        power.settable()
    assert clock.settable().highest == 1980
    with pytest.raises(Uncontrolled, match="power_cap_w could not be set to 400"):
        control.apply(DeviceSettings(power_cap_w=400))
    assert machine.state() == FREE


def test_power_25_values_off_the_grid_are_snapped_or_refused(
    machine: KeptGpus, gpu: FakeGpu, control: LocalControl
) -> None:
    """POWER-25: a request is snapped to a lower clock; unsnapped it is refused, and so is what the driver refuses."""
    assert clocks_of(machine).snapped(1000) == 990
    with pytest.raises(InvalidSetting, match="takes 990, not 1000"):
        control.apply(DeviceSettings(sm_clock_cap_mhz=1000))
    gpu.refusals[SET_CLOCK] = INVALID_ARGUMENT
    with pytest.raises(Uncontrolled, match="invalid argument"):
        control.apply(CAPPED_CLOCK)
    assert machine.state() == FREE


def test_power_26_an_accepted_lock_that_does_not_hold_is_seen(
    machine: KeptGpus, gpu: FakeGpu, control: LocalControl
) -> None:
    """POWER-26: success of the call is not evidence; a clock that stays high under load is clock_not_attained."""
    gpu.is_lock_effective = False
    control.apply(CAPPED_CLOCK)
    assert gpu.present_sm_clock_mhz() == 1980
    assert attained(machine, 1005) == (Reason.CLOCK_NOT_ATTAINED,)


def test_power_27_success_without_effect_is_found_by_reading_back(
    machine: KeptGpus, control: LocalControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """POWER-27: a setter that answers success and does nothing does not pass: the limit is read back."""
    monkeypatch.setattr(FakeNvml, "ask_nvmlDeviceSetPowerManagementLimit", lambda *_arguments: 0)
    with pytest.raises(Uncontrolled, match="the power limit reads 700 W instead of 400 W"):
        control.apply(DeviceSettings(power_cap_w=400))
    assert machine.state() == FREE


def test_power_27_setters_that_swallow_errors_are_not_called(machine: KeptGpus, control: LocalControl) -> None:
    """POWER-27: every write goes through a call whose error code the bindings raise."""
    control.apply(CAPPED)
    control.restore()
    written = {write[0] for gpu in machine.gpus for write in gpu.writes}
    assert written == {SET_CLOCK, RESET_CLOCK, SET_LIMIT}


def test_power_28_a_limit_that_another_actor_changed_is_seen(
    machine: KeptGpus, gpu: FakeGpu, control: LocalControl
) -> None:
    """POWER-28: a limit changed in the middle of a trial reads back as external_change."""
    control.apply(CAPPED)
    gpu.at(machine.clock.monotonic_s() + 5.0, lambda: setattr(gpu, "limit_mw", 650_000))
    assert control.problems() == ()
    machine.clock.advance(6.0)
    assert control.problems() == ("external_change",)


def test_power_28_a_clock_that_another_actor_unlocked_is_seen(
    machine: KeptGpus, gpu: FakeGpu, control: LocalControl
) -> None:
    """POWER-28: locks cannot be read back, so one that somebody reset shows in the clock under load."""
    control.apply(CAPPED_CLOCK)
    assert attained(machine, 1005) == ()
    gpu.locked = None
    assert attained(machine, 1005) == (Reason.CLOCK_NOT_ATTAINED,)


def test_power_29_a_lower_limit_in_force_is_told(machine: KeptGpus, gpu: FakeGpu, control: LocalControl) -> None:
    """POWER-29: a limit set out of band below the request is limit_overridden, at once and later."""
    control.apply(DeviceSettings(power_cap_w=400))
    gpu.enforced_mw = 350_000
    assert control.problems() == ("limit_overridden",)
    with pytest.raises(Uncontrolled, match="limit_overridden: a limit of 350 W is enforced instead of 450 W"):
        control.apply(DeviceSettings(power_cap_w=450))
    assert machine.state() == FREE


def test_power_30_without_supported_clocks_there_is_no_cap(
    machine: KeptGpus, gpu: FakeGpu, control: LocalControl
) -> None:
    """POWER-30: an empty list of clocks takes the knob away; the clock is never locked to 0."""
    gpu.clocks_mhz = ()
    with pytest.raises(NotSupported, match="list of supported clocks is empty"):
        clocks_of(machine)
    with pytest.raises(Uncontrolled, match="list of supported clocks is empty"):
        control.apply(CAPPED_CLOCK)
    assert gpu.writes == gpu.refused_writes == []


def test_power_31_there_is_no_memory_clock(machine: KeptGpus) -> None:
    """POWER-31: no knob and no call sets a memory clock, on Hopper or elsewhere."""
    assert {actuator.knob for actuator in actuators_of(FIRST_UUID, machine.host, {})} == {
        "power_cap_w",
        "sm_clock_cap_mhz",
    }
    assert not any("memory" in knob for knob in DEVICE_KNOBS)
    assert [name for name in vars(Nvml) if name.startswith(("set_", "reset_")) and "memory" in name] == []


@pytest.mark.parametrize("refused", [SET_CLOCK, SET_LIMIT])
@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN_ERROR])
def test_power_32_a_failure_on_one_gpu_undoes_the_other(
    machine: KeptGpus, control: LocalControl, refused: str, code: int
) -> None:
    """POWER-32: what was set on the first GPU of a group is rolled back when the second one refuses."""
    tries: list[None] = []

    def refuse_first() -> int:
        tries.append(None)
        return code if len(tries) == 1 else 0

    machine.gpus[1].refusals[refused] = refuse_first
    with pytest.raises(Uncontrolled, match=SECOND_UUID):
        control.apply(CAPPED)
    assert machine.gpus[0].writes != []
    assert machine.state() == FREE
    assert machine.journal.entries() == ()


def test_power_33_an_exception_in_a_trial_restores(machine: KeptGpus, control: LocalControl) -> None:
    """POWER-33: a trial that raises ends with everything as it was found."""

    def trial() -> None:
        try:
            control.apply(CAPPED)
            raise ValueError("the trial failed")
        finally:
            control.restore()

    with pytest.raises(ValueError, match="the trial failed"):
        trial()
    assert machine.state() == FREE


@pytest.mark.parametrize("call", [RESET_CLOCK, SET_LIMIT])
def test_power_33_ctrl_c_during_a_restore_lets_it_finish(machine: KeptGpus, control: LocalControl, call: str) -> None:
    """POWER-33: KeyboardInterrupt comes after the last write, and a second Ctrl-C does not cut it short either."""

    def interrupt() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return 0

    control.apply(CAPPED)
    for gpu in machine.gpus:
        gpu.refusals[call] = interrupt
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            control.restore()
    finally:
        signal.signal(signal.SIGINT, former)
    assert machine.state() == FREE
    assert machine.journal.entries() == ()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_power_34_a_signal_ends_the_trial_and_restores(
    machine: KeptGpus, control: LocalControl, number: signal.Signals
) -> None:
    """POWER-34: a program whose handler raises gives everything back on its way out."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(1)

    def trial() -> None:
        try:
            control.apply(CAPPED)
            os.kill(os.getpid(), number)
        finally:
            control.restore()

    former = signal.signal(number, end)
    try:
        with pytest.raises(SystemExit):
            trial()
    finally:
        signal.signal(number, former)
    assert machine.state() == FREE


def test_power_34_a_killed_process_is_cleaned_up_after(machine: KeptGpus) -> None:
    """POWER-34: what a process left that could not restore is put back by the next one to start."""
    holder = machine.holder(700)
    machine.keeper().apply(BOTH, CAPPED, holder)
    machine.kill(holder)
    assert {record.outcome for record in machine.keeper().recover()} == {Outcome.PUT_BACK}
    assert machine.state() == FREE


def test_power_34_after_a_reboot_nothing_is_written(machine: KeptGpus) -> None:
    """POWER-34: a restart undid everything, so the entry is dropped and the devices are left alone."""
    machine.keeper().apply(BOTH, CAPPED, machine.holder())
    machine.boot("the-next-boot")
    for gpu in machine.gpus:
        gpu.reload_driver()
        gpu.writes.clear()
    assert {record.outcome for record in machine.keeper().recover()} == {Outcome.REBOOTED}
    assert [gpu.writes for gpu in machine.gpus] == [[], []]
    assert machine.journal.entries() == ()


@pytest.mark.parametrize(
    ("refused", "left"),
    [(RESET_CLOCK, [((210, 1005), 700_000), FREE[1]]), (SET_LIMIT, [(None, 400_000), FREE[1]])],
)
def test_power_35_one_failing_knob_does_not_stop_the_others(
    machine: KeptGpus,
    gpu: FakeGpu,
    control: LocalControl,
    refused: str,
    left: list[tuple[tuple[int, int] | None, int]],
) -> None:
    """POWER-35: when one knob cannot be put back, the other knob and the other GPU still are."""
    control.apply(CAPPED)
    gpu.refusals[refused] = UNKNOWN_ERROR
    with pytest.raises(RestoreFailed, match=FIRST_UUID):
        control.restore()
    assert machine.state() == left


def test_power_35_all_errors_are_told_and_block_the_device(machine: KeptGpus, control: LocalControl) -> None:
    """POWER-35: the error has every knob that failed, and no job gets the device until a restore succeeds."""
    control.apply(CAPPED)
    for gpu in machine.gpus:
        gpu.refusals.update({RESET_CLOCK: UNKNOWN_ERROR, SET_LIMIT: UNKNOWN_ERROR})
    with pytest.raises(RestoreFailed) as failure:
        control.restore()
    said = str(failure.value)
    assert (said.count("sm_clock_cap_mhz"), said.count("power_cap_w")) == (2, 2)
    assert set(machine.keeper().failed()) == set(BOTH)
    for gpu in machine.gpus:
        gpu.refusals.clear()
    with pytest.raises(RestoreFailed, match="is blocked"):
        LocalControl(machine.keeper(), BOTH, "job b").apply(CAPPED)
    machine.keeper().restore(BOTH)
    assert machine.state() == FREE
    control.apply(CAPPED)


def test_power_36_an_administrators_limit_comes_back(machine: KeptGpus, control: LocalControl) -> None:
    """POWER-36: a limit of 500 W that was found is put back as 500 W, not as the default 700 W."""
    control.apply(DeviceSettings(power_cap_w=300))
    control.apply(DeviceSettings(power_cap_w=600))
    control.restore()
    assert machine.gpus[1].limit_mw == 500_000


def test_power_37_a_second_tuner_is_refused(machine: KeptGpus) -> None:
    """POWER-37: another process that wants the same GPU learns who has it, and changes nothing."""
    machine.keeper().apply([SECOND_UUID], CAPPED, machine.holder(700, "job a"))
    before = machine.state()
    with pytest.raises(DeviceInUse, match=rf"{SECOND_UUID} is set by process 700 \(job a\)"):
        machine.keeper().apply(BOTH, DeviceSettings(power_cap_w=300), machine.holder(701, "job b"))
    assert machine.state() == before


def test_power_38_a_truncated_journal_is_answered_by_a_reset(machine: KeptGpus) -> None:
    """POWER-38: of a device whose entry is cut short, locks are undone and the default limit is set, as an alert."""
    holder = machine.holder(700)
    machine.keeper().apply(BOTH, CAPPED, holder)
    machine.kill(holder)
    path = machine.journal.folder / f"{SECOND_UUID}.json"
    path.write_text(path.read_text()[:100])
    good, damaged = machine.keeper().recover()
    assert (good.outcome, good.is_alert) == (Outcome.PUT_BACK, False)
    assert (damaged.outcome, damaged.is_alert) == (Outcome.RESET, True)
    assert machine.state() == [FREE[0], (None, 700_000)]
    assert machine.journal.entries() == ()


def test_power_39_a_cap_that_went_with_the_last_client_is_seen(
    machine: KeptGpus, gpu: FakeGpu, control: LocalControl
) -> None:
    """POWER-39: without persistence the driver unloads and forgets the cap; reading back shows it."""
    gpu.is_persistent = False
    control.apply(CAPPED)
    machine.host.nvml.close()
    assert gpu.limit_mw == 700_000
    assert control.problems() == ("external_change",)
    control.apply(CAPPED)
    assert (gpu.locked, gpu.limit_mw) == ((210, 1005), 400_000)
    assert control.problems() == ()


def test_power_39_a_client_stays_open_between_settings(machine: KeptGpus, gpu: FakeGpu, control: LocalControl) -> None:
    """POWER-39: setting and reading back do not close the client that keeps the driver loaded."""
    gpu.is_persistent = False
    control.apply(CAPPED)
    machine.clock.advance(60.0)
    assert control.problems() == ()
    assert gpu.limit_mw == 400_000


def test_power_40_settings_lost_to_a_reload_are_set_anew(
    machine: KeptGpus, gpu: FakeGpu, control: LocalControl
) -> None:
    """POWER-40: a reload between two trials drops the caps; the next trial sets and verifies them all again."""
    control.apply(CAPPED)
    gpu.at(machine.clock.monotonic_s() + 1.0, gpu.reload_driver)
    machine.clock.advance(2.0)
    assert control.problems() == ("external_change",)
    control.apply(CAPPED)
    assert (gpu.locked, gpu.limit_mw) == ((210, 1005), 400_000)
    control.restore()
    assert machine.state() == FREE


def test_power_40_a_stale_lock_is_not_applied_again(machine: KeptGpus, gpu: FakeGpu) -> None:
    """POWER-40: when the driver was loaded anew after a holder died, its declared prior cap is not locked again."""
    holder = machine.holder(700)
    machine.keeper(prior_caps_mhz={FIRST_UUID: 1500}).apply([FIRST_UUID], CAPPED, holder)
    machine.kill(holder)
    gpu.reload_driver()
    machine.clock.advance(1.0)
    (record,) = machine.keeper().recover()
    assert record.outcome is Outcome.DRIVER_RELOADED
    assert gpu.locked is None


def test_bug_49_a_without_permission_nothing_carries_the_caps_label(machine: KeptGpus, control: LocalControl) -> None:
    """BUG-49 (a): a container without the capability gets an error, not a run at full clock under the cap's name."""
    for gpu in machine.gpus:
        gpu.refusals.update(dict.fromkeys((SET_CLOCK, RESET_CLOCK, SET_LIMIT), NO_PERMISSION))
    with pytest.raises(Uncontrolled, match=r"sm_clock_cap_mhz could not be set to 1005: .*CAP_SYS_ADMIN"):
        control.apply(CAPPED)
    assert control.problems() == ()
    assert machine.keeper().failed() == {}
    assert machine.state() == FREE


def test_bug_49_b_a_cap_without_effect_is_told(machine: KeptGpus, gpu: FakeGpu, control: LocalControl) -> None:
    """BUG-49 (b): the call succeeds and the clock stays at 1980 MHz, so the cap counts as not attained."""
    control.apply(CAPPED_CLOCK)
    gpu.sm_clock_mhz = 1980
    assert attained(machine, 1005) == (Reason.CLOCK_NOT_ATTAINED,)


def test_bug_49_c_the_supported_clock_is_chosen_and_recorded(
    machine: KeptGpus, gpu: FakeGpu, control: LocalControl
) -> None:
    """BUG-49 (c): of 210, 990, 1005 and 1980 MHz a request for 1000 gives 990, never more; that is what is recorded."""
    gpu.clocks_mhz = (210, 990, 1005, 1980)
    chosen_mhz = clocks_of(machine).snapped(1000)
    control.apply(DeviceSettings(sm_clock_cap_mhz=chosen_mhz))
    entry = machine.journal.entry(FIRST_UUID)
    assert chosen_mhz == 990
    assert gpu.locked == (210, 990)
    assert isinstance(entry, Entry)
    assert entry.written == {"sm_clock_cap_mhz": 990}
    assert attained(machine, 990) == ()


def test_bug_49_d_caps_left_behind_are_undone_at_start_up(machine: KeptGpus) -> None:
    """BUG-49 (d): after a crash while capped, the next start leaves the card as fast as it was found."""
    holder = machine.holder(700)
    machine.keeper().apply(BOTH, CAPPED, holder)
    machine.kill(holder)
    assert [gpu.present_sm_clock_mhz() for gpu in machine.gpus] == [1005, 1005]
    machine.keeper().recover()
    assert [gpu.present_sm_clock_mhz() for gpu in machine.gpus] == [1980, 1980]
    assert machine.state() == FREE


def test_bug_49_e_an_administrators_own_cap_is_put_back(machine: KeptGpus, gpu: FakeGpu) -> None:
    """BUG-49 (e): a declared clock cap and a limit that was found come back, not "default"."""
    gpu.locked, gpu.limit_mw = (210, 1500), 550_000
    before = machine.state()
    keeper = machine.keeper(prior_caps_mhz={FIRST_UUID: 1500})
    keeper.apply(BOTH, CAPPED, machine.holder())
    assert gpu.present_sm_clock_mhz() == 1005
    keeper.restore(BOTH)
    assert machine.state() == before


def test_the_device_offers_what_the_actuators_take(machine: KeptGpus) -> None:
    """POWER-24: the search space of a GPU is made of the very values that its actuators accept."""
    card = next(card for card in machine.host.nvml.cards() if card.uuid == FIRST_UUID)
    device = GpuDevice(machine.host.nvml, card, clock=machine.clock)
    offered = {settable.name: settable for settable in device.settables()}
    assert offered == {actuator.knob: actuator.settable() for actuator in actuators_of(FIRST_UUID, machine.host, {})}


def test_a_lapse_is_a_problem(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """POWER-41: a control whose heartbeats do not get through learns that its lease has lapsed."""
    monkeypatch.setattr("probes.control.guard_link.GuardLink.keep_alive", lambda _: None)
    with guarding(machine, lapse_s=0.5) as guard:
        guard.start()
        control = GuardedControl(guard.socket, BOTH, "a job")
        control.apply(CAPPED)
        wait_until(lambda: machine.state() == FREE, what="the lapse")
        assert control.problems() == ("control_lease_lost",)
        control.close()
