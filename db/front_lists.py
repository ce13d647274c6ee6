"""The latest front of each job, without its points: what lists show and what may be asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import aliased

from db.database import Database
from db.job import JobState
from db.job_filter import JobFilter
from db.jobs import find_job
from db.service_tables import NightRow, ScheduleRow
from db.tables import FrontRow, JobRow

ListedFronts = list["ListedFront"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFront:
    """A front as a line of a list."""

    job_id: str
    job_name: str
    job_state: JobState
    model: str
    engine: str
    device: str
    created_at: datetime
    latency_metric: str
    #: tokens per joule x milliseconds, up to `latency_reference_ms`.
    hypervolume: float
    latency_reference_ms: float | None
    num_points: int
    #: Of the schedule whose night the job is; None for jobs of people.
    schedule_name: str | None
    night: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontFilter:
    """What a listed front has; None asks for nothing."""

    jobs: JobFilter = field(default_factory=JobFilter)
    #: Name or id of the schedule, and the night as its row names it.
    schedule: str | None = None
    night: str | None = None


class FrontListStore:
    """The lists of fronts of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self, *, limit: int, before: str | None = None, only: FrontFilter | None = None) -> ListedFronts:
        """Return the latest front of at most `limit` jobs, newest job first; those created before the job `before`.

        Raises JobNotFound, AmbiguousJob.
        """
        query = _latest(only or FrontFilter()).order_by(JobRow.seq.desc()).limit(limit)
        with self._database.read() as session:
            if before is not None:
                query = query.where(JobRow.seq < find_job(session, before).seq)
            return [_listed(row) for row in session.execute(query)]


def _latest(only: FrontFilter) -> Select[*tuple[Any, ...]]:
    other_front, other_night = aliased(FrontRow), aliased(NightRow)
    newest = select(func.max(other_front.id)).where(other_front.job_id == JobRow.id).scalar_subquery()
    night = select(func.max(other_night.id)).where(other_night.job_id == JobRow.id).scalar_subquery()
    query = (
        select(
            JobRow.id, JobRow.name, JobRow.state, JobRow.model, JobRow.engine, JobRow.device,
            FrontRow.created_at, FrontRow.latency_metric, FrontRow.hypervolume, FrontRow.latency_reference_ms,
            FrontRow.num_points, ScheduleRow.name, NightRow.night,
        )
        .select_from(JobRow)
        .join(FrontRow, FrontRow.id == newest)
        .join(NightRow, NightRow.id == night, isouter=True)
        .join(ScheduleRow, ScheduleRow.id == NightRow.schedule_id, isouter=True)
        .where(*only.jobs.conditions())
    )  # fmt: skip
    if only.schedule is not None:
        query = query.where(or_(ScheduleRow.name == only.schedule, ScheduleRow.id == only.schedule))
    return query if only.night is None else query.where(NightRow.night == only.night)


def _listed(row: Sequence[Any]) -> ListedFront:
    job_id, name, state, model, engine, device, *front, schedule, night = row
    created_at, latency_metric, area, reference_ms, num_points = front
    return ListedFront(
        job_id=job_id,
        job_name=name,
        job_state=JobState(state),
        model=model,
        engine=engine,
        device=device,
        created_at=created_at,
        latency_metric=latency_metric,
        hypervolume=area,
        latency_reference_ms=reference_ms,
        num_points=num_points,
        schedule_name=schedule,
        night=night,
    )
