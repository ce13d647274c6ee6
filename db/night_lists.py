"""The nights of all schedules, newest first, with the names of their schedules. Knows nothing of what a list is for."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from db.database import Database
from db.nights import night_of
from db.schedule import Night
from db.service_tables import NightRow, ScheduleRow
from db.tables import JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedNight:
    """A night as a line of a list."""

    night: Night
    schedule_name: str


class NightListStore:
    """The lists of nights of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def latest(self, *, limit: int) -> list[ListedNight]:
        """Return at most `limit` nights, the one that was decided last first."""
        query = (
            select(NightRow, ScheduleRow.name, JobRow.state)
            .join(ScheduleRow, ScheduleRow.id == NightRow.schedule_id)
            .outerjoin(JobRow, JobRow.id == NightRow.job_id)
            .order_by(NightRow.id.desc())
            .limit(limit)
        )
        with self._database.read() as session:
            return [
                ListedNight(night=night_of(row, state), schedule_name=name)
                for row, name, state in session.execute(query)
            ]
