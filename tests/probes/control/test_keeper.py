"""Knobs set whole or not at all, and given back."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import pytest

from probes.control.journal import Entry, State
from probes.cpu.cpu_device import describe_cpu
from probes.errors import DeviceInUse, InvalidSetting, RestoreFailed, Uncontrolled
from probes.settings import DeviceSettings
from tests.probes.control.kept_gpus import (
    BOTH,
    CAPPED,
    GET_LIMIT,
    NO_PERMISSION,
    RESET_CLOCK,
    SET_CLOCK,
    SET_LIMIT,
    UNKNOWN_ERROR,
    KeptGpus,
    make_kept_gpus,
)
from tests.probes.fake_gpu import FIRST_UUID, SECOND_UUID, FakeGpu
from tests.probes.fake_host import write_policy

FREE = [(None, 700_000), (None, 500_000)]

SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


def entry_of(machine: KeptGpus, uuid: str = FIRST_UUID) -> Entry:
    entry = machine.journal.entry(uuid)
    assert isinstance(entry, Entry)
    return entry


def set_calls(gpu: FakeGpu) -> list[str]:
    return [str(write[0]) for write in gpu.writes]


def test_what_was_found_is_on_disk_before_the_first_write(machine: KeptGpus) -> None:
    """At the first write to any device the journal already has every device's entry."""
    seen: list[int] = []

    def look() -> int:
        seen.append(len(machine.journal.entries()))
        return 0

    machine.gpus[0].refusals[SET_CLOCK] = look
    holder = machine.holder()
    machine.keeper().apply(BOTH, CAPPED, holder)
    assert seen == [2]
    assert machine.state() == SET
    entry = entry_of(machine, SECOND_UUID)
    assert entry.found == {"power_cap_w": {"limit_mw": 500_000}, "sm_clock_cap_mhz": {}}
    assert entry.written == {"power_cap_w": 400, "sm_clock_cap_mhz": 1005}
    assert (entry.holder, entry.state) == (holder, State.APPLIED)
    assert entry.energy_mj is not None


def test_a_restore_gives_back_what_was_found(machine: KeptGpus) -> None:
    """Every GPU is as it was, the one with an administrator's limit too, and the journal is empty."""
    keeper = machine.keeper()
    keeper.apply(BOTH, CAPPED, machine.holder())
    keeper.restore(BOTH)
    assert machine.state() == FREE
    assert machine.journal.entries() == ()
    keeper.restore(BOTH)
    assert machine.state() == FREE


def test_going_down_the_clock_is_first_and_going_up_the_limit(machine: KeptGpus) -> None:
    """No order of writes lets the limit be what holds the clock, except where that is asked for."""
    keeper, holder, gpu = machine.keeper(), machine.holder(), machine.gpus[0]
    keeper.apply([FIRST_UUID], CAPPED, holder)
    assert set_calls(gpu) == [SET_CLOCK, SET_LIMIT]
    gpu.writes.clear()
    keeper.apply([FIRST_UUID], DeviceSettings(sm_clock_cap_mhz=1500, power_cap_w=600), holder)
    assert set_calls(gpu) == [SET_LIMIT, SET_CLOCK]
    gpu.writes.clear()
    keeper.apply([FIRST_UUID], DeviceSettings(sm_clock_cap_mhz=1980, power_cap_w=300), holder)
    assert set_calls(gpu) == [SET_LIMIT, SET_CLOCK]
    gpu.writes.clear()
    keeper.restore([FIRST_UUID])
    assert set_calls(gpu) == [SET_LIMIT, RESET_CLOCK]


def test_all_devices_go_down_before_one_goes_up(machine: KeptGpus) -> None:
    """A limit above what one GPU was found with is raised after the other GPU's has been lowered."""
    order: list[str] = []

    def note(uuid: str) -> Callable[[], int]:
        def record() -> int:
            order.append(uuid)
            return 0

        return record

    for gpu in machine.gpus:
        gpu.refusals[SET_LIMIT] = note(gpu.uuid)
    machine.keeper().apply([SECOND_UUID, FIRST_UUID], DeviceSettings(power_cap_w=600), machine.holder())
    assert order == [FIRST_UUID, SECOND_UUID]


def test_other_settings_keep_what_was_found_first(machine: KeptGpus) -> None:
    """Applying again does not take our own setting for what was found."""
    keeper, holder = machine.keeper(), machine.holder()
    for power_cap_w in (400, 300, 450):
        keeper.apply(BOTH, DeviceSettings(power_cap_w=power_cap_w), holder)
    assert entry_of(machine, SECOND_UUID).found == {"power_cap_w": {"limit_mw": 500_000}}
    keeper.restore(BOTH)
    assert machine.state() == FREE


