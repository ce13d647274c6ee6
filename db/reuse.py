"""What earlier jobs measured: by what it was measured under, and where the last of them ended.

Knows nothing of whether an earlier measurement is good enough, nor of what is searched.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session, contains_eager

from db.database import Database
from db.job import JobState
from db.records import point_from_json, request_from_json, trial_of
from db.tables import FrontPointRow, FrontRow, JobRow, MeasurementRow, TrialRow
from tuner.fingerprint import ReuseKey
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.takeover import Earlier

#: Of one point: more windows of the same under the same conditions are not looked at.
MAX_FOUND = 20
#: Jobs of a device among which the last of the same kind is sought.
MAX_JOBS = 200

Found = list[Earlier]


class ReuseStore:
    """The measurements of one database, for jobs that need not make them anew."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, key: ReuseKey, *, since: datetime, except_job: str) -> Found:
        """Return what other jobs measured themselves under a key since then, newest first."""
        is_own = TrialRow.reused_from.is_(None) & (TrialRow.job_id != except_job) & (TrialRow.finished_at >= since)
        with self._database.read() as session:
            return _found(session, key, is_own)

    def find_in(self, key: ReuseKey, job_id: str) -> Found:
        """Return what one job has under a key, newest first: measured by itself or taken over, however old."""
        with self._database.read() as session:
            return _found(session, key, TrialRow.job_id == job_id)

    def last_front(self, request: TuneRequest, device_uuid: str, *, except_job: str) -> tuple[OperatingPoint, ...]:
        """Return the points of the last finished job's front, fastest first.

        Of those jobs that ran the same workload with the same model and engine on that device and found points; empty
        without one. Driver and versions may have changed since: the points are where to look, not what to find.
        """
        same_device = (JobRow.device_uuid == device_uuid) & (JobRow.state == JobState.FINISHED)
        jobs = select(JobRow).where(same_device, JobRow.id != except_job).order_by(JobRow.seq.desc()).limit(MAX_JOBS)
        with self._database.read() as session:
            for job in session.scalars(jobs):
                if _is_alike(request_from_json(job.request), request) and (points := _front_points(session, job.id)):
                    return points
        return ()


def _found(session: Session, key: ReuseKey, condition: ColumnElement[bool]) -> Found:
    rows = session.execute(
        select(TrialRow, JobRow.request)
        .join(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
        .join(JobRow, JobRow.id == TrialRow.job_id)
        .where(MeasurementRow.fingerprint == key.fingerprint, MeasurementRow.settings == key.settings, condition)
        .order_by(TrialRow.finished_at.desc(), TrialRow.id.desc())
        .limit(MAX_FOUND)
        .options(contains_eager(TrialRow.measurement))
    ).all()
    return [Earlier(job_id=row.job_id, request=request_from_json(asked), trial=trial_of(row)) for row, asked in rows]


def _is_alike(one: TuneRequest, other: TuneRequest) -> bool:
    return (one.model, one.engine, one.workload) == (other.model, other.engine, other.workload)


def _front_points(session: Session, job_id: str) -> tuple[OperatingPoint, ...]:
    last = select(FrontRow.id).where(FrontRow.job_id == job_id).order_by(FrontRow.id.desc()).limit(1)
    points = session.scalars(
        select(TrialRow.point)
        .join(FrontPointRow, FrontPointRow.trial_id == TrialRow.id)
        .where(FrontPointRow.front_id == last.scalar_subquery())
        .order_by(FrontPointRow.rank)
    )
    return tuple(dict.fromkeys(point_from_json(point) for point in points))
