"""Knobs set whole or not at all, and given back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.control.journal import Damaged, Entry, State
from probes.control.keeper import Outcome
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
    dead_holder,
    make_kept_gpus,
)
from tests.probes.fake_gpu import FIRST_UUID, SECOND_UUID, FakeGpu
from tests.probes.fake_host import write_policy

FREE = [(None, 700_000), (None, 500_000)]
SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]


class Crash(BaseException):
    """The process dies here."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@contextmanager
def new_machine() -> Iterator[KeptGpus]:
    """Return a machine of its own to each example."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        yield make_kept_gpus(Path(folder), patch)


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


def test_what_a_dead_process_left_is_put_back(machine: KeptGpus) -> None:
    """At start-up the devices of a killed holder are as it found them, and the record names it."""
    holder = machine.holder(700, "job a")
    machine.keeper().apply(BOTH, CAPPED, holder)
    machine.kill(holder)
    records = machine.keeper().recover()
    assert [record.outcome for record in records] == [Outcome.PUT_BACK, Outcome.PUT_BACK]
    assert all("process 700 (job a) left it set" in record.detail for record in records)
    assert not any(record.is_alert for record in records)
    assert machine.state() == FREE
    assert machine.journal.entries() == ()
    assert machine.keeper().recover() == ()


def test_a_process_id_used_again_is_not_the_holder(machine: KeptGpus) -> None:
    """A later process with the dead holder's id does not keep its settings alive."""
    holder = machine.holder(700)
    machine.keeper().apply(BOTH, CAPPED, holder)
    machine.kill(holder)
    machine.proc.write_process(700, started=9999)
    assert len(machine.keeper().recover()) == 2
    assert machine.state() == FREE


def test_applying_recovers_first(machine: KeptGpus) -> None:
    """Who comes after a killed process finds what that one found, even without a start-up recovery."""
    holder = machine.holder(700)
    machine.keeper().apply(BOTH, CAPPED, holder)
    machine.kill(holder)
    keeper = machine.keeper()
    keeper.apply(BOTH, DeviceSettings(power_cap_w=300), machine.holder(701))
    assert entry_of(machine, SECOND_UUID).found == {"power_cap_w": {"limit_mw": 500_000}}
    keeper.restore(BOTH)
    assert machine.state() == FREE


def test_after_a_restart_there_is_nothing_to_put_back(machine: KeptGpus) -> None:
    """An entry of another boot is removed without a write to the device."""
    machine.keeper().apply(BOTH, CAPPED, machine.holder())
    machine.boot("another-boot")
    for gpu in machine.gpus:
        gpu.reload_driver()
        gpu.writes.clear()
    outcomes = [record.outcome for record in machine.keeper().recover()]
    assert outcomes == [Outcome.REBOOTED, Outcome.REBOOTED]
    assert [gpu.writes for gpu in machine.gpus] == [[], []]
    assert machine.journal.entries() == ()


def test_after_a_driver_reload_there_is_nothing_to_put_back(machine: KeptGpus) -> None:
    """A counter lower than the journal's shows that the driver lost the settings: they are not applied anew."""
    holder = machine.holder()
    machine.keeper().apply(BOTH, CAPPED, holder)
    machine.kill(holder)
    machine.gpus[1].reload_driver()
    machine.clock.advance(1.0)
    machine.gpus[1].writes.clear()
    outcomes = [record.outcome for record in machine.keeper().recover()]
    assert outcomes == [Outcome.PUT_BACK, Outcome.DRIVER_RELOADED]
    assert machine.gpus[1].writes == []
    assert machine.state() == [FREE[0], (None, 700_000)]


