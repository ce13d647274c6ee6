"""Who holds which devices through the guard, and what each may set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from probes.control.guard_config import DeviceRules, GuardConfig
from probes.control.journal import Entry, Journal
from probes.control.keeper import Outcome
from probes.control.leases import LABEL, OFFERS_KEPT_S, Lease, Leases, Peer
from probes.errors import DeviceInUse, InvalidSetting, RestoreFailed, Uncontrolled
from probes.identity import process_identity
from probes.settings import POWER_CAP, SM_CLOCK_CAP, DeviceSettings
from tests.probes.control.kept_gpus import (
    BOTH,
    CAPPED,
    GET_LIMIT,
    NO_PERMISSION,
    RESET_CLOCK,
    SET_LIMIT,
    UNKNOWN_ERROR,
    KeptGpus,
    make_kept_gpus,
)
from tests.probes.fake_gpu import FIRST_UUID, SECOND_UUID

FREE = [(None, 700_000), (None, 500_000)]
SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@pytest.fixture
def config(tmp_path: Path) -> GuardConfig:
    return GuardConfig(state_dir=tmp_path / "journal")


@pytest.fixture
def leases(machine: KeptGpus, config: GuardConfig) -> Leases:
    return Leases(config, machine.host)


def lease_of(machine: KeptGpus, pid: int) -> Lease:
    """Let a process connect."""
    machine.proc.write_process(pid)
    return Lease(Peer(process=process_identity(pid, machine.proc.root), uid=1000, gids=frozenset()))


def allowing(config: GuardConfig, **devices: DeviceRules) -> GuardConfig:
    return replace(config, devices={FIRST_UUID if name == "first" else "*": rules for name, rules in devices.items()})


def only_entry(journal: Journal) -> Entry:
    (entry,) = journal.entries()
    assert isinstance(entry, Entry)
    return entry


def test_a_lease_sets_and_its_end_puts_back(machine: KeptGpus, leases: Leases) -> None:
    """What is applied holds until the lease ends, and the administrator's 500 W are there again."""
    lease = lease_of(machine, 700)
    leases.apply(lease, BOTH, CAPPED)
    assert machine.state() == SET
    assert leases.problems(lease) == ()
    leases.end(lease)
    leases.end(lease)
    assert machine.state() == FREE
    assert leases.problems(lease) == ()


def test_settings_follow_each_other(machine: KeptGpus, leases: Leases) -> None:
    """A second apply replaces the first, and a restored lease can set another device."""
    lease = lease_of(machine, 700)
    leases.apply(lease, BOTH, CAPPED)
    leases.apply(lease, BOTH, DeviceSettings(power_cap_w=300))
    assert machine.state() == [(None, 300_000), (None, 300_000)]
    leases.restore(lease)
    leases.apply(lease, [SECOND_UUID], DeviceSettings(power_cap_w=300))
    assert machine.state() == [(None, 700_000), (None, 300_000)]


def test_other_devices_in_one_lease_are_refused(machine: KeptGpus, leases: Leases) -> None:
    """A lease is for one set of devices at a time; asking for others ends what it holds."""
    lease = lease_of(machine, 700)
    leases.apply(lease, [FIRST_UUID], CAPPED)
    with pytest.raises(InvalidSetting, match=f"this connection holds {FIRST_UUID}"):
        leases.apply(lease, BOTH, CAPPED)
    assert machine.state() == FREE


def test_a_device_has_one_holder(machine: KeptGpus, leases: Leases) -> None:
    """POWER-37: a second lease is refused with the first one's process id, until that has ended."""
    first, second = lease_of(machine, 700), lease_of(machine, 701)
    leases.apply(first, [FIRST_UUID], CAPPED)
    with pytest.raises(DeviceInUse, match=f"{FIRST_UUID} is set by process 700"):
        leases.apply(second, BOTH, DeviceSettings(power_cap_w=300))
    assert machine.state() == [SET[0], FREE[1]]
    leases.end(first)
    leases.apply(second, BOTH, DeviceSettings(power_cap_w=300))
    assert machine.state() == [(None, 300_000), (None, 300_000)]


