"""Results: the points that finished jobs found, one row each, by which a recommendation is one short query.

A row is current until the same point was measured later by a job of the same model, engine, device and workload. It
stays in the table: what was true on another night can still be asked for by its job. Knows nothing of what is asked of
a point.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, joinedload

from db.codec import decode, encode_fields
from db.database import Database
from db.errors import JobNotFound
from db.job import JobState
from db.records import front_of_row, point_from_json, point_to_json, request_from_json, trial_of
from db.result import Evidence, Result, results_of, workload_key
from db.service_tables import ResultRow
from db.tables import FrontPointRow, FrontRow, JobRow, TrialRow
from tuner.pareto import Front
from tuner.point import OperatingPoint
from tuner.request import LATENCIES
from tuner.trial import OUTCOMES, Trial

#: Points that one question looks at: more than ten full fronts. Beyond it those of fewest tokens per joule are left.
MAX_FOUND = 5_000
#: Names as in the columns.
MAX_NAME = 300
#: See `ResultStore.mark`.
Mark = tuple[object, ...]
_P99 = tuple(f"{latency}_p99_ms" for latency in LATENCIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A current result with what it is chosen by, and without what is behind it."""

    id: int
    job_id: str
    number: int
    engine: str
    device_uuid: str | None
    workload: str
    is_simulated: bool
    is_estimate: bool
    tok_per_j: float
    output_tok_s: float
    mean_power_w: float
    #: The 99th percentiles in milliseconds by name, as far as they are known.
    latencies_ms: dict[str, float]
    quality: float | None
    measured_at: datetime


class ResultStore:
    """The results of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, job_id: str, trials: Sequence[Trial], front: Front) -> int:
        """Store a job's points in place of those it had, and return how many; without any nothing changes.

        Of one point under the same model, engine, device and workload, what was measured last is current: a small job
        hides nothing but what it measured again. Raises JobNotFound.
        """
        with self._database.transaction() as session:
            job = session.scalar(select(JobRow).where(JobRow.id == job_id))
            if job is None:
                raise JobNotFound(job_id)
            return _save(session, job, trials, front)

    def find(self, model: str, device: str, *, engine: str | None = None, workload: str | None = None) -> list[Found]:
        """Return current results, most tokens per joule first; `device` is the name that jobs gave, or the UUID.

        At most MAX_FOUND.
        """
        columns = [getattr(ResultRow, name) for name in _FOUND]
        # The rest of the latencies would be most of what is read, and of what a service remembers.
        columns += [ResultRow.latencies[name].as_float() for name in _P99]
        query = select(*columns).where(*_asked_for(model, device, engine, workload))
        order = (ResultRow.tok_per_j.desc(), ResultRow.id)
        with self._database.read() as session:
            rows = session.execute(query.order_by(*order).limit(MAX_FOUND)).all()
        return [_found_of(row) for row in rows]

    def mark(self, model: str, device: str, *, engine: str | None = None, workload: str | None = None) -> Mark:
        """Return what stays the same as long as `find` would return the same.

        For a sixth of its time, nearly all of it inside the database: 3 ms instead of 17 with 1,000 results on SQLite.
        Not the numbers alone: SQLite gives those of removed last rows again.
        """
        columns = func.count(), func.sum(ResultRow.id), func.sum(ResultRow.tok_per_j), func.max(ResultRow.measured_at)
        with self._database.read() as session:
            return tuple(session.execute(select(*columns).where(*_asked_for(model, device, engine, workload))).one())

    def newest_id(self) -> int | None:
        """Return a number that grows whenever results are stored; None without any."""
        with self._database.read() as session:
            return session.scalar(select(func.max(ResultRow.id)))

    def get(self, result_id: int) -> Result | None:
        """Return a result with everything behind it; None when it is no longer there. Raises RecordUnreadable."""
        with self._database.read() as session:
            row = session.get(ResultRow, result_id)
            return None if row is None else _result_of(row)

    def of_job(self, job_id: str) -> list[Result]:
        """Return a job's results, most tokens per joule first. Raises RecordUnreadable."""
        query = select(ResultRow).where(ResultRow.job_id == job_id).order_by(ResultRow.tok_per_j.desc(), ResultRow.id)
        with self._database.read() as session:
            return [_result_of(row) for row in session.scalars(query)]

    def of_trial(self, job_id: str, number: int) -> Result | None:
        """Return the result that a trial of a job stands for, if it is one. Raises RecordUnreadable."""
        query = select(ResultRow).where(ResultRow.job_id == job_id, ResultRow.number == number)
        with self._database.read() as session:
            row = session.scalar(query)
            return None if row is None else _result_of(row)

    def missing(self, limit: int) -> list[str]:
        """Return jobs, newest first, that finished with a front and have no results: an earlier version ran them."""
        has_points = exists().where(FrontRow.job_id == JobRow.id, FrontRow.num_points > 0)
        has_results = exists().where(ResultRow.job_id == JobRow.id)
        query = select(JobRow.id).where(JobRow.state == JobState.FINISHED, has_points, ~has_results)
        with self._database.read() as session:
            return list(session.scalars(query.order_by(JobRow.seq.desc()).limit(limit)))

    def fill(self, limit: int) -> int:
        """Store the results of the newest jobs that lack them, `limit` jobs at most; return how many were stored.

        Each job is a transaction of its own.
        """
        return sum(self._fill_one(job_id) for job_id in self.missing(limit))

    def _fill_one(self, job_id: str) -> int:
        with self._database.transaction() as session:
            job = session.scalar(select(JobRow).where(JobRow.id == job_id))
            if job is None:  # pruned meanwhile
                return 0
            trials = _history(session, job_id)
            front = _latest_front(session, job_id, trials)
            return 0 if front is None else _save(session, job, trials, front)