def test_a_failed_recovery_is_on_record_and_tried_again(machine: KeptGpus) -> None:
    """A device that cannot be put back at start-up blocks until it can, and then is."""
    holder = machine.holder()
    machine.keeper().apply(BOTH, CAPPED, holder)
    machine.kill(holder)
    machine.gpus[0].refusals[SET_LIMIT] = UNKNOWN_ERROR
    keeper = machine.keeper()
    first, second = keeper.recover()
    assert (first.outcome, second.outcome) == (Outcome.FAILED, Outcome.PUT_BACK)
    assert first.is_alert
    assert "power_cap_w" in keeper.failed()[FIRST_UUID]
    assert machine.gpus[0].locked is None
    with pytest.raises(RestoreFailed, match=f"{FIRST_UUID} is blocked"):
        keeper.apply([FIRST_UUID], CAPPED, machine.holder(701))
    machine.gpus[0].refusals.clear()
    assert [record.outcome for record in keeper.recover()] == [Outcome.PUT_BACK]
    assert keeper.failed() == {}
    keeper.apply([FIRST_UUID], CAPPED, machine.holder(701))


def test_applying_to_what_cannot_be_recovered_is_refused(machine: KeptGpus) -> None:
    """A dead process's device that cannot be put back is not set over."""
    holder = machine.holder()
    machine.keeper().apply([FIRST_UUID], CAPPED, holder)
    machine.kill(holder)
    machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
    with pytest.raises(RestoreFailed, match="sm_clock_cap_mhz"):
        machine.keeper().apply(BOTH, DeviceSettings(power_cap_w=300), machine.holder(701))
    assert machine.state() == [((210, 1005), 700_000), FREE[1]]


def test_an_unreadable_entry_resets_its_device(machine: KeptGpus) -> None:
    """Where what was found cannot be known, locks are undone and the default limit set, as an alert."""
    machine.journal.folder.mkdir()
    (machine.journal.folder / f"{SECOND_UUID}.json").write_text("{")
    machine.gpus[1].locked, machine.gpus[1].limit_mw = (210, 1005), 300_000
    (record,) = machine.keeper().recover()
    assert (record.device_uuid, record.outcome, record.is_alert) == (SECOND_UUID, Outcome.RESET, True)
    assert "cannot be read" in record.detail
    assert machine.state() == [FREE[0], (None, 700_000)]
    assert machine.journal.entries() == ()


def test_an_unreadable_entry_whose_reset_fails_stays_on_record(machine: KeptGpus) -> None:
    """The device is blocked under a readable entry, and a later recovery resets it."""
    machine.journal.folder.mkdir()
    (machine.journal.folder / f"{SECOND_UUID}.json").write_text("{")
    machine.gpus[1].locked = (210, 1005)
    machine.gpus[1].refusals[RESET_CLOCK] = NO_PERMISSION
    keeper = machine.keeper()
    assert [record.outcome for record in keeper.recover()] == [Outcome.FAILED]
    assert set(keeper.failed()) == {SECOND_UUID}
    machine.gpus[1].refusals.clear()
    assert [record.outcome for record in keeper.recover()] == [Outcome.RESET]
    assert machine.state()[1] == (None, 700_000)


def test_a_knob_that_the_device_lacks_needs_no_reset(machine: KeptGpus) -> None:
    """A board without a settable limit is reset by its clocks alone; one without any knob is not called reset."""
    machine.journal.folder.mkdir()
    path = machine.journal.folder / f"{FIRST_UUID}.json"
    path.write_text("{")
    machine.gpus[0].locked = (210, 1005)
    machine.gpus[0].refusals["nvmlDeviceGetPowerManagementLimitConstraints"] = 3
    assert [record.outcome for record in machine.keeper().recover()] == [Outcome.RESET]
    assert machine.state() == FREE
    path.write_text("{")
    machine.gpus[0].refusals[RESET_CLOCK] = 3
    assert [record.outcome for record in machine.keeper().recover()] == [Outcome.FAILED]


