"""Sets the knobs of devices and gives back what was found: whole, or not at all.

Everything is looked at and written to the journal before the first write to a device. Where one write fails, every
device gets back what was found. What a dead process left behind is put back at start-up. Knows knobs only as
actuators; nothing of who asks, nor of leases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from threading import RLock

import structlog

from probes.control.actuator import Actuator
from probes.control.actuators import actuators_of
from probes.control.change import Change, make, planned, problem, put_all_back, released, verify
from probes.control.journal import SUFFIX, UNKNOWN_HOLDER, Damaged, Entry, Holder, Journal, State
from probes.control.shield import shielded
from probes.detect import Host
from probes.errors import DeviceInUse, ProbeError, RestoreFailed, Uncontrolled
from probes.identity import boot_id, is_other_boot
from probes.settings import DEVICE_KNOBS, DeviceSettings

log = structlog.get_logger()


class Outcome(StrEnum):
    """What became of an entry that a dead process left behind."""

    PUT_BACK = "put_back"
    REBOOTED = "rebooted"  # nothing was left to put back
    DRIVER_RELOADED = "driver_reloaded"  # likewise
    RESET = "reset"  # what was found could not be known any more
    FAILED = "restore_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What was done about one entry."""

    device_uuid: str
    outcome: Outcome
    #: In words for people.
    detail: str

    @property
    def is_alert(self) -> bool:
        """Whether somebody should look at the device."""
        return self.outcome in (Outcome.RESET, Outcome.FAILED)


