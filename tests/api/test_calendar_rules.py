"""When schedules are due: cron lines and nightly windows over clock changes (BUG-22)."""

from __future__ import annotations

import time
import zoneinfo
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.calendar_rules import MAX_PER_DAY, Rule, due_after, instant_of, next_due, rule_of, zone_of
from db.schedule import Due, ScheduleSpec
from tests.db.factories import make_request
from tuner.errors import InvalidRequest

ZONES = (
    "Europe/Berlin", "Europe/London", "America/Los_Angeles", "America/New_York", "Australia/Sydney",
    "Australia/Lord_Howe", "America/Nuuk",
)  # fmt: skip


def spec(**changes: Any) -> ScheduleSpec:
    fields: dict[str, Any] = {"name": "nightly", "request": make_request(), "timezone": "Europe/Berlin"} | changes
    return ScheduleSpec(**fields)


def rule(cron: str | None = None, window: str | None = None, **changes: Any) -> Rule:
    start, _, end = (window or "").partition("-")
    return rule_of(spec(cron=cron, window_start=start or None, window_end=end or None, **changes))


def due_between(found: Rule, first: datetime, last: datetime) -> list[Due]:
    """Return what is due from one naive local time on and before another."""
    begin, end = instant_of(first, found.zone), instant_of(last, found.zone)
    assert begin is not None
    assert end is not None
    return list(takewhile(lambda due: due.due_at < end, due_after(found, begin - timedelta(seconds=1))))


def local(due: Due, found: Rule) -> str:
    return due.due_at.astimezone(found.zone).isoformat(timespec="minutes")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("clock", ["00:00", "00:30", "01:00", "01:30", "02:00", "02:30", "23:30"])
def test_a_daily_line_is_due_once_in_every_local_day(zone: str, clock: str) -> None:
    """BUG-22: through the whole of 2026 a daily line is due once for each of the 365 local dates."""
    hour, minute = map(int, clock.split(":"))
    found = rule(f"{minute} {hour} * * *", timezone=zone)
    dues = due_between(found, datetime(2026, 1, 1), datetime(2027, 1, 1))
    assert len(dues) == 365
    assert len({due.night for due in dues}) == 365
    shown = Counter(due.due_at.astimezone(found.zone).strftime("%H:%M") for due in dues)
    assert shown[clock] >= 364  # but where clocks jump over it


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("window", ["00:00-05:00", "01:00-05:00", "02:00-03:00", "02:15-02:45", "23:00-04:00"])
def test_every_night_has_one_window_that_lasts(zone: str, window: str) -> None:
    """BUG-22: each date of 2026 has one night, which ends after it begins and before the next one begins."""
    found = rule(window=window, timezone=zone)
    dues = due_between(found, datetime(2026, 1, 1), datetime(2027, 1, 1))
    assert [due.night for due in dues] == [str(date(2026, 1, 1) + timedelta(days=i)) for i in range(365)]
    for due, after in pairwise(dues):
        assert due.ends_at is not None
        assert due.due_at < due.closes_at <= due.ends_at < after.due_at
        assert due.ends_at - due.due_at >= timedelta(minutes=15)