def test_two_connections_of_one_process_are_two_holders(machine: KeptGpus, leases: Leases) -> None:
    """POWER-37: the same process cannot set a device twice over, not even under the same label."""
    first, second = lease_of(machine, 700), lease_of(machine, 700)
    leases.apply(first, BOTH, CAPPED)
    with pytest.raises(DeviceInUse, match="process 700"):
        leases.apply(second, BOTH, CAPPED)
    assert machine.state() == SET


def test_a_device_of_a_process_without_guard_is_refused(machine: KeptGpus, leases: Leases) -> None:
    """POWER-37: what a live process set by itself is not the guard's to change."""
    machine.keeper().apply([FIRST_UUID], CAPPED, machine.holder(pid=800, label="job b"))
    with pytest.raises(DeviceInUse, match=r"process 800 \(job b\)"):
        leases.apply(lease_of(machine, 700), BOTH, DeviceSettings(power_cap_w=300))
    assert leases.recover() == ()
    assert machine.state() == [SET[0], FREE[1]]


def test_the_journal_names_the_peer(machine: KeptGpus, leases: Leases) -> None:
    """The holder on disk is the process that the kernel named, with its user, and its own words only beside them."""
    lease = lease_of(machine, 700)
    lease.label = "process 1"
    leases.apply(lease, [FIRST_UUID], CAPPED)
    holder = only_entry(machine.journal).holder
    assert holder.process == lease.peer.process
    assert holder.label == f"{LABEL}, uid 1000: process 1"


def test_a_failed_apply_leaves_nothing(machine: KeptGpus, leases: Leases) -> None:
    """POWER-32: when the second GPU refuses, both are as found and free for others."""
    machine.gpus[1].refusals[SET_LIMIT] = NO_PERMISSION
    lease = lease_of(machine, 700)
    with pytest.raises(Uncontrolled):
        leases.apply(lease, BOTH, CAPPED)
    assert machine.state() == FREE
    assert leases.status().held == ()
    machine.gpus[1].refusals.clear()
    leases.apply(lease_of(machine, 701), BOTH, CAPPED)


def test_a_failed_apply_ends_what_was_applied(machine: KeptGpus, leases: Leases) -> None:
    """A value that is refused does not leave the former one in force: the client would not know which holds."""
    lease = lease_of(machine, 700)
    leases.apply(lease, BOTH, CAPPED)
    with pytest.raises(InvalidSetting):
        leases.apply(lease, BOTH, DeviceSettings(power_cap_w=5000))
    assert machine.state() == FREE


def test_a_value_outside_the_allowed_range_is_refused(machine: KeptGpus, config: GuardConfig) -> None:
    """What the device would take but the configuration does not allow is refused with the range; nothing is set."""
    leases = Leases(allowing(config, any=DeviceRules(ranges={POWER_CAP: (300, 600)})), machine.host)
    lease = lease_of(machine, 700)
    for value in (299, 601):
        with pytest.raises(
            InvalidSetting, match=f"power_cap_w is {value}: the guard's configuration allows 300 to 600"
        ):
            leases.apply(lease, [FIRST_UUID], DeviceSettings(power_cap_w=value))
    assert machine.gpus[0].writes == []
    leases.apply(lease, [FIRST_UUID], DeviceSettings(power_cap_w=300))


def test_a_knob_that_is_not_listed_is_refused(machine: KeptGpus, config: GuardConfig) -> None:
    """A device's table is a list of what may be set there: other knobs, and devices without a table, may not."""
    leases = Leases(allowing(config, first=DeviceRules(ranges={POWER_CAP: (300, 600)})), machine.host)
    lease = lease_of(machine, 700)
    with pytest.raises(Uncontrolled, match="sm_clock_cap_mhz may not be set"):
        leases.apply(lease, [FIRST_UUID], DeviceSettings(sm_clock_cap_mhz=1005))
    with pytest.raises(Uncontrolled, match=f"{SECOND_UUID}: power_cap_w may not be set"):
        leases.apply(lease, BOTH, DeviceSettings(power_cap_w=400))
    assert machine.state() == FREE


def test_an_allowed_value_that_the_device_lacks_is_refused(machine: KeptGpus, config: GuardConfig) -> None:
    """POWER-25: a range in the configuration does not make a device take what is off its grid."""
    leases = Leases(allowing(config, any=DeviceRules(ranges={SM_CLOCK_CAP: (1, 5000)})), machine.host)
    with pytest.raises(InvalidSetting, match="takes 1005, not 1006"):
        leases.apply(lease_of(machine, 700), [FIRST_UUID], DeviceSettings(sm_clock_cap_mhz=1006))
    assert machine.state() == FREE


