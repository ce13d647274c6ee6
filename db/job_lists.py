"""Jobs as lists show them: filtered, in one of several orders, each with the best that it found.

Knows nothing of pages, nor of what a filter is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, ColumnElement, Select, and_, case, func, or_, select, type_coerce
from sqlalchemy.orm import Session

from db.database import Database
from db.job import Job
from db.job_filter import JobFilter
from db.jobs import EVERY_JOB, find_job, jobs_of
from db.service_tables import ResultRow
from db.tables import JobRow, MeasurementRow, TrialRow
from probes.device import Method
from tuner.trial import TrialState

#: Names in a list of models or devices.
MAX_NAMES = 200
#: Below every figure: what is not known comes last.
_UNKNOWN = -1.0
_UNMEASURED = (Method.ESTIMATE, Method.SIMULATED)
#: Of a result; its gain over the default point stands in it.
_EVIDENCE = type_coerce(ResultRow.evidence, JSON)


class JobOrder(StrEnum):
    """What comes first; among equals the newest does."""

    NEWEST = "newest"
    NAME = "name"
    #: The next two by what is stored of jobs that ran to their end; others come last.
    TOK_PER_J = "tok_per_j"
    GAIN = "gain"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontDot:
    """A point of a front, as far as a list shows it."""

    latencies_ms: dict[str, float]
    tok_per_j: float
    mean_power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job as a line of a list."""

    job: Job
    #: Inside its limits. Of a job that ran to its end over all windows of a point; of others the best window.
    best_tok_per_j: float | None = None
    #: That over the default point's, with what the intervals of both leave open; None where it is not known.
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    #: None without a figure.
    is_estimate: bool | None = None
    #: Whether the figures are those of a job that ran to its end.
    is_final: bool = False