class Keeper:
    """Applies, restores and recovers, one call at a time; all of it is shielded from signals in the main thread."""

    def __init__(self, host: Host, journal: Journal, *, prior_caps_mhz: Mapping[str, int] | None = None) -> None:
        self._host = host
        self._journal = journal
        self._prior_caps_mhz = dict(prior_caps_mhz or {})
        #: Our own entries, for when somebody removes or damages a file.
        self._known: dict[str, Entry] = {}
        self._lock = RLock()

    def apply(self, uuids: Sequence[str], settings: DeviceSettings, holder: Holder) -> None:
        """Set these knobs on all devices that have them and verify; knobs set before and not named are put back.

        Raises DeviceInUse when another live process holds a device, RestoreFailed when one is blocked; then nothing
        was touched. Raises InvalidSetting, Uncontrolled, or whatever else went wrong, after everything was put back
        as it was found on all devices; RestoreFailed when that failed too.
        """
        with self._lock, shielded():
            for uuid in uuids:
                self._make_way(uuid, holder)
            if settings.is_empty:
                self._restore(uuids, holder)
                return
            before = {uuid: self._entry(uuid) for uuid in uuids}
            touched = {(uuid, knob) for uuid, entry in before.items() if entry for knob in entry.found}
            try:
                changes = self._prepared(before, settings, holder)
                for change in changes:
                    make(change, touched)
                for change in changes:
                    verify(change)
            except BaseException as error:
                self._roll_back(uuids, holder, touched, error)
                raise

    def restore(self, uuids: Sequence[str], *, holder: Holder | None = None) -> None:
        """Put back every knob of every device, even where others fail, and verify; do nothing where nothing is set.

        With a holder, what others hold is left alone. Raises RestoreFailed with all errors; those devices stay blocked
        until a later restore or recovery succeeds.
        """
        with self._lock, shielded():
            self._restore(uuids, holder)

    def recover(self) -> tuple[Recovery, ...]:
        """Put back what dead processes left, and try again what failed; return what was done about each device.

        What processes in other PID namespaces hold is left alone: they may be alive. Raises Uncontrolled where the
        journal's folder cannot be read. A device that cannot be put back is in the answer, not raised.
        """
        with self._lock, shielded():
            entries = [self._entry(entry.device_uuid) or entry for entry in self._journal.entries()]
            return tuple(self._recovered(entry) for entry in entries if not self._is_rightfully_held(entry))

    def failed(self) -> Mapping[str, str]:
        """Return the devices that are blocked until they are restored, with the reasons."""
        return {
            entry.device_uuid: entry.detail
            for entry in self._journal.entries()
            if isinstance(entry, Entry) and entry.state is State.RESTORE_FAILED and not self._is_undone(entry)
        }

    def problems(self, uuids: Sequence[str], settings: DeviceSettings) -> tuple[str, ...]:
        """Return why these settings are not in force, as codes; nothing when they are. Reads only.

        A device that cannot be read back gives the kind of its error.
        """
        if settings.is_empty:
            return ()
        with self._lock:
            try:
                targets = self._targets(uuids, settings)
            except Uncontrolled as error:
                cause = error.__cause__
                return (cause.kind if isinstance(cause, ProbeError) else error.kind,)
            reasons = [problem(actuator, value) for actuator, value in targets]
        return tuple(dict.fromkeys(reason for reason in reasons if reason is not None))

    def _make_way(self, uuid: str, holder: Holder) -> None:
        """Refuse a device that is blocked or in use; recover one that a dead process left."""
        entry = self._entry(uuid) or self._journal.entry(uuid)
        if isinstance(entry, Entry) and not self._is_undone(entry):
            if entry.state is State.RESTORE_FAILED:
                raise RestoreFailed(f"{uuid} is blocked, what was found is not put back: {entry.detail}")
            if entry.holder == holder:
                return
            self._refuse_held(entry)
        if entry is not None:
            recovery = self._recovered(entry)
            if recovery.outcome is Outcome.FAILED:
                raise RestoreFailed(f"{uuid}: {recovery.detail}")

    def _refuse_held(self, entry: Entry) -> None:
        uuid, process = entry.device_uuid, entry.holder.process
        if process.is_elsewhere(self._host.paths.proc):
            raise DeviceInUse(
                f"{uuid} is set by {entry.holder}, which cannot be seen from this PID namespace (it is in another "
                "container, or on the host); wait until it is done, or end it; if it is gone and cannot put back, "
                f"restart the machine, or put back by hand and remove {self._journal.folder / f'{uuid}{SUFFIX}'}"
            )
        if process.is_alive(self._host.paths.proc):
            raise DeviceInUse(f"{uuid} is set by {entry.holder}; wait until it is done, or end it")

    def _prepared(
        self, before: Mapping[str, Entry | None], settings: DeviceSettings, holder: Holder
    ) -> tuple[Change, ...]:
        """Look at everything and write it down; return the writes in order."""
        targets = self._targets(tuple(before), settings)
        changes = [planned(actuator, value, before[actuator.device_uuid]) for actuator, value in targets]
        chosen = {uuid: {change.key[1] for change in changes if change.key[0] == uuid} for uuid in before}
        for uuid, entry in before.items():
            if entry is not None:
                others = (
                    actuator for actuator in self._actuators(uuid, entry.found) if actuator.knob not in chosen[uuid]
                )
                changes += [released(actuator, entry) for actuator in others]
        for uuid, entry in before.items():
            self._write_down(uuid, entry, [change for change in changes if change.key[0] == uuid], holder)
        return tuple(sorted(changes, key=lambda change: change.order))

    def _write_down(self, uuid: str, before: Entry | None, changes: Sequence[Change], holder: Holder) -> None:
        if not changes:
            return
        entry = Entry(
            device_uuid=uuid,
            boot_id=boot_id(self._host.paths.proc),
            energy_mj=self._energy_mj(uuid),
            holder=holder,
            found={change.actuator.knob: change.found for change in changes},
            written={change.actuator.knob: change.value for change in changes if change.value is not None},
            since=datetime.now(UTC),
        )
        if before is None:
            self._journal.claim(entry)
        else:
            self._journal.write(entry)
        self._known[uuid] = entry

    def _targets(self, uuids: Sequence[str], settings: DeviceSettings) -> list[tuple[Actuator, int]]:
        """Return each knob that is to be set, on each device whose kind has it."""
        chosen = settings.as_dict()
        targets = [(actuator, chosen[actuator.knob]) for uuid in uuids for actuator in self._actuators(uuid, chosen)]
        if missing := set(chosen) - {actuator.knob for actuator, _value in targets}:
            raise Uncontrolled(f"none of {', '.join(uuids)} has the knob {', '.join(sorted(missing))}; nothing is set")
        return targets

    def _actuators(self, uuid: str, knobs: Collection[str]) -> list[Actuator]:
        try:
            actuators = actuators_of(uuid, self._host, self._prior_caps_mhz)
        except ProbeError as error:
            raise Uncontrolled(f"{uuid}: {error}; nothing is set") from error
        return [actuator for actuator in actuators if actuator.knob in knobs]

    def _energy_mj(self, uuid: str) -> int | None:
        """Return the GPU's energy counter; None where there is none, as for a CPU."""
        try:
            return self._host.nvml.energy_mj(uuid)
        except ProbeError:
            return None

    def _roll_back(
        self, uuids: Sequence[str], holder: Holder, touched: Collection[tuple[str, str]], cause: BaseException
    ) -> None:
        failures: list[str] = []
        for uuid in uuids:
            try:
                entry = self._entry(uuid)
            except Uncontrolled:
                continue  # neither written nor readable: nothing of ours was set there
            if entry is not None and entry.holder == holder:
                failures += self._settled(entry, [knob for knob in entry.found if (uuid, knob) in touched])
        if failures:
            raise RestoreFailed(f"{cause}; and then: {'; '.join(failures)}") from cause

    def _restore(self, uuids: Sequence[str], holder: Holder | None) -> None:
        failures: list[str] = []
        for uuid in uuids:
            try:
                entry = self._entry(uuid) or self._journal.entry(uuid)
            except Uncontrolled as error:
                failures.append(f"{uuid}: {error}")
                continue
            if isinstance(entry, Damaged):
                entry = self._unreadable(entry)
            if entry is not None and holder in (None, entry.holder):
                failures += self._settled(entry, entry.found)
        if failures:
            raise RestoreFailed("; ".join(failures))

    def _settled(self, entry: Entry, knobs: Iterable[str]) -> list[str]:
        """Put these knobs back and remove the entry, or keep it as failed; return what went wrong."""
        uuid = entry.device_uuid
        errors = self._put_back(entry, list(knobs))
        if errors:
            detail = "; ".join(errors)
            log.error("restore_failed", device=uuid, reason=detail)
            try:
                self._journal.write(replace(entry, state=State.RESTORE_FAILED, detail=detail))
                self._known.pop(uuid, None)
            except Uncontrolled as error:
                detail = f"{detail}; {error}"
            return [f"{uuid}: {detail}"]
        try:
            self._journal.remove(uuid)
        except Uncontrolled as error:
            return [f"{uuid}: everything is put back, but {error}"]
        self._known.pop(uuid, None)
        log.info("restored", device=uuid, found=dict(entry.found))
        return []

    def _put_back(self, entry: Entry, knobs: Collection[str]) -> list[str]:
        if not knobs:
            return []
        try:
            actuators = self._actuators(entry.device_uuid, knobs)
        except Uncontrolled as error:
            return [str(error.__cause__ or error)]
        return put_all_back(actuators, entry.found)

    def _recovered(self, entry: Entry | Damaged) -> Recovery:
        """Put back, or find that there is nothing to put back; never raises a ProbeError."""
        if isinstance(entry, Damaged):
            outcome, why = Outcome.RESET, f"its journal entry {entry.path} cannot be read ({entry.reason})"
            entry, knobs = self._unreadable(entry), DEVICE_KNOBS
        else:
            outcome, why = self._left_by(entry)
            knobs = () if outcome in (Outcome.REBOOTED, Outcome.DRIVER_RELOADED) else tuple(entry.found)
        if failures := self._settled(entry, knobs):
            outcome, why = Outcome.FAILED, "; ".join(failures)
        recovery = Recovery(device_uuid=entry.device_uuid, outcome=outcome, detail=why)
        tell = log.error if recovery.is_alert else log.warning
        tell("recovered", device=recovery.device_uuid, outcome=str(outcome), reason=why)
        return recovery

    def _left_by(self, entry: Entry) -> tuple[Outcome, str]:
        if self._is_undone(entry):
            return Outcome.REBOOTED, f"{entry.holder} set it before the machine restarted, which undid it"
        energy_mj = self._energy_mj(entry.device_uuid)
        if energy_mj is not None and entry.energy_mj is not None and energy_mj < entry.energy_mj:
            return Outcome.DRIVER_RELOADED, f"{entry.holder} set it before the driver was loaded anew, which undid it"
        if None in entry.found.values():
            return Outcome.RESET, "its journal entry could not be read before"
        return Outcome.PUT_BACK, f"{entry.holder} left it set"

    def _is_rightfully_held(self, entry: Entry | Damaged) -> bool:
        return (
            isinstance(entry, Entry)
            and entry.state is State.APPLIED
            and not self._is_undone(entry)
            and entry.holder.process.may_be_alive(self._host.paths.proc)
        )

    def _is_undone(self, entry: Entry) -> bool:
        """Return whether the machine was restarted since, so that nothing is left to put back."""
        return is_other_boot(entry.boot_id, self._host.paths.proc)

    def _entry(self, uuid: str) -> Entry | None:
        """Return the device's entry as far as it can be known: what we wrote stands in for a lost or damaged file."""
        known = self._known.get(uuid)
        try:
            entry = self._journal.entry(uuid)
        except Uncontrolled:
            if known is None:
                raise
            return known
        return entry if isinstance(entry, Entry) else known

    def _unreadable(self, damaged: Damaged) -> Entry:
        return Entry(
            device_uuid=damaged.device_uuid,
            boot_id=boot_id(self._host.paths.proc),
            energy_mj=self._energy_mj(damaged.device_uuid),
            holder=UNKNOWN_HOLDER,
            found=dict.fromkeys(DEVICE_KNOBS),
            written={},
            since=datetime.now(UTC),
        )
