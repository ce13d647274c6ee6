"""Nights over both clock changes in four zones, kept by two servers on one database (BUG-21, BUG-22, BUG-23).

The servers run the real APScheduler; the clock is the test's, so nothing waits for a night.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from itertools import takewhile

import pytest

from api.calendar_rules import due_after, rule_of
from api.settings import Settings
from api.stores import Stores, open_stores
from db.schedule import Due, ScheduleSpec
from db.service import NightState
from tests.api.night_watch import Server, clocked, end_jobs, look_at_once, make_spec, nights_of
from tests.db.factories import Clock
from tests.postgres import PostgresServer

#: The days on which clocks change in 2026.
CHANGES = {
    "Europe/Berlin": (date(2026, 3, 29), date(2026, 10, 25)),
    "America/Los_Angeles": (date(2026, 3, 8), date(2026, 11, 1)),
    "Australia/Sydney": (date(2026, 4, 5), date(2026, 10, 4)),
    "Australia/Lord_Howe": (date(2026, 4, 5), date(2026, 10, 4)),
}
CASES = [(zone, day) for zone, days in CHANGES.items() for day in days]
#: 02:00 is jumped over or comes twice in all four zones.
IN_THE_CHANGE = "0 2 * * *"
ONE_DAY = timedelta(days=1)

BACKENDS = ("sqlite", "postgresql")
#: Each zone on one of the two.
SHARED_OUT = [(BACKENDS[i // 2 % 2], zone, day) for i, (zone, day) in enumerate(CASES)]


@contextmanager
def running(*servers: Server) -> Iterator[None]:
    for server in servers:
        server.start()
    try:
        yield
    finally:
        for server in servers:
            server.stop()


def dues_of(spec: ScheduleSpec, after: datetime, until: datetime) -> list[Due]:
    return list(takewhile(lambda due: due.due_at < until, due_after(rule_of(spec), after)))


def local_noon(zone: str, day: date) -> datetime:
    found = rule_of(make_spec(cron="0 12 * * *", timezone=zone)).due_on(day)
    return found[0].due_at


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, settings: Settings) -> str:
    """A database without rows."""
    if request.param == "sqlite":
        request.getfixturevalue("own_database")
        return settings.database_url
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.shared_database()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(url: str, clock: Clock) -> Iterator[Stores]:
    """Stores on that database by the test's clock, for whoever makes schedules and ends jobs."""
    opened = open_stores(url)
    yield clocked(opened, clock)
    opened.database.dispose()


@pytest.mark.parametrize(("zone", "change"), CASES)
def test_every_night_runs_once_on_two_servers(kept: Stores, url: str, clock: Clock, zone: str, change: date) -> None:
    """BUG-21, BUG-22: on the changing night and the next, one run each, which both servers wanted to start at once."""
    clock.time = local_noon(zone, change - ONE_DAY)
    schedule = kept.schedules.create(make_spec(cron=IN_THE_CHANGE, timezone=zone))
    dues = dues_of(schedule.spec, clock.time, local_noon(zone, change + ONE_DAY))
    servers = [Server(url, clock) for _ in range(2)]
    with running(*servers):
        for due in dues:
            clock.time = due.due_at
            look_at_once(*servers)
            end_jobs(kept)
    nights = nights_of(kept, schedule)
    local = [night.due_at.astimezone(rule_of(schedule.spec).zone).date() for night in nights]
    assert local == [change, change + ONE_DAY]
    assert [night.state for night in nights] == [NightState.STARTED] * 2
    assert {night.job_id for night in nights} == {job.id for job in kept.jobs.list(limit=500)}


@pytest.mark.parametrize(("url", "zone", "change"), SHARED_OUT, indirect=["url"])
def test_services_that_are_down_over_the_hour_run_late_once(
    kept: Stores, url: str, clock: Clock, zone: str, change: date
) -> None:
    """BUG-23: two servers stopped before the changing hour and started together after it run each schedule once."""
    clock.time = local_noon(zone, change - ONE_DAY)
    nightly = kept.schedules.create(make_spec(timezone=zone))
    line = kept.schedules.create(make_spec(name="line", cron=IN_THE_CHANGE, timezone=zone))
    (due,) = dues_of(line.spec, clock.time, local_noon(zone, change))
    with running(Server(url, clock)):
        clock.time = due.due_at - timedelta(minutes=70)
    clock.time = due.due_at + timedelta(minutes=50)
    with running(Server(url, clock), Server(url, clock)):
        pass
    for schedule, night in ((nightly, str(change)), (line, due.night)):
        (found,) = nights_of(kept, schedule)
        assert (found.night, found.state, found.decided_at) == (night, NightState.STARTED, clock.time)
    assert len(kept.jobs.list(limit=500)) == 2
