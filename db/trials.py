"""Trials: a row before measuring, its outcome exactly once after it, and what is left to do after a crash.

Knows nothing of how points are chosen or measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy import exists, func, select, tuple_, update
from sqlalchemy.orm import Session, aliased, joinedload

from db.database import Database
from db.errors import RecordNotStorable, TrialNotStored
from db.events import tell_trial, tell_trial_started
from db.job import Claim
from db.leases import held_job, outcome_of_interruption
from db.records import measurement_row, point_from_json, point_to_json, trial_columns, trial_of
from db.tables import JobRow, TrialRow
from tuner.fingerprint import ReuseKey
from tuner.point import OperatingPoint
from tuner.trial import OUTCOMES, Trial, TrialRole, TrialState

log = structlog.get_logger(__name__)

Trials = list[Trial]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTrial:
    """A trial that is stored as RUNNING; needed to store its outcome."""

    trial_id: int
    job_id: str
    number: int
    attempt: int
    point: OperatingPoint
    role: TrialRole
    #: Of the claim that started it.
    token: str
    started_at: datetime


class TrialStore:
    """The trials of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def start(
        self, claim: Claim, number: int, point: OperatingPoint, *, role: TrialRole = TrialRole.SCREENING
    ) -> StartedTrial:
        """Store that an attempt at a point begins, so that a crash leaves a trace of it. Raises LeaseLost."""
        with self._database.transaction() as session:
            held_job(session, claim)
            row = TrialRow(
                job_id=claim.job_id,
                number=number,
                attempt=_num_attempts(session, claim.job_id, number) + 1,
                point=point_to_json(point),
                state=TrialState.RUNNING,
                started_at=self._now(),
                token=claim.token,
                role=role,
            )
            session.add(row)
            session.flush()
            tell_trial_started(session, row, self._now())
            return StartedTrial(
                trial_id=row.id,
                job_id=row.job_id,
                number=number,
                attempt=row.attempt,
                point=point,
                role=role,
                token=claim.token,
                started_at=row.started_at,
            )

    def finish(self, started: StartedTrial, trial: Trial, *, key: ReuseKey | None = None) -> bool:
        """Store an outcome and its measurement together, once; the stored attempt is that of `started`.

        Under `key` a later job finds the measurement instead of making it anew.

        Returns False, storing nothing, when the trial no longer runs under that claim: another worker took the job
        over, the job ended, or the outcome is already there. Raises RecordNotStorable.
        """
        _require_same(started, trial)
        with self._database.transaction() as session:
            # The job's row first, as every claim does: two that lock in another order would wait for each other.
            job = session.scalar(select(JobRow).where(JobRow.id == started.job_id).with_for_update())
            columns = trial_columns(trial)
            if trial.finished_at is None:
                columns["finished_at"] = self._now()
            ended = session.execute(
                update(TrialRow)
                .where(
                    TrialRow.id == started.trial_id,
                    TrialRow.token == started.token,
                    TrialRow.state == TrialState.RUNNING,
                )
                .values(columns)
                .returning(TrialRow.id)
            ).one_or_none()
            if job is not None and ended is not None:
                row = _store_outcome(session, started, trial, key)
                if row.state in OUTCOMES:
                    job.num_lost = 0
                usable = None if trial.measurement is None else trial.measurement.tok_per_j
                tell_trial(session, row, self._now(), tok_per_j=None if usable is None else usable.value)
        if ended is None:
            log.warning("late_result_dropped", job=started.job_id, number=started.number, attempt=started.attempt)
        return ended is not None

    def list(self, job_id: str) -> Trials:
        """Return every attempt of a job by number and attempt, those that run now included."""
        with self._database.read() as session:
            rows = session.scalars(
                select(TrialRow)
                .where(TrialRow.job_id == job_id)
                .order_by(TrialRow.number, TrialRow.attempt)
                .options(joinedload(TrialRow.measurement))
            )
            return [trial_of(row) for row in rows]

    def of_number(self, job_id: str, number: int) -> Trials:
        """Return the attempts at one point of a job, the first first; no other is decoded."""
        query = select(TrialRow).where(TrialRow.job_id == job_id, TrialRow.number == number)
        query = query.order_by(TrialRow.attempt).options(joinedload(TrialRow.measurement))
        with self._database.read() as session:
            return [trial_of(row) for row in session.scalars(query)]

    def page(
        self, job_id: str, *, limit: int, after: tuple[int, int] = (-1, 0), state: TrialState | None = None
    ) -> Trials:
        """Return at most `limit` attempts of a job behind one, given by number and attempt; no other is decoded."""
        query = select(TrialRow).where(
            TrialRow.job_id == job_id, tuple_(TrialRow.number, TrialRow.attempt) > tuple_(*after)
        )
        if state is not None:
            query = query.where(TrialRow.state == state)
        query = query.order_by(TrialRow.number, TrialRow.attempt).limit(limit)
        with self._database.read() as session:
            return [trial_of(row) for row in session.scalars(query.options(joinedload(TrialRow.measurement)))]

    def history(self, job_id: str) -> Trials:
        """Return the trials that count, by number: of each point the last attempt that has an outcome."""
        last = {trial.number: trial for trial in self.list(job_id) if trial.state in OUTCOMES}
        return [last[number] for number in sorted(last)]

    def to_retry(self, job_id: str) -> tuple[tuple[int, OperatingPoint], ...]:
        """Return number and point of the screened trials whose last attempt was cut short.

        Repeats are not among them: whoever repeats points finds one window missing, and asks for it again.
        """
        with self._database.read() as session:
            later = aliased(TrialRow)
            is_repeated = exists().where(
                later.job_id == TrialRow.job_id, later.number == TrialRow.number, later.attempt > TrialRow.attempt
            )
            cut_short = select(TrialRow.number, TrialRow.point).where(
                TrialRow.job_id == job_id,
                TrialRow.state == TrialState.INTERRUPTED,
                TrialRow.role == TrialRole.SCREENING,
                ~is_repeated,
            )
            rows = session.execute(cut_short.order_by(TrialRow.number)).all()
        return tuple((row.number, point_from_json(row.point)) for row in rows)


def _num_attempts(session: Session, job_id: str, number: int) -> int:
    same_point = (TrialRow.job_id == job_id, TrialRow.number == number)
    return session.scalar(select(func.count()).select_from(TrialRow).where(*same_point)) or 0


def _require_same(started: StartedTrial, trial: Trial) -> None:
    if (trial.number, trial.point, trial.role) != (started.number, started.point, started.role):
        raise TrialNotStored(
            f"trial {trial.number} ({trial.point}, {trial.role}) is not what was started as {started.number} "
            f"({started.point}, {started.role})"
        )
    if trial.state is TrialState.RUNNING:
        raise RecordNotStorable(f"trial {trial.number} is still running; give it an outcome")


def _store_outcome(session: Session, started: StartedTrial, trial: Trial, key: ReuseKey | None) -> TrialRow:
    """Add what belongs to the outcome of a row that has just been ended; return the row."""
    if trial.measurement is not None:
        session.add(measurement_row(started.trial_id, trial.measurement, key))
    row = session.get_one(TrialRow, started.trial_id)
    if trial.state is TrialState.INTERRUPTED:
        row.state, row.reason, row.detail = outcome_of_interruption(session, row, reason=trial.reason or "interrupted")
    return row
