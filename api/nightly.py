"""APScheduler as an alarm clock: it wakes the keeper of nights when something is due, and every minute besides.

It decides nothing and stores nothing: which nights there are, and that each runs once, is the database's. So its own
cron trigger, which skips and doubles days when clocks change, its grace of one second and its job store are not used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from api.stores import utc_now
from db.errors import StoreError

log = structlog.get_logger(__name__)

#: Between looks when nothing is known to be due: for schedules that another server was told of, and clocks that jump.
SAFETY_NET_S = 60
_SAFETY_NET, _NEXT_DUE = "safety net", "next due"
#: A look that comes late is better than none, and of several one is enough. With one thread a second one waits for the
#: first: what it was woken for may be newer than what the first one saw.
_JOB_DEFAULTS = {"coalesce": True, "max_instances": 2, "misfire_grace_time": None}


class Nightly:
    """Calls `keep` when something is due; started and stopped with the service."""

    def __init__(self, keep: Callable[[], datetime | None], now: Callable[[], datetime] = utc_now) -> None:
        """`keep` says when something is due next, by the clock `now`; None when nothing is."""
        self._keep = keep
        self._now = now
        self._num_looks = 0
        self._looked = threading.Condition()
        self._scheduler: BackgroundScheduler | None = None

    @property
    def num_looks(self) -> int:
        """How often it has looked."""
        return self._num_looks

    def start(self) -> None:
        """Look at once, then whenever something is due."""
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            jobstores={"default": MemoryJobStore()},
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults=_JOB_DEFAULTS,
        )
        self._scheduler.add_job(
            self._look, IntervalTrigger(seconds=SAFETY_NET_S), id=_SAFETY_NET, next_run_time=datetime.now(UTC)
        )
        self._scheduler.start()

    def stop(self) -> None:
        """Start nothing more, and wait for a look that is under way."""
        if self._scheduler is not None:
            scheduler, self._scheduler = self._scheduler, None
            scheduler.shutdown()

    def wake(self) -> None:
        """Look soon, as something may be due earlier than it was; nothing happens unless it is started."""
        if self._scheduler is not None:
            self._scheduler.modify_job(_SAFETY_NET, next_run_time=datetime.now(UTC))

    def wait_for_look(self, num_looks: int, *, timeout_s: float) -> bool:
        """Wait until it has looked so often; False when it has not after `timeout_s`."""
        with self._looked:
            return self._looked.wait_for(lambda: self._num_looks >= num_looks, timeout_s)

    def _look(self) -> None:
        try:
            due_at = self._keep()
        except StoreError as error:  # the next look may find the database again
            log.warning("nightly_waits", error=str(error))
            due_at = None
        if due_at is not None and (scheduler := self._scheduler) is not None:
            run_at = datetime.now(UTC) + (due_at - self._now())
            scheduler.add_job(self._look, DateTrigger(run_at), id=_NEXT_DUE, replace_existing=True)
        with self._looked:
            self._num_looks += 1
            self._looked.notify_all()
