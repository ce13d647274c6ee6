"""One look at every schedule: decide what is due, end what is over its time, tell what moved, announce it.

Everything here can be repeated, and be done by several servers at once: what was decided, told or announced is in the
database, and is done once. Knows nothing of when it is called; the time is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import takewhile
from typing import Any

import structlog

from api.calendar_rules import due_after, next_due, rule_of
from api.drift_report import NightResult, drift_between
from api.night_news import news_of
from api.stores import Stores
from db.errors import RecordUnreadable
from db.job import Job, JobState
from db.nights import MANUAL
from db.schedule import Due, Night, Schedule
from db.service import Overlap, ScheduleState
from tuner.errors import InvalidRequest

log = structlog.get_logger(__name__)

#: Due times that are recorded one by one when nobody was there for long; those before are told of with the first.
MAX_RECORDED = 100
#: What a running job has after its window: its budget ends it there, after the running trial.
OVERRUN = timedelta(minutes=15)
#: How far back news is looked for that a server which died may not have announced.
NEWS_OF = timedelta(days=1)
_LONGEST_WINDOW = timedelta(days=1)

Announce = Callable[[str, str, dict[str, Any]], object]


class NightKeeper:
    """Keeps the nights of one database."""

    def __init__(self, stores: Stores, now: Callable[[], datetime], announce: Announce | None = None) -> None:
        """Announce by `announce(target, key, body)`, which takes the same key of a target once; None tells nobody."""
        self._stores = stores
        self._now = now
        self._announce = announce
        self._announced: set[tuple[str, str]] = set()

    def keep(self) -> datetime | None:
        """Do everything that is due, and return when something is due next. Raises StoreError."""
        schedules = {schedule.id: schedule for schedule in self._stores.schedules.all()}
        for schedule in schedules.values():
            self.decide(schedule)
        self._end_overdue(schedules)
        self._report(schedules)
        self._tell_news(schedules.values())
        dues = (_next_due(schedule, self._now()) for schedule in schedules.values())
        return min((due for due in dues if due is not None), default=None)

    def decide(self, schedule: Schedule) -> None:
        """Decide every time of a schedule that has come: of those still open the last one runs."""
        now = self._now()
        try:
            after = due_after(rule_of(schedule.spec), schedule.decided_until)
        except InvalidRequest as error:  # this machine does not know the zone
            log.error("schedule_unusable", schedule=schedule.spec.name, error=str(error))
            return
        come = list(takewhile(lambda due: due.due_at <= now, after))
        running = next((due for due in reversed(come) if due.closes_at >= now), None)
        for due, num_before in _folded(come):
            reason = None if due is running else _why_missed(due, running, now=now)
            if reason is not None and num_before:
                reason = f"{reason}; so were {num_before} due times before it, from {come[0].night} on"
            night = self._stores.nights.decide(schedule, due, now=now, missed_because=reason)
            if night is not None:
                log.info("night_decided", schedule=schedule.spec.name, night=night.night, state=night.state.value,
                         reason=night.reason, job=night.job_id)  # fmt: skip

    def _end_overdue(self, schedules: Mapping[str, Schedule]) -> None:
        """Ask for the end of jobs whose window is over, and of those that a later night replaces."""
        open_nights = self._stores.nights.open()
        newest = {night.schedule_id: night.id for night in open_nights}
        for night in open_nights:
            schedule = schedules.get(night.schedule_id)
            if schedule is None or night.job_id is None:
                continue
            words = self._why_over(schedule, night)
            if words is None and schedule.spec.overlap is Overlap.REPLACE and night.id != newest[schedule.id]:
                words = "a later night took its place"
            if words is not None:
                self._stores.nights.note(night.id, words)
                self._stores.jobs.request_cancel(night.job_id)

    def _why_over(self, schedule: Schedule, night: Night) -> str | None:
        """Return in words why a night's job has to end by now; None while it need not."""
        if schedule.spec.window_start is None or night.night.startswith(MANUAL):
            return None
        try:
            found = rule_of(schedule.spec).due_on(date.fromisoformat(night.night))
        except (InvalidRequest, ValueError):  # the zone is unknown here, or the night is of a cron line it once had
            return None
        # Of a night that began under other times nobody knows its window any more; but none is longer than a day.
        own = next((due for due in found if due.due_at == night.due_at), None)
        ends_at = night.due_at + _LONGEST_WINDOW if own is None or own.ends_at is None else own.ends_at
        if night.job_state is JobState.QUEUED and self._now() >= ends_at:
            return f"no worker took its job until its window ended ({_shown(ends_at, schedule)})"
        if self._now() >= ends_at + OVERRUN:
            return f"its job ran on after its window ended ({_shown(ends_at, schedule)})"
        return None

    def _report(self, schedules: Mapping[str, Schedule]) -> None:
        """Store what moved in nights whose jobs have ended, and forget the measurements of old nights."""
        for night in self._stores.nights.to_report():
            schedule = schedules.get(night.schedule_id)
            if schedule is None or night.job_id is None:
                continue
            self._stores.nights.set_drift(night.id, self._drift_of(night.job_id))
            if schedule.spec.keep_nights is not None:
                self._stores.nights.prune(schedule.id, schedule.spec.keep_nights)
            for told in self._stores.nights.list(schedule.id, limit=1, before=night.id + 1):
                self._tell(schedule, told)

    def _drift_of(self, job_id: str) -> dict[str, Any]:
        job = self._stores.jobs.get(job_id)
        try:
            before = None if job.previous_job_id is None else self._result(self._stores.jobs.get(job.previous_job_id))
            return drift_between(before, self._result(job)).model_dump(mode="json")
        except RecordUnreadable as error:  # of another version: it will not become readable by asking again
            words = f"what moved cannot be told: {error}"
            return {
                "compared_with": job.previous_job_id,
                "is_simulated": job.request.device.startswith("simulated:"),
                "latency_metric": job.request.latency_metric,
                "has_moved": False,
                "sentences": [words],
            }

    def _result(self, job: Job) -> NightResult:
        return NightResult(
            job_id=job.id,
            request=job.request,
            front=self._stores.front(job),
            trials=self._stores.trials.history(job.id),
            fingerprints=self._stores.nights.fingerprints(job.id),
        )

    def _tell_news(self, schedules: Iterable[Schedule]) -> None:
        for schedule in schedules:
            if schedule.spec.notify and self._announce is not None:
                for night in self._stores.nights.since(schedule.id, self._now() - NEWS_OF):
                    self._tell(schedule, night)

    def _tell(self, schedule: Schedule, night: Night) -> None:
        """Announce a night's news to the schedule's targets."""
        if self._announce is None:
            return
        for key, body in news_of(schedule, night):
            for target in schedule.spec.notify:
                if (target, key) not in self._announced:
                    self._announce(target, key, body)
                    self._announced.add((target, key))


def _folded(come: Sequence[Due]) -> Iterator[tuple[Due, int]]:
    """Yield due times to be recorded, each with the number of those before it that are not."""
    first = max(len(come) - MAX_RECORDED, 0)
    for i, due in enumerate(come[first:]):
        yield due, first if i == 0 else 0


def _why_missed(due: Due, running: Due | None, *, now: datetime) -> str:
    if due.closes_at >= now and running is not None:
        return f"it was found late together with {running.night}, which runs for both"
    late = str(now - due.due_at).partition(".")[0]
    return f"no service was there in time: it was found {late} after it was due"


def _next_due(schedule: Schedule, now: datetime) -> datetime | None:
    if schedule.state is ScheduleState.PAUSED:  # its nights are recorded as skipped by the look that comes anyway
        return None
    try:
        due = next_due(rule_of(schedule.spec), max(schedule.decided_until, now))
    except InvalidRequest:
        return None
    return None if due is None else due.due_at


def _shown(moment: datetime, schedule: Schedule) -> str:
    return moment.astimezone(rule_of(schedule.spec).zone).isoformat(timespec="minutes")
