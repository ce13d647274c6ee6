"""What a dead process left set is put back by the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from probes.control.journal import Damaged, Entry
from probes.control.keeper import Outcome
from probes.errors import DeviceInUse, RestoreFailed
from probes.settings import DeviceSettings
from tests.probes.control.kept_gpus import (
    BOTH,
    CAPPED,
    NO_PERMISSION,
    RESET_CLOCK,
    SET_LIMIT,
    UNKNOWN_ERROR,
    KeptGpus,
    dead_holder,
    make_kept_gpus,
)
from tests.probes.fake_gpu import FIRST_UUID, SECOND_UUID

FREE = [(None, 700_000), (None, 500_000)]

SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


def entry_of(machine: KeptGpus, uuid: str = FIRST_UUID) -> Entry:
    entry = machine.journal.entry(uuid)
    assert isinstance(entry, Entry)
    return entry


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
