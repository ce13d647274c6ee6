"""Servers that keep nights on one database, with a clock of the test's own and the real APScheduler."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from api.night_keeper import NightKeeper
from api.nightly import Nightly
from api.stores import Stores, open_stores
from db.job import JobState
from db.jobs import JobStore
from db.schedule import Night, Schedule, ScheduleSpec
from db.schedules import ScheduleStore
from tests.db.factories import Clock
from tests.tuner.simulated import make_simulated

#: Far more than a look takes.
LONGEST_S = 60.0


def clocked(stores: Stores, clock: Clock) -> Stores:
    """Return stores that write down the time of a clock."""
    return replace(
        stores, jobs=JobStore(stores.database, clock.now), schedules=ScheduleStore(stores.database, clock.now)
    )


def make_spec(**changes: Any) -> ScheduleSpec:
    """Every night between 01:00 and 05:00 in Berlin, a job on a simulated GPU."""
    fields: dict[str, Any] = {
        "name": "nightly",
        "request": make_simulated(),
        "window_start": "01:00",
        "window_end": "05:00",
        "timezone": "Europe/Berlin",
    }
    if changes.get("cron") is not None:
        fields |= {"window_start": None, "window_end": None}
    return ScheduleSpec(**(fields | changes))


def nights_of(stores: Stores, schedule: Schedule) -> list[Night]:
    """Return every night of a schedule, oldest first."""
    return list(reversed(stores.nights.list(schedule.id, limit=500)))


def end_jobs(stores: Stores, state: JobState = JobState.FINISHED) -> int:
    """End every job that waits, as a worker would; return how many."""
    num_ended = 0
    while (claim := stores.jobs.claim_next("host:1:1", 60.0)) is not None:
        stores.jobs.finish(claim, state, "trials")
        num_ended += 1
    return num_ended


class Server:
    """One service: its own connections, its own scheduler."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.stores = clocked(open_stores(url), clock)
        keeper = NightKeeper(self.stores, clock.now)
        self._nightly = Nightly(keeper.keep, clock.now)

    def start(self) -> None:
        self._nightly.start()
        assert self._nightly.wait_for_look(1, timeout_s=LONGEST_S)

    def look(self) -> None:
        """Let APScheduler do what it does when the time has come."""
        seen = self._nightly.num_looks
        self._nightly.wake()
        assert self._nightly.wait_for_look(seen + 1, timeout_s=LONGEST_S)

    def begin_look(self) -> None:
        """The same without waiting for it, so that two servers look at once."""
        self._nightly.wake()

    @property
    def num_looks(self) -> int:
        return self._nightly.num_looks

    def wait(self, num_looks: int) -> None:
        assert self._nightly.wait_for_look(num_looks, timeout_s=LONGEST_S)

    def stop(self) -> None:
        self._nightly.stop()
        self.stores.database.dispose()


def look_at_once(*servers: Server) -> None:
    """Wake every server, then wait for all of them."""
    seen = [server.num_looks for server in servers]
    for server in servers:
        server.begin_look()
    for server, num_looks in zip(servers, seen, strict=True):
        server.wait(num_looks + 1)


def at(text: str) -> datetime:
    """Return a time with its offset, as 2026-03-29T03:00+02:00."""
    return datetime.fromisoformat(text)
