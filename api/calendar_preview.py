"""What is due next, and what becomes of a run when the clocks change: by the rules that nights go by. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from api.calendar_rules import NightlyRule, Rule, due_after, rule_of
from api.calendar_schemas import CalendarOut, ClockChangeOut
from api.schedule_schemas import due_out
from db.schedule import Due, ScheduleSpec

#: Clocks change twice a year where they do.
NUM_CHANGES = 2
_LOOKED_AT = timedelta(days=400)
_ONE_DAY = timedelta(days=1)


def calendar(spec: ScheduleSpec, *, after: datetime, count: int) -> CalendarOut:
    """Return what is due next after an instant. Raises InvalidRequest naming the field that cannot be read."""
    rule = rule_of(spec)
    return CalendarOut(
        timezone=spec.timezone,
        items=[due_out(due, rule) for due in islice(due_after(rule, after), count)],
        clock_changes=[_change_out(at, rule) for at in islice(clock_changes(rule, after), NUM_CHANGES)],
    )


def clock_changes(rule: Rule, after: datetime) -> Iterator[datetime]:
    """Yield the instants, to the second, at which the zone's offset changes within the next year and a month."""
    at = after.replace(microsecond=0)
    while at - after < _LOOKED_AT:
        low, high = at, at + _ONE_DAY
        if _offset(low, rule) != _offset(high, rule):
            while high - low > timedelta(seconds=1):
                middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
                low, high = (middle, high) if _offset(middle, rule) == _offset(low, rule) else (low, middle)
            yield high
        at += _ONE_DAY


def _change_out(at: datetime, rule: Rule) -> ClockChangeOut:
    before, later = at - timedelta(seconds=1), at
    due = _due_about(at, rule)
    return ClockChangeOut(
        changes_at=at.astimezone(UTC),
        offset_before=_offset_words(before, rule),
        offset_after=_offset_words(later, rule),
        due=None if due is None else due_out(due, rule),
        words=_words(at, due, rule),
    )


def _due_about(at: datetime, rule: Rule) -> Due | None:
    """Return the run that is under way at a change or begins in a doubled hour, or the next within a day."""
    near = [due for due in islice(due_after(rule, at - _ONE_DAY), 200) if due.due_at < at + _ONE_DAY]
    touched = [due for due in near if due.due_at < at < (due.ends_at or due.due_at + _repeated(at, rule))]
    return next(iter(touched), next((due for due in near if due.due_at >= at), None))


def _repeated(at: datetime, rule: Rule) -> timedelta:
    """Return how much local time comes twice at a change: what clocks go back by."""
    return max(timedelta(0), _moved(at, rule) * -1) + timedelta(seconds=1)


def _words(at: datetime, due: Due | None, rule: Rule) -> str:
    """Say which way the clocks go, and what becomes of the run."""
    from_clock = (at - timedelta(seconds=1)).astimezone(rule.zone) + timedelta(seconds=1)
    way = "forward" if _moved(at, rule) > timedelta(0) else "back"
    clocks = f"Clocks go {way} from {from_clock:%H:%M} to {at.astimezone(rule.zone):%H:%M} on {from_clock:%Y-%m-%d}"
    if due is None:
        return f"{clocks}; nothing is due about then."
    local = due.due_at.astimezone(rule.zone)
    run = f"{clocks}; the run {'then' if due.due_at <= at else 'after it'} starts at {local:%H:%M} on {local:%Y-%m-%d}"
    if due.due_at < at <= due.due_at + _repeated(at, rule):
        run += " for the first time"
    if isinstance(rule, NightlyRule) and local.time() != rule.start:
        run += f" (there is no {rule.start:%H:%M} on that day)"
    if due.ends_at is not None and due.due_at <= at < due.ends_at:
        run += f" and has {(due.ends_at - due.due_at).total_seconds() / 3600:g} h"
    return f"{run}."


def _moved(at: datetime, rule: Rule) -> timedelta:
    """Return what clocks are moved by at a change."""
    return _offset(at, rule) - _offset(at - timedelta(seconds=1), rule)


def _offset(at: datetime, rule: Rule) -> timedelta:
    return at.astimezone(rule.zone).utcoffset() or timedelta(0)


def _offset_words(at: datetime, rule: Rule) -> str:
    return at.astimezone(rule.zone).isoformat(timespec="minutes")[16:]