#: Of a row, what Found has under the same name.
_FOUND = (
    "id", "job_id", "number", "engine", "device_uuid", "workload", "is_simulated", "is_estimate", "tok_per_j",
    "output_tok_s", "mean_power_w", "quality", "measured_at",
)  # fmt: skip


def _asked_for(model: str, device: str, engine: str | None, workload: str | None) -> tuple[ColumnElement[bool], ...]:
    """Select the current results of a question."""
    current = and_(ResultRow.model == model[:MAX_NAME], ResultRow.is_current.is_(True))
    # Model and state in both halves: each is then served by an index of its own, and old results are not read.
    either = or_(
        and_(current, ResultRow.device == device[:MAX_NAME]),
        and_(current, ResultRow.device_uuid == device),
    )
    narrowed = ((ResultRow.engine, engine), (ResultRow.workload, workload))
    return (either, *(column == value for column, value in narrowed if value is not None))


def _found_of(row: Sequence[Any]) -> Found:
    num_plain = len(_FOUND)
    p99 = zip(_P99, row[num_plain:], strict=True)
    return Found(
        latencies_ms={name: value for name, value in p99 if value is not None},
        **dict(zip(_FOUND, row[:num_plain], strict=True)),
    )


def _save(session: Session, job: JobRow, trials: Sequence[Trial], front: Front) -> int:
    request = request_from_json(job.request)
    results = results_of(job.id, request, trials, front)
    if not results:
        return 0
    workload = workload_key(request.workload)
    _lock(session, job, workload)
    session.execute(delete(ResultRow).where(ResultRow.job_id == job.id))
    current = _current_by_point(session, job, workload)
    replaced = []
    for one in results:
        before = current.get(one.point)
        is_current = before is None or before[1] <= one.measured_at
        if before is not None and is_current:
            replaced.append(before[0])
        session.add(_row(job, workload, one, is_current=is_current))
    session.execute(update(ResultRow).where(ResultRow.id.in_(replaced)).values(is_current=False))
    return len(results)