def test_offers_are_what_device_and_configuration_allow(machine: KeptGpus, config: GuardConfig) -> None:
    """Each device's knobs are told within both limits; what is not listed, or cannot be had, is left out."""
    rules = {SM_CLOCK_CAP: (1000, 1050), POWER_CAP: (100, 600)}
    nothing_left = DeviceRules(ranges={SM_CLOCK_CAP: (1, 100), POWER_CAP: (100, 150)})
    leases = Leases(allowing(config, any=DeviceRules(ranges=rules), first=nothing_left), machine.host)
    first, second, cpu = leases.offers()
    assert (first.device_uuid, first.knobs) == (FIRST_UUID, ())
    assert {knob.name: (knob.values, knob.is_range) for knob in second.knobs} == {
        SM_CLOCK_CAP: ((1005, 1020, 1035, 1050), False),
        POWER_CAP: ((200, 600), True),
    }
    assert (cpu.device_uuid.partition("-")[0], cpu.knobs) == ("CPU", ())


def test_without_rules_everything_is_offered(leases: Leases) -> None:
    """Without a configuration the offers are what the devices take."""
    assert [len(offer.knobs) for offer in leases.offers()] == [2, 2, 0]


def test_offers_are_kept_for_a_while(machine: KeptGpus, leases: Leases) -> None:
    """Many greetings do not open and close the driver each time; after some seconds the devices are asked again."""
    library = pynvml.CDLL("libnvidia-ml.so.1")  # the fake one that the bindings have loaded
    first, opened = leases.offers(), library.num_inits
    assert leases.offers() == first
    assert library.num_inits == opened
    machine.clock.advance(OFFERS_KEPT_S)
    assert leases.offers() == first
    assert library.num_inits == opened + 1


def test_without_rules_the_limit_that_was_found_is_the_highest(machine: KeptGpus, leases: Leases) -> None:
    """An administrator's 500 W are not raised by a guard that is told nothing, neither at first nor from below."""
    lease, too_much = lease_of(machine, 700), DeviceSettings(power_cap_w=501)
    ranges = [knob.values for offer in leases.offers() for knob in offer.knobs if knob.name == POWER_CAP]
    assert ranges == [(200, 700), (200, 500)]
    with pytest.raises(InvalidSetting, match=f"{SECOND_UUID}: power_cap_w is 501: .* 500 W"):
        leases.apply(lease, BOTH, too_much)
    assert machine.gpus[1].writes == []
    leases.apply(lease, BOTH, DeviceSettings(power_cap_w=300))
    leases.apply(lease, BOTH, DeviceSettings(power_cap_w=500))
    assert machine.state() == [(None, 500_000), (None, 500_000)]
    with pytest.raises(InvalidSetting, match="500 W"):
        leases.apply(lease, BOTH, too_much)
    assert machine.state() == FREE


def test_rules_may_allow_more_than_the_limit_that_was_found(machine: KeptGpus, config: GuardConfig) -> None:
    """Where the configuration names a range, it alone bounds the power cap."""
    leases = Leases(allowing(config, any=DeviceRules(ranges={POWER_CAP: (300, 650)})), machine.host)
    leases.apply(lease_of(machine, 700), [SECOND_UUID], DeviceSettings(power_cap_w=650))
    assert machine.state() == [FREE[0], (None, 650_000)]


def test_a_limit_that_cannot_be_read_allows_nothing(machine: KeptGpus, leases: Leases) -> None:
    """Without the limit that was found no power cap is offered or set; other knobs are."""
    machine.gpus[0].refusals[GET_LIMIT] = UNKNOWN_ERROR
    assert [knob.name for knob in leases.offers()[0].knobs] == [SM_CLOCK_CAP]
    lease = lease_of(machine, 700)
    with pytest.raises(Uncontrolled, match=FIRST_UUID):
        leases.apply(lease, [FIRST_UUID], DeviceSettings(power_cap_w=300))
    leases.apply(lease, [FIRST_UUID], DeviceSettings(sm_clock_cap_mhz=1005))