def test_a_knob_no_longer_named_is_put_back(machine: KeptGpus) -> None:
    """Settings without a clock cap give the clock back, and remember that it was once set."""
    keeper, holder = machine.keeper(), machine.holder()
    keeper.apply(BOTH, CAPPED, holder)
    keeper.apply(BOTH, DeviceSettings(power_cap_w=300), holder)
    assert machine.state() == [(None, 300_000), (None, 300_000)]
    assert entry_of(machine).written == {"power_cap_w": 300}
    assert set(entry_of(machine).found) == {"power_cap_w", "sm_clock_cap_mhz"}


def test_empty_settings_restore(machine: KeptGpus) -> None:
    """Applying nothing gives everything back, and touches nothing where nothing was set."""
    keeper, holder = machine.keeper(), machine.holder()
    keeper.apply(BOTH, DeviceSettings(), holder)
    assert [gpu.writes for gpu in machine.gpus] == [[], []]
    keeper.apply(BOTH, CAPPED, holder)
    keeper.apply(BOTH, DeviceSettings(), holder)
    assert machine.state() == FREE
    assert machine.journal.entries() == ()


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (DeviceSettings(sm_clock_cap_mhz=1000), "sm_clock_cap_mhz takes 990, not 1000"),
        (DeviceSettings(sm_clock_cap_mhz=100), "the lowest value of this device is 210"),
        (DeviceSettings(power_cap_w=900), "power_cap_w takes 700, not 900"),
    ],
)
def test_a_value_that_the_device_does_not_take_is_refused(machine: KeptGpus, chosen: DeviceSettings, said: str) -> None:
    """Nothing is snapped behind the caller's back: the message says what would be taken, and nothing is written."""
    with pytest.raises(InvalidSetting, match=said):
        machine.keeper().apply(BOTH, chosen, machine.holder())
    assert [gpu.writes for gpu in machine.gpus] == [[], []]
    assert machine.journal.entries() == ()


def test_a_knob_that_no_device_has_is_refused(machine: KeptGpus) -> None:
    """A CPU's knob for GPUs alone is an error, not silently left out."""
    with pytest.raises(Uncontrolled, match=r"none of GPU-.* has the knob cpu_clock_cap_mhz; nothing is set"):
        machine.keeper().apply(BOTH, DeviceSettings(cpu_clock_cap_mhz=2000), machine.holder())


def test_each_knob_goes_to_the_devices_that_have_it(machine: KeptGpus) -> None:
    """A GPU and the CPU are set together, each by its own knobs, and both come back."""
    cap_file = write_policy(machine.host.paths.cpu)
    cpu = describe_cpu(machine.host.paths, frozenset({0})).uuid
    keeper = machine.keeper()
    keeper.apply([FIRST_UUID, cpu], replace(CAPPED, cpu_clock_cap_mhz=1800), machine.holder())
    assert machine.state() == [SET[0], FREE[1]]
    assert cap_file.read_text().strip() == "1800000"
    assert entry_of(machine, cpu).energy_mj is None
    keeper.restore([FIRST_UUID, cpu])
    assert cap_file.read_text().strip() == "3600000"
    assert machine.state() == FREE


def test_a_refusing_gpu_undoes_the_cpu(machine: KeptGpus) -> None:
    """All or nothing holds across kinds of device: the CPU's cap does not stay when a GPU refuses."""
    cap_file = write_policy(machine.host.paths.cpu)
    cpu = describe_cpu(machine.host.paths, frozenset({0})).uuid
    machine.gpus[0].refusals[SET_LIMIT] = NO_PERMISSION
    with pytest.raises(Uncontrolled, match="power_cap_w"):
        machine.keeper().apply([cpu, FIRST_UUID], replace(CAPPED, cpu_clock_cap_mhz=1800), machine.holder())
    assert cap_file.read_text().strip() == "3600000"
    assert machine.state() == FREE
    assert machine.journal.entries() == ()


def test_an_unknown_device_is_refused(machine: KeptGpus) -> None:
    """A UUID that is not there is an error before anything is set on the others."""
    with pytest.raises(Uncontrolled, match="GPU-nobody"):
        machine.keeper().apply([FIRST_UUID, "GPU-nobody"], CAPPED, machine.holder())
    assert machine.state() == FREE
    assert machine.journal.entries() == ()


def test_a_refusal_names_device_knob_value_and_cause(machine: KeptGpus) -> None:
    """The error is enough to act upon."""
    machine.gpus[1].refusals[SET_LIMIT] = NO_PERMISSION
    with pytest.raises(
        Uncontrolled,
        match=rf"{SECOND_UUID}: power_cap_w could not be set to 400: .*CAP_SYS_ADMIN.*; nothing is set",
    ):
        machine.keeper().apply(BOTH, CAPPED, machine.holder())