def _current_by_point(session: Session, job: JobRow, workload: str) -> dict[OperatingPoint, tuple[int, datetime]]:
    """Return id and time of the current results of a job's key, by point."""
    columns = (ResultRow.point, ResultRow.id, ResultRow.measured_at)
    rows = session.execute(select(*columns).where(*_same_key(job, workload), ResultRow.is_current.is_(True)))
    return {point_from_json(point): (result_id, measured_at) for point, result_id, measured_at in rows}


def _same_key(job: JobRow, workload: str) -> tuple[ColumnElement[bool], ...]:
    """Select results that a later job of the same model, engine, device and workload takes the place of."""
    is_same_device = (
        ResultRow.device == job.device if job.device_uuid is None else ResultRow.device_uuid == (job.device_uuid)
    )
    same = (ResultRow.model == job.model, ResultRow.engine == job.engine, ResultRow.workload == workload)
    return (*same, is_same_device)


def _lock(session: Session, job: JobRow, workload: str) -> None:
    """Let one job at a time store results of a key: two at once would both stay current.

    SQLite's writers come one after the other anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        key = "\0".join((job.model, job.engine, job.device_uuid or job.device, workload))
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big", signed=True)
        session.execute(select(func.pg_advisory_xact_lock(number)))


def _row(job: JobRow, workload: str, result: Result, *, is_current: bool) -> ResultRow:
    evidence: dict[str, Any] = encode_fields(result.evidence, "evidence")
    return ResultRow(
        job_id=job.id,
        number=result.number,
        model=job.model,
        engine=job.engine,
        device=job.device,
        device_uuid=job.device_uuid,
        workload=workload,
        is_current=is_current,
        is_front=result.is_front,
        is_default=result.is_default,
        is_simulated=result.is_simulated,
        is_estimate=result.is_estimate,
        point=point_to_json(result.point),
        tok_per_j=result.tok_per_j,
        output_tok_s=result.output_tok_s,
        mean_power_w=result.mean_power_w,
        latencies={one.name: one.estimate.value for one in result.evidence.latencies},
        quality=result.quality,
        evidence=evidence,
        measured_at=result.measured_at,
    )


def _result_of(row: ResultRow) -> Result:
    return Result(
        job_id=row.job_id,
        number=row.number,
        point=point_from_json(row.point),
        is_front=row.is_front,
        is_default=row.is_default,
        is_simulated=row.is_simulated,
        is_estimate=row.is_estimate,
        tok_per_j=row.tok_per_j,
        output_tok_s=row.output_tok_s,
        mean_power_w=row.mean_power_w,
        quality=row.quality,
        measured_at=row.measured_at,
        evidence=decode(Evidence, row.evidence, "evidence"),
    )


def _history(session: Session, job_id: str) -> list[Trial]:
    """Return the trials that count, as `TrialStore.history` does, inside a transaction."""
    query = (
        select(TrialRow)
        .where(TrialRow.job_id == job_id, TrialRow.state.in_(sorted(OUTCOMES)))
        .order_by(TrialRow.number, TrialRow.attempt)
        .options(joinedload(TrialRow.measurement))
    )
    last = {row.number: row for row in session.scalars(query)}
    return [trial_of(row) for row in last.values()]


def _latest_front(session: Session, job_id: str, trials: Sequence[Trial]) -> Front | None:
    """Return a job's last front as far as its trials are still there."""
    row = session.scalar(select(FrontRow).where(FrontRow.job_id == job_id).order_by(FrontRow.id.desc()).limit(1))
    if row is None:
        return None
    query = (
        select(TrialRow.number)
        .join(FrontPointRow, FrontPointRow.trial_id == TrialRow.id)
        .where(FrontPointRow.front_id == row.id)
        .order_by(FrontPointRow.rank)
    )
    by_number = {trial.number: trial for trial in trials}
    return front_of_row(row, [by_number[number] for number in session.scalars(query) if number in by_number])
