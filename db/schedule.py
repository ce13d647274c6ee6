"""A stored schedule, its nights, and what a night asks for. Knows nothing of SQL, calendars or clocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from db.job import JobState
from db.service import NightState, Overlap, ScheduleState
from tuner.request import ReuseRule, TuneRequest

#: Of what a retune takes over when its job does not say: next to nothing, so that every point is measured anew. An age
#: of 0 would take over what the previous job has, however old.
FRESH_HOURS = 1e-6
#: Of a night that is found when its window is all but over.
MIN_MINUTES = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """What somebody asks to be repeated, and when."""

    #: Unique among schedules.
    name: str
    request: TuneRequest
    #: Either a cron line of five fields, or a nightly window.
    cron: str | None = None
    #: HH:MM, local.
    window_start: str | None = None
    window_end: str | None = None
    #: IANA name.
    timezone: str
    overlap: Overlap = Overlap.SKIP
    #: How late a run may still start; None: until the window's end, or the calendar's usual time for a cron line.
    grace_s: float | None = None
    #: Nights that keep every measurement; older ones keep their fronts. None keeps all.
    keep_nights: int | None = None
    #: Names of targets that the operator configured.
    notify: tuple[str, ...] = ()
    #: Of its jobs; higher ones are taken first.
    priority: int = 0

    @property
    def timing(self) -> tuple[object, ...]:
        """What decides when it is due."""
        return (self.cron, self.window_start, self.window_end, self.timezone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job that repeats, as it is stored."""

    #: 32 hexadecimal digits.
    id: str
    spec: ScheduleSpec
    state: ScheduleState
    created_by: str | None
    created_at: datetime
    changed_at: datetime
    #: Counts changes.
    version: int
    #: Nothing that was due until then is looked at again.
    decided_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A time at which a schedule is to run."""

    #: What makes it run once: the local date of a night, the local minute with its offset of a cron line.
    night: str
    due_at: datetime
    #: The last moment at which a late run may start.
    closes_at: datetime
    #: When its job has to be over; None where nothing says so.
    ends_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What became of a due time."""

    id: int
    schedule_id: str
    night: str
    due_at: datetime
    decided_at: datetime
    state: NightState
    #: Why it did not run, or why its job was ended; None for a run that took its course.
    reason: str | None
    #: The job that it started, or that was in its way; None without one, and once that is deleted.
    job_id: str | None
    job_state: JobState | None
    #: What moved since the night before; None until its job ended.
    drift: Mapping[str, Any] | None


def night_request(request: TuneRequest, *, now: datetime, ends_at: datetime | None, is_retune: bool) -> TuneRequest:
    """Return what a night asks for: the schedule's request, over when its window is.

    A retune begins at the points of the last front and measures them anew, unless the request itself says how old
    measurements may be.
    """
    budget = request.budget
    if ends_at is not None:
        left = max((ends_at - now).total_seconds() / 60, MIN_MINUTES)
        minutes = left if budget.minutes is None else min(budget.minutes, left)
        budget = dataclasses.replace(budget, minutes=minutes)
    reuse = request.reuse
    if is_retune and not reuse.max_age_hours:
        reuse = ReuseRule(max_age_hours=FRESH_HOURS)
    return dataclasses.replace(request, budget=budget, reuse=reuse)