def test_an_unreadable_entry_is_reset_before_its_device_is_set(machine: KeptGpus) -> None:
    """Applying, and restoring by hand, begin from a known state."""
    machine.journal.folder.mkdir()
    path = machine.journal.folder / f"{SECOND_UUID}.json"
    path.write_text("{")
    machine.gpus[1].limit_mw = 300_000
    keeper = machine.keeper()
    keeper.apply([SECOND_UUID], DeviceSettings(power_cap_w=400), machine.holder())
    assert entry_of(machine, SECOND_UUID).found == {"power_cap_w": {"limit_mw": 700_000}}
    path.write_text("{")
    machine.keeper().restore([SECOND_UUID], holder=dead_holder())
    assert isinstance(machine.journal.entry(SECOND_UUID), Damaged)
    machine.keeper().restore([SECOND_UUID])
    assert machine.gpus[1].limit_mw == 700_000
    assert machine.journal.entries() == ()


def test_a_missing_device_cannot_be_recovered(machine: KeptGpus) -> None:
    """The entry of a GPU that no longer answers is kept as failed; the other one's is put back."""
    holder = machine.holder()
    machine.keeper().apply(BOTH, CAPPED, holder)
    machine.kill(holder)
    machine.gpus[0].lost_from_s = 0.0
    keeper = machine.keeper()
    assert [record.outcome for record in keeper.recover()] == [Outcome.FAILED, Outcome.PUT_BACK]
    assert "fallen off the bus" in keeper.failed()[FIRST_UUID]
    assert machine.state()[1] == FREE[1]


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


SETTINGS = st.builds(
    DeviceSettings,
    sm_clock_cap_mhz=st.none() | st.sampled_from([210, 1005, 1980]),
    power_cap_w=st.none() | st.sampled_from([200, 400, 600, 700]),
)
CALLS = (
    SET_CLOCK,
    RESET_CLOCK,
    SET_LIMIT,
    GET_LIMIT,
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetSupportedGraphicsClocks",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUUID",
)
TIMEOUT = 10
#: Mostly no error; a timeout stands for a write that took effect all the same.
CODES = st.sampled_from([0, 0, 0, 0, 0, 2, 3, NO_PERMISSION, TIMEOUT, UNKNOWN_ERROR])


def script(gpu: FakeGpu, codes: Iterator[int]) -> None:
    """Let every call of a GPU fail by the next code."""

    def answer(name: str) -> Callable[[], int]:
        def code() -> int:
            number = next(codes, 0)
            if number == TIMEOUT and name == SET_CLOCK:
                gpu.locked = (210, 210)
            elif number == TIMEOUT and name == SET_LIMIT:
                gpu.limit_mw = 250_000
            elif number == TIMEOUT and name == RESET_CLOCK:
                gpu.locked = None
            return number

        return code

    for name in CALLS:
        gpu.refusals[name] = answer(name)


@settings(deadline=None, max_examples=150)
@given(steps=st.lists(st.tuples(SETTINGS, st.lists(CODES, max_size=40)), min_size=1, max_size=4))
def test_a_failed_apply_leaves_everything_as_found_or_on_record(
    steps: list[tuple[DeviceSettings, list[int]]],
) -> None:
    """POWER-32: whatever calls fail, settings are all in force, or all gone, or the failure is in the journal."""
    with new_machine() as machine:
        keeper, holder = machine.keeper(), machine.holder()
        for chosen, codes in steps:
            shared = iter(codes)
            for gpu in machine.gpus:
                script(gpu, shared)
            try:
                keeper.apply(BOTH, chosen, holder)
            except Uncontrolled:
                assert machine.state() == FREE
                assert machine.journal.entries() == ()
            except RestoreFailed:
                assert keeper.failed()
            else:
                for gpu, free in zip(machine.gpus, FREE, strict=True):
                    cap_mhz, limit_w = chosen.sm_clock_cap_mhz, chosen.power_cap_w
                    assert gpu.locked == (None if cap_mhz is None else (210, cap_mhz))
                    assert gpu.limit_mw == (free[1] if limit_w is None else limit_w * 1000)
        for gpu in machine.gpus:
            gpu.refusals.clear()
        keeper.restore(BOTH)
        assert machine.state() == FREE
        assert machine.journal.entries() == ()