def test_a_setting_that_cannot_be_read_back_is_undone(machine: KeptGpus) -> None:
    """A write whose effect cannot be verified does not stand."""
    gpu = machine.gpus[0]

    def refuse_once_capped() -> int:
        return UNKNOWN_ERROR if gpu.limit_mw == 400_000 else 0

    gpu.refusals[GET_LIMIT] = refuse_once_capped
    with pytest.raises(Uncontrolled, match="cannot be read back"):
        machine.keeper().apply(BOTH, DeviceSettings(power_cap_w=400), machine.holder())
    assert machine.state() == FREE
    assert machine.journal.entries() == ()


def test_a_failed_change_of_settings_ends_as_found(machine: KeptGpus) -> None:
    """When new settings are refused the former ones do not stay in force either."""
    keeper, holder = machine.keeper(), machine.holder()
    keeper.apply(BOTH, CAPPED, holder)
    tries: list[None] = []

    def refuse_first() -> int:
        tries.append(None)
        return UNKNOWN_ERROR if len(tries) == 1 else 0

    machine.gpus[1].refusals[SET_LIMIT] = refuse_first
    with pytest.raises(Uncontrolled):
        keeper.apply(BOTH, DeviceSettings(power_cap_w=300), holder)
    assert machine.state() == FREE
    assert machine.journal.entries() == ()


def test_a_lost_permission_blocks_the_device(machine: KeptGpus) -> None:
    """When what we set can no longer be put back for lack of permission, the failure stays on record."""
    keeper, holder = machine.keeper(), machine.holder()
    keeper.apply(BOTH, CAPPED, holder)
    for name in (SET_CLOCK, RESET_CLOCK, SET_LIMIT):
        machine.gpus[0].refusals[name] = NO_PERMISSION
    with pytest.raises(RestoreFailed, match="CAP_SYS_ADMIN"):
        keeper.apply(BOTH, DeviceSettings(power_cap_w=300), holder)
    assert set(keeper.failed()) == {FIRST_UUID}
    assert machine.state()[1] == FREE[1]


