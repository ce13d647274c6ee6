"""A schedule as it comes in, over HTTP or from the command line: its fields, and what may not be asked for.

Knows nothing of where the fields come from, nor of what is stored.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, ValidationError, WithJsonSchema

from api.calendar_rules import rule_of
from api.complaints import complaints_of
from api.errors import Refusal, WrongFields
from api.job_schemas import JobIn
from api.operator_file import Name, Operator
from api.submit import MAX_PRIORITY
from db.schedule import ScheduleSpec
from db.service import Overlap
from tuner.errors import InvalidRequest

#: A late run needs longer than the service sleeps between two looks.
MIN_GRACE_S = 60
MAX_GRACE_S = 7 * 86_400
MAX_KEPT_NIGHTS = 3_650
MAX_TARGETS = 10
#: Each is looked at every minute.
MAX_SCHEDULES = 200

#: The patterns are for the OpenAPI document: what does not fit is refused in words of our own.
NameIn = Annotated[Name, WithJsonSchema({"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"})]
ClockTime = Annotated[StrictStr, WithJsonSchema({"type": "string", "pattern": r"^([01][0-9]|2[0-3]):[0-5][0-9]$"})]

_GRACE = Field(default=None, ge=MIN_GRACE_S, le=MAX_GRACE_S)
_KEPT = Field(default=None, ge=1, le=MAX_KEPT_NIGHTS)
_PRIORITY = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)


class TooManySchedules(Refusal):
    """Delete a schedule that is not needed any more."""

    status = 429
    title = "too many schedules"


class VersionNeeded(Refusal):
    """Send `If-Match` with the version that the change is of."""

    status = 428
    title = "version needed"


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class NightlyIn(_In):
    """Every night between two local times, HH:MM; an end before the start is on the next day."""

    start: ClockTime = Field(max_length=5)
    end: ClockTime = Field(max_length=5)


class ScheduleIn(_In):
    """A job that repeats, by a cron line or in a window of every night."""

    name: NameIn
    job: JobIn
    nightly: NightlyIn | None = None
    #: Five fields.
    cron: StrictStr | None = Field(default=None, max_length=100)
    #: IANA name.
    timezone: StrictStr = Field(max_length=64)
    overlap: Overlap = Overlap.SKIP
    grace_s: StrictFloat | StrictInt | None = _GRACE
    keep_nights: StrictInt | None = _KEPT
    #: Targets of the operator's file.
    notify: list[NameIn] = Field(default_factory=list, max_length=MAX_TARGETS)
    priority: StrictInt = _PRIORITY

    def to_spec(self) -> ScheduleSpec:
        """Build the spec; raises InvalidRequest."""
        return ScheduleSpec(
            name=self.name,
            request=self.job.to_request(),
            cron=self.cron,
            window_start=None if self.nightly is None else self.nightly.start,
            window_end=None if self.nightly is None else self.nightly.end,
            timezone=self.timezone,
            overlap=self.overlap,
            grace_s=self.grace_s,
            keep_nights=self.keep_nights,
            notify=tuple(dict.fromkeys(self.notify)),
            priority=self.priority,
        )


class ScheduleChangeIn(_In):
    """The fields of a schedule that are to be others; those left out stay. A cron line replaces a window, and back."""

    name: NameIn = ""
    job: JobIn = Field(default=JobIn(model=""))
    nightly: NightlyIn | None = None
    cron: StrictStr | None = Field(default=None, max_length=100)
    timezone: StrictStr = Field(default="", max_length=64)
    overlap: Overlap = Overlap.SKIP
    grace_s: StrictFloat | StrictInt | None = _GRACE
    keep_nights: StrictInt | None = _KEPT
    notify: list[NameIn] = Field(default_factory=list, max_length=MAX_TARGETS)
    priority: StrictInt = _PRIORITY

    def applied_to(self, spec: ScheduleSpec) -> ScheduleSpec:
        """Return a spec with the fields that were given; raises InvalidRequest."""
        given = self.model_fields_set
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in given & {"name", "cron", "timezone", "overlap", "grace_s", "keep_nights", "priority"}
        }
        if "job" in given:
            changes["request"] = self.job.to_request()
        if "notify" in given:
            changes["notify"] = tuple(dict.fromkeys(self.notify))
        if "nightly" in given:
            window = self.nightly
            changes |= {
                "window_start": None if window is None else window.start,
                "window_end": None if window is None else window.end,
            }
        if self.nightly is not None and self.cron is None:
            changes["cron"] = None
        if self.cron is not None and self.nightly is None:
            changes |= {"window_start": None, "window_end": None}
        return dataclasses.replace(spec, **changes)


def read_schedule(fields: Any) -> ScheduleSpec:
    """Return what a posted schedule asks for. Raises Refusal or InvalidRequest, naming the field."""
    try:
        return ScheduleIn.model_validate(_mapping(fields)).to_spec()
    except ValidationError as error:
        raise WrongFields(complaints_of(error, ScheduleIn, what="a schedule")) from error


def read_change(fields: Any, spec: ScheduleSpec) -> ScheduleSpec:
    """Return a spec as a posted change makes it. Raises Refusal or InvalidRequest, naming the field."""
    try:
        change = ScheduleChangeIn.model_validate(_mapping(fields))
    except ValidationError as error:
        raise WrongFields(complaints_of(error, ScheduleChangeIn, what="a schedule")) from error
    return change.applied_to(spec)


def check_timing(spec: ScheduleSpec, operator: Operator) -> None:
    """Check when a schedule is due and whom it tells; its job is checked as other jobs are.

    Raises InvalidRequest, naming what to correct.
    """
    rule_of(spec)
    unknown = next((target for target in spec.notify if target not in operator.targets), None)
    if unknown is not None:
        names = ", ".join(sorted(operator.targets)) or "none"
        raise InvalidRequest(
            "notify", unknown, f"name targets of the operator's file; WATTFRONT_OPERATOR_FILE has {names}"
        )


def _mapping(fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise Refusal('a schedule is an object, as in {"name": "nightly", "job": {...}, "cron": "0 2 * * *", ...}')
    return fields