@settings(deadline=None, max_examples=100)
@given(chosen=SETTINGS, codes=st.lists(CODES, max_size=30))
def test_a_restore_that_succeeds_has_put_everything_back(chosen: DeviceSettings, codes: list[int]) -> None:
    """POWER-35: success means that all is as found; failure means that it is on record, and repeats until done."""
    with new_machine() as machine:
        keeper = machine.keeper()
        keeper.apply(BOTH, chosen, machine.holder())
        shared = iter(codes)
        for gpu in machine.gpus:
            script(gpu, shared)
        for _ in range(len(codes) + 1):
            try:
                keeper.restore(BOTH)
            except RestoreFailed:
                assert keeper.failed()
            else:
                break
        assert machine.state() == FREE
        assert machine.journal.entries() == ()


@settings(deadline=None, max_examples=100)
@given(former=SETTINGS, chosen=SETTINGS, dies_after=st.integers(min_value=0, max_value=40))
def test_a_process_may_die_at_any_call(former: DeviceSettings, chosen: DeviceSettings, dies_after: int) -> None:
    """POWER-34: wherever a process dies between two driver calls, its successor finds all that it must put back."""
    with new_machine() as machine:
        holder = machine.holder()
        keeper = machine.keeper()
        keeper.apply(BOTH, former, holder)
        asked = 0

        def die() -> int:
            nonlocal asked
            asked += 1
            if asked > dies_after:
                raise Crash
            return 0

        for gpu in machine.gpus:
            gpu.refusals.update(dict.fromkeys(CALLS, die))
        with suppress(Crash):
            keeper.apply(BOTH, chosen, holder)
        for gpu in machine.gpus:
            gpu.refusals.clear()
        machine.kill(holder)
        machine.keeper().recover()
        assert machine.state() == FREE
        assert machine.journal.entries() == ()


def test_an_entry_without_a_boot_is_put_back(machine: KeptGpus) -> None:
    """Where the kernel does not tell its boot, settings are taken to be of this one."""
    holder = machine.holder()
    machine.keeper().apply([FIRST_UUID], CAPPED, holder)
    machine.kill(holder)
    machine.journal.write(replace(entry_of(machine), boot_id=""))
    assert [record.outcome for record in machine.keeper().recover()] == [Outcome.PUT_BACK]
    assert machine.state() == FREE


def test_a_holder_in_another_namespace_is_not_taken_for_dead(machine: KeptGpus) -> None:
    """From a container the host's worker cannot be seen: its device is left alone, and nobody else may set it."""
    machine.enter_pid_namespace("host")
    machine.keeper().apply([FIRST_UUID], CAPPED, machine.holder(label="job a"))
    machine.proc.end_process(700)
    machine.enter_pid_namespace("container")
    keeper = machine.keeper()
    assert keeper.recover() == ()
    with pytest.raises(DeviceInUse, match=rf"process 700 \(job a\), .*PID namespace.* {machine.journal.folder}"):
        keeper.apply([FIRST_UUID], CAPPED, machine.holder(701))
    assert machine.state()[0] == SET[0]
    machine.boot("another")
    assert [recovery.outcome for recovery in keeper.recover()] == [Outcome.REBOOTED]


def test_a_restart_ends_a_failed_restore(machine: KeptGpus) -> None:
    """After a reboot nothing is left to put back: the device is neither failed nor blocked, and can be set."""
    gpu, keeper = machine.gpus[0], machine.keeper()
    keeper.apply([FIRST_UUID], CAPPED, machine.holder())
    gpu.refusals[SET_LIMIT] = UNKNOWN_ERROR
    with pytest.raises(RestoreFailed):
        keeper.restore([FIRST_UUID])
    gpu.refusals.clear()
    assert set(keeper.failed()) == {FIRST_UUID}
    machine.boot("another")
    gpu.locked, gpu.limit_mw = None, 700_000
    assert keeper.failed() == {}
    machine.keeper().apply([FIRST_UUID], CAPPED, machine.holder(701))
    assert machine.state()[0] == SET[0]