@pytest.mark.parametrize("name", ["any", "first"])
def test_a_declared_cap_is_put_back(machine: KeptGpus, config: GuardConfig, name: str) -> None:
    """POWER-36: the lock that the configuration declares for a device, or for any, is there again after a lease."""
    machine.gpus[0].locked = (210, 1500)
    leases = Leases(allowing(config, **{name: DeviceRules(ranges={SM_CLOCK_CAP: (210, 1980)},
                                                          prior_sm_clock_cap_mhz=1500)}), machine.host)  # fmt: skip
    lease = lease_of(machine, 700)
    leases.apply(lease, [FIRST_UUID], DeviceSettings(sm_clock_cap_mhz=900))
    assert machine.gpus[0].locked == (210, 900)
    leases.end(lease)
    assert machine.gpus[0].locked == (210, 1500)


def test_a_failed_restore_is_told_and_tried_again(machine: KeptGpus, leases: Leases) -> None:
    """What cannot be put back blocks the device, is in the status, and comes back with a later recovery."""
    lease = lease_of(machine, 700)
    leases.apply(lease, [FIRST_UUID], CAPPED)
    machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
    with pytest.raises(RestoreFailed, match="sm_clock_cap_mhz"):
        leases.restore(lease)
    status = leases.status()
    assert (status.held, set(status.failed)) == ((), {FIRST_UUID})
    with pytest.raises(RestoreFailed, match="is blocked"):
        leases.apply(lease, [FIRST_UUID], CAPPED)
    assert [recovery.outcome for recovery in leases.recover()] == [Outcome.FAILED]
    machine.gpus[0].refusals.clear()
    assert [recovery.outcome for recovery in leases.recover()] == [Outcome.PUT_BACK]
    assert machine.state() == FREE
    assert leases.status().failed == {}


def test_status_tells_who_holds_what(machine: KeptGpus, leases: Leases) -> None:
    """Each held device is listed with pid, user, label and settings."""
    lease = lease_of(machine, 700)
    lease.label = "a job"
    leases.apply(lease, BOTH, CAPPED)
    held = leases.status().held
    assert {one.device_uuid for one in held} == set(BOTH)
    assert {(one.pid, one.uid, one.label, one.settings) for one in held} == {(700, 1000, "a job", CAPPED)}
    assert {one.lease for one in held} == {lease.token}
    assert lease_of(machine, 700).token != lease.token


def test_recovery_leaves_leases_alone(machine: KeptGpus, leases: Leases) -> None:
    """What a lease holds stays, even for the moment between its process's death and its connection's end."""
    lease = lease_of(machine, 700)
    leases.apply(lease, [FIRST_UUID], CAPPED)
    assert leases.recover() == ()
    assert machine.state() == [SET[0], FREE[1]]


def test_a_new_guard_ends_the_leases_of_the_former(machine: KeptGpus, config: GuardConfig, leases: Leases) -> None:
    """What a live process had set through a guard that was killed is put back: it has no lease any more."""
    leases.apply(lease_of(machine, 700), BOTH, CAPPED)
    successor = Leases(config, machine.host)
    assert [(one.device_uuid, one.outcome) for one in successor.recover()] == [
        (uuid, Outcome.PUT_BACK) for uuid in sorted(BOTH)
    ]
    assert machine.state() == FREE


def test_a_new_guard_tells_what_it_cannot_put_back(machine: KeptGpus, config: GuardConfig, leases: Leases) -> None:
    """An orphaned lease whose restore fails is in the answer and blocked."""
    leases.apply(lease_of(machine, 700), [FIRST_UUID], CAPPED)
    machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
    successor = Leases(config, machine.host)
    assert {one.outcome for one in successor.recover()} == {Outcome.FAILED}
    assert set(successor.status().failed) == {FIRST_UUID}


def test_the_driver_is_let_go_of_between_leases(machine: KeptGpus, leases: Leases) -> None:
    """An idle guard keeps no GPU open, so that an administrator can reset it; a holding one does."""
    library = pynvml.CDLL("libnvidia-ml.so.1")  # the fake one that the bindings have loaded
    leases.offers()
    assert library.num_inits == library.num_shutdowns
    lease = lease_of(machine, 700)
    leases.apply(lease, [FIRST_UUID], CAPPED)
    machine.clock.advance(OFFERS_KEPT_S)
    leases.offers()
    assert library.num_inits == library.num_shutdowns + 1
    leases.end(lease)
    assert library.num_inits == library.num_shutdowns