class JobListStore:
    """The lists of jobs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self,
        *,
        limit: int,
        only: JobFilter = EVERY_JOB,
        order: JobOrder = JobOrder.NEWEST,
        after: str | None = None,
    ) -> list[ListedJob]:
        """Return at most `limit` jobs; those behind the job `after` in the same order, to go on with a list.

        Raises JobNotFound, AmbiguousJob.
        """
        with self._database.read() as session:
            query = select(JobRow).where(*only.conditions()).limit(limit)
            if after is not None:
                query = query.where(_is_behind(session, order, find_job(session, after)))
            rows = session.scalars(query.order_by(*_ordering(order), JobRow.seq.desc())).all()
            found = _figures(session, [row.id for row in rows])
            return [ListedJob(job=job, **found.get(job.id, {})) for job in jobs_of(session, rows)]

    def models(self) -> list[str]:
        """Return the models that jobs name, at most MAX_NAMES."""
        return self._names(select(JobRow.model))

    def devices(self) -> list[str]:
        """Return the devices that jobs name, at most MAX_NAMES."""
        return self._names(select(JobRow.device))

    def front_dots(self, job_ids: Sequence[str]) -> dict[str, list[FrontDot]]:
        """Return the stored front of each job that has one, most tokens per joule first."""
        query = (
            select(ResultRow.job_id, ResultRow.latencies, ResultRow.tok_per_j, ResultRow.mean_power_w)
            .where(ResultRow.job_id.in_(job_ids), ResultRow.is_front.is_(True))
            .order_by(ResultRow.job_id, ResultRow.tok_per_j.desc())
        )
        found: dict[str, list[FrontDot]] = {}
        with self._database.read() as session:
            for job_id, latencies_ms, tok_per_j, power_w in session.execute(query):
                dot = FrontDot(latencies_ms=latencies_ms, tok_per_j=tok_per_j, mean_power_w=power_w)
                found.setdefault(job_id, []).append(dot)
        return found

    def last_windows_w(self, job_ids: Sequence[str]) -> dict[str, float]:
        """Return the mean power of the window that ended last in each job that has one with a usable reading."""
        newest = (
            select(TrialRow.job_id, func.max(TrialRow.finished_at).label("at"))
            .join(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
            .where(TrialRow.job_id.in_(job_ids), MeasurementRow.mean_power_w.is_not(None))
            .where(TrialRow.reused_from.is_(None))
            .group_by(TrialRow.job_id)
            .subquery()
        )
        query = (
            select(TrialRow.job_id, MeasurementRow.mean_power_w)
            .join(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
            .join(newest, and_(newest.c.job_id == TrialRow.job_id, newest.c.at == TrialRow.finished_at))
        )
        with self._database.read() as session:
            return {job_id: power_w for job_id, power_w in session.execute(query) if power_w is not None}

    def _names(self, query: Select[str]) -> list[str]:
        with self._database.read() as session:
            return sorted(session.scalars(query.distinct().limit(MAX_NAMES)))


def _key(order: JobOrder) -> ColumnElement[Any]:
    """Return what an order sorts by; never NULL, so that every job has a place."""
    if order is JobOrder.NAME:
        return func.lower(JobRow.name)
    figure = ResultRow.tok_per_j if order is JobOrder.TOK_PER_J else _EVIDENCE[("gain", "ratio")].as_float()
    best = select(figure).where(ResultRow.job_id == JobRow.id, ResultRow.is_front.is_(True))
    best = best.order_by(ResultRow.tok_per_j.desc()).limit(1).correlate(JobRow)
    return func.coalesce(best.scalar_subquery(), _UNKNOWN)


def _ordering(order: JobOrder) -> list[ColumnElement[Any]]:
    if order is JobOrder.NEWEST:
        return []
    key = _key(order)
    return [key.asc() if order is JobOrder.NAME else key.desc()]


def _is_behind(session: Session, order: JobOrder, last: JobRow) -> ColumnElement[bool]:
    """Return what holds for the jobs behind one: by its place, not by a number of lines, which new jobs would move."""
    is_older = JobRow.seq < last.seq
    if order is JobOrder.NEWEST:
        return is_older
    key = _key(order)
    value = session.scalar(select(key).where(JobRow.seq == last.seq))
    return or_(key > value if order is JobOrder.NAME else key < value, and_(key == value, is_older))


def _figures(session: Session, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what is known of each job's figures: from its results, else from the windows that it has until now."""
    place = func.row_number().over(partition_by=ResultRow.job_id, order_by=(ResultRow.tok_per_j.desc(), ResultRow.id))
    bounds = [_EVIDENCE[("gain", name)].as_float().label(name) for name in ("ratio", "low", "high")]
    stored = (
        select(ResultRow.job_id, ResultRow.tok_per_j, ResultRow.is_estimate, *bounds, place.label("place"))
        .where(ResultRow.job_id.in_(job_ids), ResultRow.is_front.is_(True))
        .subquery()
    )
    found = {}
    for job_id, best, is_estimate, *gain, _ in session.execute(select(stored).where(stored.c.place == 1)):
        found[job_id] = _fields(best, gain, is_estimate=is_estimate, is_final=True)
    rest = [job_id for job_id in job_ids if job_id not in found]
    for job_id, best, first, num_unmeasured in session.execute(_windows(rest)):
        gain = [best / first if first else None, None, None]
        found[job_id] = _fields(best, gain, is_estimate=num_unmeasured > 0, is_final=False)
    return found


def _windows(job_ids: Sequence[str]) -> Select[*tuple[Any, ...]]:
    """Return the query for the best window of each job, and for that of its first trial, which is the default point."""
    figure = MeasurementRow.tok_per_j
    first = func.max(case((TrialRow.number == 0, figure)))
    num_unmeasured = func.count(case((MeasurementRow.method.in_(_UNMEASURED), 1)))
    return (
        select(TrialRow.job_id, func.max(figure), first, num_unmeasured)
        .join(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
        .where(TrialRow.job_id.in_(job_ids), TrialRow.state == TrialState.COMPLETE, figure.is_not(None))
        .group_by(TrialRow.job_id)
    )


def _fields(best: float, gain: Sequence[float | None], *, is_estimate: bool, is_final: bool) -> dict[str, Any]:
    ratio, low, high = gain
    return {
        "best_tok_per_j": best,
        "gain": ratio,
        "gain_low": low,
        "gain_high": high,
        "is_estimate": is_estimate,
        "is_final": is_final,
    }
