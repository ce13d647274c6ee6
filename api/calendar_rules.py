"""When a schedule is due: cron lines and nightly windows in a time zone, right on the days when clocks change. Pure.

Local dates are walked one by one, and each local time is turned into an instant by itself:

- a time that the clocks jump over stands for the first instant after the jump (02:30 in Berlin on the last Sunday of
  March is 03:00), so that the day has its run;
- a time that comes twice stands for its first occurrence, so that the day has one run;
- a cron line whose hour field begins with `*` goes by the time that passes instead: it leaves out what the clocks jump
  over and runs twice where an hour comes twice, as Debian's cron does.

Knows nothing of what runs, nor of the machine's own zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from db.schedule import Due, ScheduleSpec
from tuner.errors import InvalidRequest

#: How late a run of a cron line may start when its schedule does not say.
CRON_GRACE_S = 3600.0
#: Due times of one local day at most: a job takes longer than a quarter of an hour.
MAX_PER_DAY = 96
#: A shorter window holds no job.
MIN_WINDOW_MINUTES = 10
#: For 29 February, from 2096 to 2104.
_LONGEST_WAIT = timedelta(days=366 * 9)
_ONE_DAY = timedelta(days=1)
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
#: Files beside the zones that stand for whatever a machine was set to, or for nothing.
_NO_ZONES = ("localtime", "posixrules", "Factory")
#: Folders of copies that some machines have, and a schedule must mean the same on all: `posix/` of every zone, `right/`
#: of zones that count leap seconds, 27 s off everybody's clock.
_NO_FOLDERS = ("posix", "right")


class Rule(Protocol):
    """Says when a schedule is due."""

    @property
    def zone(self) -> tzinfo:
        """The zone that its local times are of."""

    def due_on(self, day: date) -> list[Due]:
        """Return what is due on a local day, in order; nothing on a day that the zone leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyRule:
    """Once in every night, at the start of a window; one across midnight belongs to the evening's date."""

    zone: tzinfo
    start: time
    end: time
    grace_s: float | None

    def due_on(self, day: date) -> list[Due]:
        """Return the night that begins on a local day."""
        nominal = _length(self.start, self.end)
        due_at = instant_of(datetime.combine(day, self.start), self.zone)
        ends_at = instant_of(datetime.combine(day, self.start) + nominal, self.zone)
        if due_at is None:
            return []
        if ends_at is None or ends_at <= due_at:  # the clocks jumped over all of it: it keeps its length
            ends_at = due_at + nominal
        closes_at = ends_at if self.grace_s is None else min(ends_at, due_at + timedelta(seconds=self.grace_s))
        return [Due(night=day.isoformat(), due_at=due_at, closes_at=closes_at, ends_at=ends_at)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CronRule:
    """At the times of a cron line of five fields."""

    zone: tzinfo
    line: CronSim
    is_hourly: bool
    grace_s: float | None

    def due_on(self, day: date) -> list[Due]:
        """Return every due time of a local day; two times that stand for one instant are one."""
        if day.month not in self.line.months or not self.line.match_day(day):
            return []
        grace = timedelta(seconds=CRON_GRACE_S if self.grace_s is None else self.grace_s)
        due = []
        for instant in sorted(set(self._instants(day))):
            night = instant.astimezone(self.zone).isoformat(timespec="minutes")
            due.append(Due(night=night, due_at=instant, closes_at=instant + grace))
        return due

    def _instants(self, day: date) -> Iterator[datetime]:
        for hour in self.line.hours:
            for minute in self.line.minutes:
                local = datetime.combine(day, time(hour, minute))
                if self.is_hourly:
                    yield from _occurrences(local, self.zone)
                elif (instant := instant_of(local, self.zone)) is not None:
                    yield instant


def rule_of(spec: ScheduleSpec) -> Rule:
    """Return when a schedule is due. Raises InvalidRequest naming the field that cannot be read."""
    zone = zone_of(spec.timezone)
    if spec.cron is not None:
        if spec.window_start is not None or spec.window_end is not None:
            raise InvalidRequest("cron", spec.cron, "give either cron or nightly, not both")
        return _cron_rule(spec.cron, zone, spec.grace_s)
    if spec.window_start is None or spec.window_end is None:
        raise InvalidRequest("nightly", None, 'give nightly, as {"start": "01:00", "end": "05:00"}, or cron')
    start, end = _time("nightly.start", spec.window_start), _time("nightly.end", spec.window_end)
    if _length(start, end) < timedelta(minutes=MIN_WINDOW_MINUTES):
        raise InvalidRequest("nightly.end", spec.window_end, f"give a window of {MIN_WINDOW_MINUTES} minutes or more")
    return NightlyRule(zone=zone, start=start, end=end, grace_s=spec.grace_s)


def due_after(rule: Rule, after: datetime) -> Iterator[Due]:
    """Yield what is due later than an instant, in order and without end; nothing for a rule that is never due."""
    day = after.astimezone(rule.zone).date() - _ONE_DAY  # a time that is jumped over may stand for one on the next day
    last_found = day
    while day - last_found < _LONGEST_WAIT:
        for due in rule.due_on(day):
            if due.due_at > after:
                last_found = day
                yield due
        day += _ONE_DAY


def next_due(rule: Rule, after: datetime) -> Due | None:
    """Return the first due time later than an instant; None for a rule that is never due."""
    return next(due_after(rule, after), None)


def instant_of(local: datetime, zone: tzinfo) -> datetime | None:
    """Return the instant that a naive local time stands for, in UTC; None on a date that the zone left out.

    The first of two occurrences; the first instant after it where clocks jump over the time.
    """
    instant = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == local:
        return instant
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if instant - before >= _ONE_DAY:  # as Samoa's 30 December 2011
        return None
    return _first_after_jump(before, instant, zone)


def zone_of(name: str) -> ZoneInfo:
    """Return a zone by its IANA name. Raises InvalidRequest."""
    remedy = "give an IANA name, as Europe/Berlin or UTC"
    if _ZONE_NAME.fullmatch(name) is None or name in _NO_ZONES or name.partition("/")[0] in _NO_FOLDERS:
        raise InvalidRequest("timezone", name, remedy)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder, as Europe
        raise InvalidRequest("timezone", name, remedy) from error


def _first_after_jump(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """Return the instant of the only change of offset between two instants, to the second."""
    offset = before.astimezone(zone).utcoffset()
    low, high = 0, int((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        is_before = (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == offset
        low, high = (middle, high) if is_before else (low, middle)
    return before + timedelta(seconds=high)


def _occurrences(local: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Yield every instant at which clocks show a naive local time: none, one or two."""
    for fold in (0, 1):
        instant = local.replace(tzinfo=zone, fold=fold).astimezone(UTC)
        if instant.astimezone(zone).replace(tzinfo=None) == local:
            yield instant


def _cron_rule(text: str, zone: tzinfo, grace_s: float | None) -> CronRule:
    fields = text.split()
    if len(fields) != 5:
        raise InvalidRequest("cron", text, "give five fields: minute, hour, day of month, month, day of week")
    try:
        line = CronSim(text, datetime(2000, 1, 1))
    except CronSimError as error:
        words = str(error).removeprefix("Bad ").lower()
        raise InvalidRequest("cron", text, f"correct the {words}, as in 0 2 * * *") from error
    per_day = len(line.hours) * len(line.minutes)
    if per_day > MAX_PER_DAY:
        raise InvalidRequest("cron", text, f"it is due {per_day} times a day; give at most {MAX_PER_DAY}")
    rule = CronRule(zone=zone, line=line, is_hourly=fields[1].startswith("*"), grace_s=grace_s)
    if next_due(rule, datetime(2000, 1, 1, tzinfo=UTC)) is None:
        raise InvalidRequest("cron", text, "no date has that day and month; correct them")
    return rule


def _time(field: str, text: str) -> time:
    match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", text, flags=re.ASCII)
    if match is None:
        raise InvalidRequest(field, text, "give HH:MM from 00:00 to 23:59")
    return time(int(match[1]), int(match[2]))


def _length(start: time, end: time) -> timedelta:
    """Return how long a window is by the clock on the wall; one that ends before it starts crosses midnight."""
    minutes = 60 * (end.hour - start.hour) + end.minute - start.minute
    return timedelta(minutes=minutes % (24 * 60))
