"""Who holds which devices through the guard, and what each may set.

A lease is one connection's. What it set comes back when it ends, however it ends. One call at a time reaches a device,
so that the driver can be let go of between leases; a driver that hangs holds up everybody who asks for a device. Knows
nothing of sockets, lines or timeouts.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock

import structlog

from probes.control.actuator import Actuator
from probes.control.actuators import actuators_of
from probes.control.guard_answers import GuardStatus, Held, Offer
from probes.control.guard_config import ANY_DEVICE, GuardConfig
from probes.control.journal import Damaged, Entry, Holder, Journal, State
from probes.control.keeper import Keeper, Outcome, Recovery
from probes.cpu.cpu_device import CpuDevice
from probes.detect import Host
from probes.errors import DeviceInUse, InvalidSetting, ProbeError, RestoreFailed, Uncontrolled
from probes.identity import ProcessIdentity
from probes.settings import POWER_CAP, DeviceSettings, Settable

#: Begins the label of every journal entry that a guard made: its holder may live on when the guard was killed.
LABEL = "through the guard"
#: Every greeting asks for the offers, and asking the devices opens and closes the driver.
OFFERS_KEPT_S = 5.0
_LONGEST_DETAIL = 500

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end of a connection, by the kernel's word."""

    process: ProcessIdentity
    uid: int
    gids: frozenset[int]


