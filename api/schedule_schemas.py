"""Schedules and their nights as JSON. Field names are public; what they mean stands in docs/glossary.md."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from api.calendar_rules import Rule, next_due, rule_of
from api.drift_schemas import DriftOut
from db.schedule import Due, Night, Schedule
from db.service import ScheduleState
from tuner.errors import InvalidRequest


class NightlyOut(BaseModel):
    """A window of every night, local."""

    start: str
    end: str


class DueOut(BaseModel):
    """A time at which a schedule is to run."""

    night: str
    due_at: datetime
    #: The same in the schedule's zone, with its offset.
    due_local: str
    #: The last moment at which a late run may start.
    closes_at: datetime
    #: When its job has to be over; null where nothing says so.
    ends_at: datetime | None


class DuesOut(BaseModel):
    """What is due next."""

    timezone: str
    items: list[DueOut]


class ScheduleOut(BaseModel):
    """A job that repeats."""

    id: str
    name: str
    state: str
    model: str
    engine: str
    device: str
    latency_metric: str
    sla: dict[str, float]
    knobs: dict[str, list[int | float | str]]
    budget_trials: int
    cron: str | None
    nightly: NightlyOut | None
    timezone: str
    overlap: str
    grace_s: float | None
    keep_nights: int | None
    notify: list[str]
    priority: int
    created_by: str | None
    created_at: datetime
    changed_at: datetime
    #: For `If-Match` of a change.
    version: int
    #: Null while it is paused, and where its zone is not known.
    next_due: DueOut | None


class SchedulesOut(BaseModel):
    """A page of schedules, newest first."""

    items: list[ScheduleOut]
    #: Give it as `before` for the next page; null on the last one.
    next: str | None


class NightOut(BaseModel):
    """What became of a due time."""

    id: int
    night: str
    due_at: datetime
    decided_at: datetime
    state: str
    reason: str | None
    #: The job that it started, or that was in its way.
    job: str | None
    job_state: str | None
    #: What moved since the night before; null until its job ended.
    drift: DriftOut | None


class NightsOut(BaseModel):
    """A page of a schedule's nights, newest first."""

    items: list[NightOut]
    #: Give it as `before` for the next page; null on the last one.
    next: int | None


def schedule_out(schedule: Schedule, now: datetime) -> ScheduleOut:
    """Return a schedule's public form."""
    spec = schedule.spec
    window = None
    if spec.window_start is not None and spec.window_end is not None:
        window = NightlyOut(start=spec.window_start, end=spec.window_end)
    return ScheduleOut(
        id=schedule.id,
        name=spec.name,
        state=schedule.state.value,
        model=spec.request.model,
        engine=spec.request.engine,
        device=spec.request.device,
        latency_metric=spec.request.latency_metric,
        sla={limit.metric: limit.bound_ms for limit in spec.request.sla},
        knobs={knob.name: list(knob.values) for knob in spec.request.knobs},
        budget_trials=spec.request.budget.trials,
        cron=spec.cron,
        nightly=window,
        timezone=spec.timezone,
        overlap=spec.overlap.value,
        grace_s=spec.grace_s,
        keep_nights=spec.keep_nights,
        notify=list(spec.notify),
        priority=spec.priority,
        created_by=schedule.created_by,
        created_at=schedule.created_at,
        changed_at=schedule.changed_at,
        version=schedule.version,
        next_due=_next_due_out(schedule, now),
    )


def _next_due_out(schedule: Schedule, now: datetime) -> DueOut | None:
    if schedule.state is ScheduleState.PAUSED:
        return None
    try:
        rule = rule_of(schedule.spec)
    except InvalidRequest:  # made where the zone is known: it can be shown and deleted here, and never runs here
        return None
    due = next_due(rule, max(now, schedule.decided_until))
    return None if due is None else due_out(due, rule)


def due_out(due: Due, rule: Rule) -> DueOut:
    """Return a due time's public form."""
    return DueOut(
        night=due.night,
        due_at=due.due_at,
        due_local=due.due_at.astimezone(rule.zone).isoformat(timespec="minutes"),
        closes_at=due.closes_at,
        ends_at=due.ends_at,
    )


def night_out(night: Night) -> NightOut:
    """Return a night's public form."""
    return NightOut(
        id=night.id,
        night=night.night,
        due_at=night.due_at,
        decided_at=night.decided_at,
        state=night.state.value,
        reason=night.reason,
        job=night.job_id,
        job_state=None if night.job_state is None else night.job_state.value,
        drift=None if night.drift is None else DriftOut.model_validate(night.drift),
    )
