"""One write to one knob: prepared without touching the device, made, verified, and undone.

Every error names device, knob, value and cause. Knows nothing of other devices, nor of who writes entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from probes.control.actuator import Actuator, Found
from probes.control.journal import Entry
from probes.errors import InvalidSetting, NotPermitted, NotSupported, ProbeError, Uncontrolled
from probes.settings import POWER_CAP
from probes.validity import Reason

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write to one knob of one device."""

    actuator: Actuator
    #: None puts back what was found.
    value: int | None
    found: Found | None
    is_raise: bool
    #: Whether we have not touched the knob before.
    is_first: bool

    @property
    def key(self) -> tuple[str, str]:
        """Device and knob."""
        return self.actuator.device_uuid, self.actuator.knob

    @property
    def order(self) -> tuple[bool, bool]:
        """What goes down goes first, the clock before the limit; what goes up goes up limit first."""
        return self.is_raise, (self.actuator.knob == POWER_CAP) != self.is_raise


def planned(actuator: Actuator, value: int, before: Entry | None) -> Change:
    """Return the write of an allowed value, with what was found before our first one. Nothing is set.

    Raises InvalidSetting for a value that the device does not take, Uncontrolled where it cannot be asked.
    """
    knob = actuator.knob
    known = before is not None and knob in before.found
    try:
        settable = actuator.settable()
        if settable.snapped(value) != value:
            raise InvalidSetting(f"{actuator.device_uuid}: {knob} takes {settable.snapped(value)}, not {value}")
        found = before.found[knob] if before is not None and known else actuator.look()
    except InvalidSetting:
        raise
    except ProbeError as error:
        raise _uncontrolled(actuator, value, str(error)) from error
    present = before.written.get(knob) if before is not None else None
    if present is None:
        present = actuator.value_of(found or {})
    if present is None:
        present = settable.highest
    return Change(actuator=actuator, value=value, found=found, is_raise=value > present, is_first=not known)


def released(actuator: Actuator, before: Entry) -> Change:
    """Return the write that puts back what was found of a knob that is no longer wanted."""
    found = before.found[actuator.knob]
    return Change(actuator=actuator, value=None, found=found, is_raise=True, is_first=False)


def make(change: Change, touched: set[tuple[str, str]]) -> None:
    """Write; add the knob to `touched` unless it is certain still to be as it was found. Raises Uncontrolled."""
    touched.add(change.key)
    try:
        if change.value is not None:
            change.actuator.set(change.value)
        else:
            put_back(change.actuator, change.found)
    except ProbeError as error:
        # Who may not set may not put back either: a plain refusal must not end as a failed restore.
        if change.is_first and isinstance(error, NotPermitted | NotSupported) and _is_as_found(change):
            touched.discard(change.key)
        raise _uncontrolled(change.actuator, change.value, str(error)) from error


def put_back(actuator: Actuator, found: Found | None) -> None:
    """Put back what was found, or reset where that can no longer be known."""
    if found is None:
        actuator.reset()
    else:
        actuator.put_back(found)


def verify(change: Change) -> None:
    """Raise Uncontrolled where what was set is not in force by what the device reads back."""
    if change.value is None:
        return  # verified by putting it back
    try:
        deviation = change.actuator.deviation(change.value)
    except ProbeError as error:
        raise _uncontrolled(change.actuator, change.value, f"it cannot be read back: {error}") from error
    if deviation is not None:
        raise _uncontrolled(change.actuator, change.value, deviation)


def problem(actuator: Actuator, value: int) -> str | None:
    """Return the code of why a value is no longer in force, or None. Reads only."""
    reason: str
    try:
        deviation = actuator.deviation(value)
        is_overridden = deviation is not None and deviation.startswith(Reason.LIMIT_OVERRIDDEN)
        reason = Reason.LIMIT_OVERRIDDEN if is_overridden else Reason.EXTERNAL_CHANGE
    except ProbeError as error:
        deviation, reason = str(error), error.kind
    if deviation is None:
        return None
    log.warning("setting_lost", device=actuator.device_uuid, knob=actuator.knob, reason=deviation)
    return str(reason)


def put_all_back(actuators: Sequence[Actuator], found: Mapping[str, Found | None]) -> list[str]:
    """Put back every knob, even where others fail; return what went wrong."""
    errors: list[str] = []
    unsupported: list[str] = []
    for actuator in actuators:
        was = found[actuator.knob]
        try:
            put_back(actuator, was)
        except Exception as error:  # whatever befalls one knob, the others must be tried
            # What is reset because nothing is known of it may not be there at all.
            is_absent = was is None and isinstance(error, NotSupported)
            (unsupported if is_absent else errors).append(f"{actuator.knob}: {error}")
    return unsupported if len(unsupported) == len(actuators) else errors


def _is_as_found(change: Change) -> bool:
    try:
        return change.actuator.look() == change.found
    except ProbeError:
        return False


def _uncontrolled(actuator: Actuator, value: int | None, why: str) -> Uncontrolled:
    wanted = "as it was found" if value is None else str(value)
    return Uncontrolled(f"{actuator.device_uuid}: {actuator.knob} could not be set to {wanted}: {why}; nothing is set")
