"""The workers that are there: each says so now and then, and what it takes. Knows nothing of what they run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update

from db.database import Database
from db.service_tables import WorkerRow
from db.tables import JobRow

#: In what a worker takes: jobs of every device.
EVERYTHING = "*"
#: A worker that said nothing for this long was lost without a word, and is not listed any more.
FORGOTTEN_AFTER = timedelta(days=7)

Workers = list["Worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker, as it last said it is."""

    #: Host, process id and its start, as in `Job.owner`.
    owner: str
    host: str
    #: Of Wattfront.
    version: str
    #: Names of devices that it takes jobs for, `simulated:*` for all simulated ones; `*` for everything.
    devices: tuple[str, ...]
    #: Engines that it can start.
    engines: tuple[str, ...]
    started_at: datetime
    last_seen: datetime
    #: What it runs; None while it waits.
    job_id: str | None = None

    def is_silent(self, now: datetime, after_s: float) -> bool:
        """Tell whether it has said nothing for longer than this."""
        return now - self.last_seen > timedelta(seconds=after_s)


class WorkerStore:
    """The workers of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def register(
        self, owner: str, *, host: str, version: str, devices: Collection[str], engines: Collection[str]
    ) -> None:
        """Note that a worker is there, without a job; the same owner again replaces what it said before."""
        with self._database.transaction() as session:
            now = self._now()
            session.execute(delete(WorkerRow).where(WorkerRow.last_seen < now - FORGOTTEN_AFTER))
            session.merge(
                WorkerRow(
                    owner=owner,
                    host=host,
                    version=version,
                    devices=list(devices),
                    engines=list(engines),
                    started_at=now,
                    last_seen=now,
                    job_id=None,
                )
            )

    def seen(self, owner: str, job_id: str | None = None) -> bool:
        """Note that a worker lives and what it runs; False when it is not registered."""
        with self._database.transaction() as session:
            changed = update(WorkerRow).where(WorkerRow.owner == owner).values(last_seen=self._now(), job_id=job_id)
            return session.scalar(changed.returning(WorkerRow.owner)) is not None

    def forget(self, owner: str) -> None:
        """Take a worker off the list; one that is not on it stays so."""
        with self._database.transaction() as session:
            session.execute(delete(WorkerRow).where(WorkerRow.owner == owner))

    def forget_dead(self, is_dead: Callable[[str], bool]) -> int:
        """Take off workers that are known to be dead and hold no job; return how many.

        One that still holds a job stays until somebody has taken that over: its row says where the job was.
        """
        with self._database.transaction() as session:
            held = select(JobRow.owner).where(JobRow.token.is_not(None), JobRow.owner.is_not(None))
            owners = session.scalars(select(WorkerRow.owner).where(WorkerRow.owner.not_in(held))).all()
            dead = [owner for owner in owners if is_dead(owner)]
            session.execute(delete(WorkerRow).where(WorkerRow.owner.in_(dead)))
            return len(dead)

    def list(self) -> Workers:
        """Return the workers in the order in which they started, those that were lost lately included."""
        with self._database.read() as session:
            rows = session.scalars(select(WorkerRow).order_by(WorkerRow.started_at, WorkerRow.owner))
            return [_worker_of(row) for row in rows]


def _worker_of(row: WorkerRow) -> Worker:
    return Worker(
        owner=row.owner,
        host=row.host,
        version=row.version,
        devices=tuple(row.devices),
        engines=tuple(row.engines),
        started_at=row.started_at,
        last_seen=row.last_seen,
        job_id=row.job_id,
    )