@pytest.mark.parametrize(
    ("zone", "cron", "day", "expected"),
    [
        ("Europe/Berlin", "30 2 * * *", date(2026, 3, 29), ["2026-03-29T03:00+02:00"]),
        ("Europe/Berlin", "30 2 * * *", date(2026, 10, 25), ["2026-10-25T02:30+02:00"]),
        ("America/New_York", "30 2 * * *", date(2026, 3, 8), ["2026-03-08T03:00-04:00"]),
        ("America/New_York", "30 1 * * *", date(2026, 11, 1), ["2026-11-01T01:30-04:00"]),
        ("Australia/Sydney", "0 2 * * *", date(2026, 10, 4), ["2026-10-04T03:00+11:00"]),
        ("Australia/Lord_Howe", "15 2 * * *", date(2026, 10, 4), ["2026-10-04T02:30+11:00"]),
        ("Australia/Lord_Howe", "45 1 * * *", date(2026, 4, 5), ["2026-04-05T01:45+11:00"]),
        ("America/Nuuk", "30 23 * * *", date(2026, 3, 28), ["2026-03-29T00:00-01:00"]),
        ("Pacific/Apia", "0 2 * * *", date(2011, 12, 30), []),
        ("Europe/Berlin", "*/20 2 * * *", date(2026, 3, 29), ["2026-03-29T03:00+02:00"]),
    ],
)
def test_a_time_that_is_not_there_or_comes_twice(zone: str, cron: str, day: date, expected: list[str]) -> None:
    """BUG-22: what clocks jump over is due right after the jump, what comes twice at its first occurrence."""
    found = rule(cron, timezone=zone)
    assert expected == [local(due, found) for due in found.due_on(day)]
    assert expected == [due.night for due in found.due_on(day)]


def test_every_hour_goes_by_the_time_that_passes() -> None:
    """A line for every hour leaves out the hour that is not there and has both of the one that comes twice."""
    found = rule("0 * * * *")
    assert len(found.due_on(date(2026, 3, 29))) == 23
    autumn = found.due_on(date(2026, 10, 25))
    assert len(autumn) == len({due.night for due in autumn}) == 25
    assert {after.due_at - due.due_at for due, after in pairwise(autumn)} == {timedelta(hours=1)}


def test_a_window_across_midnight_belongs_to_the_evening() -> None:
    """The night of the 28th begins at 23:00 that day and ends at 04:00 the next, an hour earlier after a jump."""
    found = rule(window="23:00-04:00")
    (due,) = found.due_on(date(2026, 3, 28))
    assert due == Due(
        night="2026-03-28",
        due_at=datetime(2026, 3, 28, 22, 0, tzinfo=UTC),
        closes_at=datetime(2026, 3, 29, 2, 0, tzinfo=UTC),
        ends_at=datetime(2026, 3, 29, 2, 0, tzinfo=UTC),
    )


def test_a_window_that_is_jumped_over_keeps_its_length() -> None:
    """02:00 to 03:00 on the short night is the hour after the jump."""
    (due,) = rule(window="02:00-03:00").due_on(date(2026, 3, 29))
    assert (due.due_at, due.ends_at) == (
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
        datetime(2026, 3, 29, 2, 0, tzinfo=UTC),
    )


def test_grace_ends_a_late_start_and_no_run() -> None:
    """A late run may start for as long as the grace says, within the window; the run may take all of it."""
    (due,) = rule(window="01:00-05:00", grace_s=1800.0).due_on(date(2026, 1, 5))
    assert (due.closes_at - due.due_at, due.ends_at) == (timedelta(minutes=30), due.due_at + timedelta(hours=4))
    (due,) = rule("0 2 * * *", grace_s=600.0).due_on(date(2026, 1, 5))
    assert (due.closes_at - due.due_at, due.ends_at) == (timedelta(minutes=10), None)


