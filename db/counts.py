"""How much there is of everything, for those who watch the service. Knows nothing of how figures are shown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import func, select

from db.database import Database
from db.service import NightState
from db.service_tables import DeliveryRow, NightRow, WorkerRow
from db.tables import JobRow, TrialRow


class CountStore:
    """The counts of one database; each is one query over an index or over a small table."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def jobs(self) -> dict[str, int]:
        """Return the number of jobs by state; states without jobs are left out."""
        with self._database.read() as session:
            query = select(JobRow.state, func.count()).group_by(JobRow.state)
            return dict(session.execute(query).all())

    def oldest_queued_s(self) -> float:
        """Return for how many seconds the oldest queued job has waited; 0 without one."""
        with self._database.read() as session:
            oldest = session.scalar(select(func.min(JobRow.created_at)).where(JobRow.state == "queued"))
        return 0.0 if oldest is None else max(0.0, (self._now() - oldest).total_seconds())

    def trials(self) -> dict[str, int]:
        """Return the number of attempts by state: a walk over an index of all of them, so not for every second."""
        with self._database.read() as session:
            query = select(TrialRow.state, func.count()).group_by(TrialRow.state)
            return dict(session.execute(query).all())

    def workers(self, seen_within_s: float) -> int:
        """Return how many workers gave a sign of life lately."""
        since = self._now() - timedelta(seconds=seen_within_s)
        with self._database.read() as session:
            return session.scalar(select(func.count()).where(WorkerRow.last_seen >= since)) or 0

    def deliveries(self) -> dict[str, int]:
        """Return the number of notifications by state; states without any are left out."""
        with self._database.read() as session:
            query = select(DeliveryRow.state, func.count()).group_by(DeliveryRow.state)
            return dict(session.execute(query).all())

    def nights(self, due_within_s: float) -> dict[str, int]:
        """Return what became of the nights that were due lately: skipped, missed, or the state of the night's job.

        Nights that have started and whose job was deleted count as `deleted`.
        """
        since = self._now() - timedelta(seconds=due_within_s)
        query = (
            select(NightRow.state, JobRow.state, func.count())
            .select_from(NightRow)
            .join(JobRow, JobRow.id == NightRow.job_id, isouter=True)
            .where(NightRow.due_at >= since)
            .group_by(NightRow.state, JobRow.state)
        )
        found: dict[str, int] = {}
        with self._database.read() as session:
            for state, job_state, count in session.execute(query):
                outcome = (job_state or "deleted") if state == NightState.STARTED else state
                found[outcome] = found.get(outcome, 0) + count
        return found