def test_a_journal_that_cannot_be_written_stops_everything(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a record of what was found nothing is set, on no device."""

    def refuse(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(Uncontrolled, match="No space left"):
        machine.keeper().apply(BOTH, CAPPED, machine.holder())
    assert [gpu.writes for gpu in machine.gpus] == [[], []]


def test_a_journal_that_is_full_halfway_leaves_nothing_behind(
    machine: KeptGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the second device's entry cannot be written, the first one's is removed again."""
    real_link = os.link

    def refuse_second(source: str, target: Path) -> None:
        if SECOND_UUID in str(target):
            raise OSError(28, "No space left on device")
        real_link(source, target)

    monkeypatch.setattr(os, "link", refuse_second)
    with pytest.raises(Uncontrolled, match="No space left"):
        machine.keeper().apply(BOTH, CAPPED, machine.holder())
    assert [gpu.writes for gpu in machine.gpus] == [[], []]
    assert machine.journal.entries() == ()


def test_an_entry_that_cannot_be_removed_is_told(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is put back, and the error says that only the journal could not be cleared."""
    keeper = machine.keeper()
    keeper.apply(BOTH, CAPPED, machine.holder())

    def refuse(_path: Path, **_options: bool) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(RestoreFailed, match=r"everything is put back, but .*Read-only"):
            keeper.restore(BOTH)
    assert machine.state() == FREE
    keeper.restore(BOTH)
    assert machine.journal.entries() == ()


@pytest.mark.parametrize("text", [None, "{"])
def test_a_lost_entry_of_our_own_is_remembered(machine: KeptGpus, text: str | None) -> None:
    """Somebody who removes or damages our file while we run does not make us forget what was found."""
    keeper, holder = machine.keeper(), machine.holder()
    keeper.apply(BOTH, CAPPED, holder)
    path = machine.journal.folder / f"{SECOND_UUID}.json"
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    keeper.apply(BOTH, DeviceSettings(power_cap_w=300), holder)
    if text is not None:
        path.write_text(text)
        assert keeper.recover() == ()
    keeper.restore(BOTH, holder=holder)
    assert machine.state() == FREE


def test_a_folder_that_may_not_be_read_does_not_stop_a_restore(
    machine: KeptGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found is known to the process that found it, whatever became of the journal."""
    keeper = machine.keeper()
    keeper.apply(BOTH, CAPPED, machine.holder())

    def refuse(_path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("probes.control.journal.read_regular", refuse)
        with pytest.raises(RestoreFailed, match="cannot be read"):
            machine.keeper().restore(BOTH)
        assert machine.state() == SET
        keeper.restore(BOTH)
    assert machine.state() == FREE


def test_a_live_holder_is_not_disturbed(machine: KeptGpus) -> None:
    """Another process's device is refused by its process id, at start-up it is left, and so by a holder's restore."""
    first, second = machine.holder(700, "job a"), machine.holder(701, "job b")
    machine.keeper().apply([FIRST_UUID], CAPPED, first)
    keeper = machine.keeper()
    with pytest.raises(DeviceInUse, match=r"set by process 700 \(job a\)"):
        keeper.apply(BOTH, DeviceSettings(power_cap_w=300), second)
    assert keeper.recover() == ()
    keeper.restore(BOTH, holder=second)
    assert machine.state() == [SET[0], FREE[1]]
    keeper.restore(BOTH)
    assert machine.state() == FREE


def test_of_two_that_begin_at_once_one_is_refused(machine: KeptGpus) -> None:
    """Two keepers that both see a free device cannot both set it, and the loser undoes nothing of the winner's."""
    first, second = machine.holder(700), machine.holder(701)
    winner, loser = machine.keeper(), machine.keeper()

    def let_the_other_win() -> int:
        del machine.gpus[1].refusals["nvmlDeviceGetTotalEnergyConsumption"]
        winner.apply([SECOND_UUID], CAPPED, first)
        return 0

    machine.gpus[1].refusals["nvmlDeviceGetTotalEnergyConsumption"] = let_the_other_win
    with pytest.raises(DeviceInUse, match="another process has just begun"):
        loser.apply(BOTH, DeviceSettings(power_cap_w=300), second)
    assert machine.state() == [FREE[0], SET[1]]
    assert [entry.device_uuid for entry in machine.journal.entries()] == [SECOND_UUID]


def test_threads_take_turns(machine: KeptGpus) -> None:
    """Many threads that apply and restore at once leave everything as it was found."""
    keeper, holder = machine.keeper(), machine.holder()
    barrier = Barrier(4)
    failures: list[BaseException] = []

    def work(power_cap_w: int) -> None:
        barrier.wait(timeout=60)
        try:
            for _ in range(5):
                keeper.apply(BOTH, DeviceSettings(power_cap_w=power_cap_w), holder)
                keeper.restore(BOTH)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=work, args=(300 + 10 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert failures == []
    assert machine.state() == FREE
    assert machine.journal.entries() == ()


def test_problems_are_codes(machine: KeptGpus) -> None:
    """Each cause has its own code, each is told once, and there are none while all is well."""
    keeper = machine.keeper()
    keeper.apply(BOTH, CAPPED, machine.holder())
    assert keeper.problems(BOTH, CAPPED) == ()
    machine.gpus[0].limit_mw = machine.gpus[1].limit_mw = 650_000
    assert keeper.problems(BOTH, CAPPED) == ("external_change",)
    machine.gpus[0].limit_mw, machine.gpus[0].enforced_mw = 400_000, 350_000
    assert keeper.problems(BOTH, CAPPED) == ("limit_overridden", "external_change")
    machine.gpus[0].refusals[GET_LIMIT] = UNKNOWN_ERROR
    assert keeper.problems(BOTH, CAPPED) == ("probe_error", "external_change")
    machine.gpus[0].lost_from_s = 0.0
    assert keeper.problems(BOTH, CAPPED) == ("device_lost",)
    assert keeper.problems(BOTH, DeviceSettings()) == ()


def test_reading_problems_writes_nothing(machine: KeptGpus) -> None:
    """Asking what is wrong changes neither devices nor journal."""
    keeper = machine.keeper()
    keeper.apply(BOTH, CAPPED, machine.holder())
    before = machine.journal.entries()
    for gpu in machine.gpus:
        gpu.writes.clear()
    keeper.problems(BOTH, CAPPED)
    assert [gpu.writes for gpu in machine.gpus] == [[], []]
    assert machine.journal.entries() == before


def test_an_unexpected_error_is_rolled_back_too(machine: KeptGpus) -> None:
    """Whatever is raised in a write, an interrupt included, leaves every device as it was found."""

    def interrupt() -> int:
        del machine.gpus[1].refusals[SET_LIMIT]
        raise KeyboardInterrupt

    machine.gpus[1].refusals[SET_LIMIT] = interrupt
    with pytest.raises(KeyboardInterrupt):
        machine.keeper().apply(BOTH, CAPPED, machine.holder())
    assert machine.state() == FREE
    assert machine.journal.entries() == ()
