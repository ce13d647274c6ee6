"""What the guard answers: its records, and the JSON that they travel as.

Parsing is as strict as that of requests. Knows nothing of how answers are obtained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from probes.control.guard_wire import Fault, WireError, list_of, object_of, settings_of, shown, text_of, whole_of
from probes.control.keeper import Outcome, Recovery
from probes.settings import DeviceSettings, Settable


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What may be set on one device: what it takes, within what the configuration allows."""

    device_uuid: str
    knobs: tuple[Settable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer to HELLO."""

    guard_pid: int
    #: Names the lease of this connection, as `Held.lease` does. It tells leases apart, and gives no right.
    lease: str
    #: Silence of so many seconds ends the lease.
    lapse_s: float
    state_dir: str
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One device that somebody holds through the guard."""

    device_uuid: str
    lease: str
    #: As the guard's PID namespace counts: the process itself may know another number.
    pid: int
    uid: int
    label: str
    settings: DeviceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardStatus:
    """The answer to STATUS."""

    held: tuple[Held, ...]
    #: Devices that are blocked, with the reasons.
    failed: Mapping[str, str]


def body_of(answer: Welcome | GuardStatus | Sequence[Recovery]) -> Any:
    """Return an answer as `encode_answer` takes it."""
    return [asdict(one) for one in answer] if isinstance(answer, Sequence) else asdict(answer)


def welcome_of(answer: Any) -> Welcome:
    """Return the record in the answer to HELLO; raise WireError."""
    document = object_of(answer, "answer", {"guard_pid", "lease", "lapse_s", "state_dir", "offers"})
    lapse_s = document["lapse_s"]
    if isinstance(lapse_s, bool) or not isinstance(lapse_s, int | float) or lapse_s <= 0:
        raise WireError(Fault.BAD_FIELD, f"lapse_s is {shown(lapse_s)}: not a duration")
    return Welcome(
        guard_pid=whole_of(document["guard_pid"], "guard_pid"),
        lease=text_of(document["lease"], "lease"),
        lapse_s=float(lapse_s),
        state_dir=text_of(document["state_dir"], "state_dir"),
        offers=tuple(_offer(one) for one in list_of(document["offers"], "offers")),
    )


def status_of(answer: Any) -> GuardStatus:
    """Return the record in the answer to STATUS; raise WireError."""
    document = object_of(answer, "answer", {"held", "failed"})
    failed = object_of(document["failed"], "failed")
    return GuardStatus(
        held=tuple(_held(one) for one in list_of(document["held"], "held")),
        failed={uuid: text_of(detail, uuid) for uuid, detail in failed.items()},
    )


def problems_of(answer: Any) -> tuple[str, ...]:
    """Return the reasons in the answer to PROBLEMS; raise WireError."""
    return tuple(text_of(one, "problems") for one in list_of(answer, "problems"))


def recoveries_of(answer: Any) -> tuple[Recovery, ...]:
    """Return the records in the answer to RECOVER; raise WireError."""
    rows = [object_of(one, "recovery", {"device_uuid", "outcome", "detail"}) for one in list_of(answer, "recoveries")]
    for row in rows:
        if row["outcome"] not in tuple(Outcome):
            raise WireError(Fault.BAD_FIELD, f"outcome is {shown(row['outcome'])}")
    return tuple(
        Recovery(
            device_uuid=text_of(row["device_uuid"], "device_uuid"),
            outcome=Outcome(row["outcome"]),
            detail=text_of(row["detail"], "detail"),
        )
        for row in rows
    )


def _offer(value: Any) -> Offer:
    document = object_of(value, "offer", {"device_uuid", "knobs"})
    rows = [object_of(one, "knob", {"name", "values", "is_range"}) for one in list_of(document["knobs"], "knobs")]
    knobs = tuple(
        Settable(
            name=text_of(row["name"], "name"),
            values=tuple(whole_of(one, "values") for one in list_of(row["values"], "values")),
            is_range=row["is_range"] is True,
        )
        for row in rows
    )
    return Offer(device_uuid=text_of(document["device_uuid"], "device_uuid"), knobs=knobs)


def _held(value: Any) -> Held:
    document = object_of(value, "held", {"device_uuid", "lease", "pid", "uid", "label", "settings"})
    chosen = object_of(document["settings"], "settings")
    return Held(
        device_uuid=text_of(document["device_uuid"], "device_uuid"),
        lease=text_of(document["lease"], "lease"),
        pid=whole_of(document["pid"], "pid"),
        uid=whole_of(document["uid"], "uid"),
        label=text_of(document["label"], "label"),
        settings=settings_of({knob: number for knob, number in chosen.items() if number is not None}),
    )