def test_a_day_of_month_or_of_week_as_cron_means_it() -> None:
    """Where a line names both, either is enough; Sunday is 0 and 7; L is the last day of a month."""
    both = rule("0 2 13 * 5", timezone="UTC")
    assert len(due_between(both, datetime(2026, 2, 1), datetime(2026, 4, 1))) == 8  # every Friday; both 13ths are one
    for text in ("0 2 * * 0", "0 2 * * 7", "0 2 * * SUN"):
        first = next_due(rule(text, timezone="UTC"), datetime(2026, 1, 1, tzinfo=UTC))
        assert first is not None
        assert first.due_at.date() == date(2026, 1, 4)
    last = [due.night[:10] for due in islice(due_after(rule("0 2 L 2 *"), datetime(2026, 1, 1, tzinfo=UTC)), 3)]
    assert last == ["2026-02-28", "2027-02-28", "2028-02-29"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cron": "0 2 * *"}, "cron is '0 2 * *': give five fields"),
        ({"cron": "0 0 2 * * *"}, "cron is '0 0 2 * * *': give five fields"),
        ({"cron": "@daily"}, "cron is '@daily': give five fields"),
        ({"cron": "60 2 * * *"}, "cron is '60 2 * * *': correct the minute"),
        ({"cron": "0 24 * * *"}, "cron is '0 24 * * *': correct the hour"),
        ({"cron": "0 2 30 2 *"}, "cron is '0 2 30 2 *': correct the day-of-month"),
        ({"cron": "0 2 * * 8"}, "cron is '0 2 * * 8': correct the day-of-week"),
        ({"cron": "* * * * *"}, f"cron is '* * * * *': it is due 1440 times a day; give at most {MAX_PER_DAY}"),
        ({"cron": "0 2 * * *", "window_start": "01:00"}, "cron is '0 2 * * *': give either cron or nightly, not both"),
        ({}, "nightly is None: give nightly, as"),
        ({"window_start": "1:00", "window_end": "05:00"}, "nightly.start is '1:00': give HH:MM"),
        ({"window_start": "01:00", "window_end": "24:00"}, "nightly.end is '24:00': give HH:MM"),
        ({"window_start": "01:00", "window_end": "01:00"}, "nightly.end is '01:00': give a window of 10 minutes"),
        ({"cron": "0 2 * * *", "timezone": "Berlin"}, "timezone is 'Berlin': give an IANA name"),
        ({"cron": "0 2 * * *", "timezone": "Europe"}, "timezone is 'Europe': give an IANA name"),
        ({"cron": "0 2 * * *", "timezone": "localtime"}, "timezone is 'localtime': give an IANA name"),
        ({"cron": "0 2 * * *", "timezone": "right/Europe/Berlin"}, "timezone is 'right/Europe/Berlin': give an IANA"),
        ({"cron": "0 2 * * *", "timezone": "posix/Europe/Berlin"}, "timezone is 'posix/Europe/Berlin': give an IANA"),
        ({"cron": "0 2 * * *", "timezone": "../../etc/passwd"}, "timezone is '../../etc/passwd': give an IANA name"),
    ],
)
def test_what_is_never_due_is_refused(changes: dict[str, Any], words: str) -> None:
    """Lines, windows and zones that mean nothing are refused by field, value and remedy."""
    with pytest.raises(InvalidRequest) as error:
        rule_of(spec(**changes))
    assert str(error.value).startswith(words)


@given(
    st.sampled_from(ZONES),
    st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2030, 1, 1)),
)
def test_local_times_keep_their_order(zone: str, moment: datetime) -> None:
    """A later local time never stands for an earlier instant, unless both lie in an hour that comes twice."""
    found = zone_of(zone)
    first, second = (instant_of(one, found) for one in (moment, moment + timedelta(hours=3)))
    assert first is not None
    assert second is not None
    assert first < second


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], None]]:
    """Set this process's zone, or unset it, on a machine without zone files."""

    def go(zone: str | None) -> None:
        if zone is None:
            monkeypatch.delenv("TZ", raising=False)
        else:
            monkeypatch.setenv("TZ", zone)
        time.tzset()

    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield go
    monkeypatch.undo()
    time.tzset()
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.parametrize("zone", [None, "UTC", "NZST-12"])
def test_the_machines_own_zone_does_not_matter(elsewhere: Callable[[str | None], None], zone: str | None) -> None:
    """BUG-22: with TZ unset or set, and no zone files, a schedule for London is due at the same instant."""
    elsewhere(zone)
    due = next_due(rule("30 1 * * *", timezone="Europe/London"), datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert due is not None
    assert due.night == "2026-03-29T02:00+01:00"