class Lease:
    """What one connection holds."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        #: Tells this lease from others, also where the client counts processes otherwise than we do.
        self.token = secrets.token_hex(8)
        #: What the client says it does; for people only.
        self.label = ""
        self.uuids: tuple[str, ...] = ()
        self.settings = DeviceSettings()
        #: As the journal knows it; the same from the first apply to the restore.
        self.holder: Holder | None = None


class Leases:
    """The leases of one guard."""

    def __init__(self, config: GuardConfig, host: Host) -> None:
        self._config = config
        self._host = host
        self._journal = Journal(config.state_dir)
        self._keeper = Keeper(host, self._journal, prior_caps_mhz=_prior_caps_mhz(config, host))
        self._lock = RLock()
        self._by_uuid: dict[str, Lease] = {}
        self._offers: tuple[Offer, ...] = ()
        self._offers_until_s = float("-inf")

    def offers(self) -> tuple[Offer, ...]:
        """Return what may be set on each device of this machine, as of a few seconds ago; the rest is left out."""
        with self._lock:
            if self._host.clock.monotonic_s() >= self._offers_until_s:
                self._offers = tuple(
                    Offer(device_uuid=uuid, knobs=self._knobs(uuid)) for uuid in known_uuids(self._host)
                )
                self._offers_until_s = self._host.clock.monotonic_s() + OFFERS_KEPT_S
                self._let_go_of_driver()
            return self._offers

    def apply(self, lease: Lease, uuids: Sequence[str], settings: DeviceSettings) -> None:
        """Set these knobs for a lease and verify them.

        Raises DeviceInUse when another lease or process holds a device, Uncontrolled or InvalidSetting when the
        configuration does not allow it, and what `Keeper.apply` raises; the lease then holds nothing any more.
        """
        with self._lock:
            try:
                self._refuse_held(lease, uuids)
                self._permit(uuids, settings)
                self._take(lease, uuids)
                self._keeper.apply(uuids, settings, _holder_of(lease))
            except BaseException:
                self.end(lease)
                raise
            lease.settings = settings
        log.info("applied", pid=lease.peer.process.pid, uid=lease.peer.uid, devices=uuids, settings=settings.as_dict())

    def problems(self, lease: Lease) -> tuple[str, ...]:
        """Return why what a lease set is no longer in force."""
        with self._lock:
            return self._keeper.problems(lease.uuids, lease.settings) if lease.uuids else ()

    def restore(self, lease: Lease) -> None:
        """Put back everything a lease set; the lease goes on. Raises RestoreFailed; the devices are blocked then."""
        with self._lock:
            uuids, holder = lease.uuids, lease.holder
            try:
                if uuids:
                    self._keeper.restore(uuids, holder=holder)
            finally:
                # What could not be put back is the journal's from here on: it is blocked, not held.
                for uuid in uuids:
                    del self._by_uuid[uuid]
                lease.uuids, lease.settings, lease.holder = (), DeviceSettings(), None
                self._let_go_of_driver()

    def end(self, lease: Lease) -> None:
        """Put back everything a lease set; a failure is in the journal and the log."""
        try:
            self.restore(lease)
        except RestoreFailed as error:
            log.error("restore_failed", pid=lease.peer.process.pid, reason=str(error))

    def recover(self) -> tuple[Recovery, ...]:
        """Put back what nobody holds any more, and try again what failed; return what was done.

        That is what dead processes left, and what live ones had set through a guard that is gone: with its connection
        each of them has lost its lease.
        """
        with self._lock:
            orphans = [entry for entry in self._journal.entries() if self._is_orphan(entry)]
            done = (*(self._put_back(entry.device_uuid) for entry in orphans), *self._keeper.recover())
            self._let_go_of_driver()
            return done

    def status(self) -> GuardStatus:
        """Return who holds what, and what is blocked."""
        with self._lock:
            held = tuple(_held(uuid, lease) for uuid, lease in sorted(self._by_uuid.items()))
            failed = {uuid: detail[:_LONGEST_DETAIL] for uuid, detail in self._keeper.failed().items()}
            return GuardStatus(held=held, failed=failed)

    def _is_orphan(self, entry: Entry | Damaged) -> bool:
        return (
            isinstance(entry, Entry)
            and entry.state is State.APPLIED
            and entry.holder.label.startswith(LABEL)
            and entry.device_uuid not in self._by_uuid
            and entry.holder.process.may_be_alive(self._host.paths.proc)
        )

    def _put_back(self, uuid: str) -> Recovery:
        try:
            self._keeper.restore([uuid])
        except RestoreFailed as error:
            return Recovery(device_uuid=uuid, outcome=Outcome.FAILED, detail=str(error))
        return Recovery(device_uuid=uuid, outcome=Outcome.PUT_BACK, detail="it was set through a guard that is gone")

    def _refuse_held(self, lease: Lease, uuids: Sequence[str]) -> None:
        if lease.uuids and set(lease.uuids) != set(uuids):
            raise InvalidSetting(
                f"this connection holds {', '.join(lease.uuids)}; restore before setting {', '.join(uuids)}"
            )
        for uuid in uuids:
            other = self._by_uuid.get(uuid)
            if other is not None and other is not lease:
                raise DeviceInUse(f"{uuid} is set by {other.holder}; wait until it is done, or end it")

    def _permit(self, uuids: Sequence[str], settings: DeviceSettings) -> None:
        """Hold each value against what the configuration allows. What a device takes, the keeper checks."""
        if not self._config.devices:
            self._permit_power(uuids, settings.power_cap_w)
            return
        for uuid in uuids:
            ranges = self._config.rules_of(uuid).ranges
            for knob, value in settings.as_dict().items():
                if knob not in ranges:
                    raise Uncontrolled(
                        f"{uuid}: {knob} may not be set: the guard's configuration does not list it for this device; "
                        "add its range there, or tune without this knob"
                    )
                lowest, highest = ranges[knob]
                if not lowest <= value <= highest:
                    raise InvalidSetting(
                        f"{uuid}: {knob} is {value}: the guard's configuration allows {lowest} to {highest}"
                    )

    def _permit_power(self, uuids: Sequence[str], power_cap_w: int | None) -> None:
        """Refuse what is above the limit that was found: somebody set it, and no configuration says otherwise."""
        if power_cap_w is None:
            return
        for uuid in uuids:
            try:
                limits_w = [self._found_limit_w(actuator) for actuator in actuators_of(uuid, self._host, {})]
            except ProbeError as error:
                raise Uncontrolled(f"{uuid}: {POWER_CAP}: {error}; nothing is set") from error
            for limit_w in limits_w:
                if limit_w is not None and power_cap_w > limit_w:
                    raise InvalidSetting(
                        f"{uuid}: {POWER_CAP} is {power_cap_w}: the board was found at {limit_w} W; choose no more, "
                        "or name a higher range in the guard's configuration"
                    )

    def _found_limit_w(self, actuator: Actuator) -> int | None:
        """Return the power limit from before anything was set; None for another knob."""
        if actuator.knob != POWER_CAP:
            return None
        entry = self._journal.entry(actuator.device_uuid)
        found = entry.found.get(POWER_CAP) if isinstance(entry, Entry) else None
        return actuator.value_of(actuator.look() if found is None else found)

    def _take(self, lease: Lease, uuids: Sequence[str]) -> None:
        if lease.holder is None:
            label = f"{LABEL}, uid {lease.peer.uid}" + (f": {lease.label}" if lease.label else "")
            lease.holder = Holder(process=lease.peer.process, label=label)
        lease.uuids = tuple(uuids)
        self._by_uuid |= dict.fromkeys(uuids, lease)

    def _knobs(self, uuid: str) -> tuple[Settable, ...]:
        knobs: list[Settable] = []
        for actuator in actuators_of(uuid, self._host, {}):
            try:
                offered = self._allowed(actuator)
            except ProbeError as error:
                log.info("knob_not_offered", device=uuid, knob=actuator.knob, reason=str(error))
                continue
            knobs += [offered] if offered else []
        return tuple(knobs)

    def _allowed(self, actuator: Actuator) -> Settable | None:
        """Return what a device takes of what may be set there. Raises ProbeError where it has not got the knob."""
        settable = actuator.settable()
        if self._config.devices:
            return _within(settable, self._config.rules_of(actuator.device_uuid).ranges.get(actuator.knob))
        found_w = self._found_limit_w(actuator)
        return settable if found_w is None else _within(settable, (settable.lowest, found_w))

    def _let_go_of_driver(self) -> None:
        """Hold no file of an idle GPU open: an administrator could not reset it."""
        if not self._by_uuid:
            self._host.nvml.close()


def _within(settable: Settable, allowed: tuple[int, int] | None) -> Settable | None:
    """Return the values of a knob that are allowed too; None where there are none."""
    if allowed is None:
        return None
    lowest, highest = allowed
    if settable.is_range:
        values: tuple[int, ...] = (max(settable.lowest, lowest), min(settable.highest, highest))
        return replace(settable, values=values) if values[0] <= values[1] else None
    values = tuple(value for value in settable.values if lowest <= value <= highest)
    return replace(settable, values=values) if values else None


def known_uuids(host: Host) -> tuple[str, ...]:
    """Return every device of this machine that answers, whatever CUDA_VISIBLE_DEVICES says."""
    try:
        cards, failures = host.nvml.cards_and_failures()
    except ProbeError as error:
        cards, failures = (), (error,)
    for failure in failures:
        log.info("no_gpu", reason=str(failure))
    cpu = CpuDevice(paths=host.paths, model=host.cpu_power, clock=host.clock)
    return (*(card.uuid for card in cards), cpu.info.uuid)


def _prior_caps_mhz(config: GuardConfig, host: Host) -> Mapping[str, int]:
    """Return the caps that the configuration declares, by GPU of this machine."""
    uuids = known_uuids(host)
    for uuid in config.devices.keys() - {ANY_DEVICE} - set(uuids):
        log.warning("configured_device_is_not_here", device=uuid, devices=uuids)
    caps = {uuid: config.rules_of(uuid).prior_sm_clock_cap_mhz for uuid in uuids}
    host.nvml.close()
    return {uuid: cap_mhz for uuid, cap_mhz in caps.items() if cap_mhz is not None}


def _holder_of(lease: Lease) -> Holder:
    assert lease.holder is not None
    return lease.holder


def _held(uuid: str, lease: Lease) -> Held:
    return Held(
        device_uuid=uuid,
        lease=lease.token,
        pid=lease.peer.process.pid,
        uid=lease.peer.uid,
        label=lease.label,
        settings=lease.settings,
    )
