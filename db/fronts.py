"""Fronts: each is kept, with its trials by reference. Knows nothing of dominance."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, joinedload

from db.database import Database
from db.errors import TrialNotStored
from db.front_documents import FrontDocument, is_whole
from db.job import Claim
from db.leases import held_job
from db.records import front_of_row, front_row, trial_of
from db.tables import FrontPointRow, FrontRow, TrialRow
from tuner.pareto import Front
from tuner.trial import Trial


class FrontStore:
    """The fronts of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(
        self, job_id: str, front: Front, document: FrontDocument | None = None, *, claim: Claim | None = None
    ) -> int:
        """Add a front to a job's history, with its public form where one is given; return the front's number.

        Raises TrialNotStored when one of its trials is not the job's, and LeaseLost when `claim` is no longer: a worker
        that was given up must not put its front over that of the one that took the job over.
        """
        with self._database.transaction() as session:
            if claim is not None:
                held_job(session, claim)
            trial_ids = _trial_ids(session, job_id, front.trials)
            row = front_row(job_id, front)
            if document is not None:
                row.document, row.document_version = document.body, document.version
            session.add(row)
            session.flush()
            session.add_all(
                FrontPointRow(front_id=row.id, rank=rank, trial_id=trial_id) for rank, trial_id in enumerate(trial_ids)
            )
            return row.id

    def latest(self, job_id: str) -> Front | None:
        """Return the front saved last, with its trials; None when there is none."""
        last = select(FrontRow).where(FrontRow.job_id == job_id).order_by(FrontRow.id.desc()).limit(1)
        return self._first_of(last)

    def latest_whole(self, job_id: str) -> Front | None:
        """Return the front saved last unless it misses a trial that ended later; None too when there is none."""
        last = select(func.max(FrontRow.id)).where(FrontRow.job_id == job_id).scalar_subquery()
        return self._first_of(select(FrontRow).where(FrontRow.id == last, is_whole()))

    def history(self, job_id: str) -> list[Front]:
        """Return every front of a job in the order they were saved."""
        with self._database.read() as session:
            rows = session.scalars(select(FrontRow).where(FrontRow.job_id == job_id).order_by(FrontRow.id))
            return _fronts_of(session, rows.all())

    def _first_of(self, query: Select[FrontRow]) -> Front | None:
        with self._database.read() as session:
            fronts = _fronts_of(session, session.scalars(query).all())
            return fronts[0] if fronts else None


def _trial_ids(session: Session, job_id: str, trials: Sequence[Trial]) -> list[int]:
    attempts = select(TrialRow.number, TrialRow.attempt, TrialRow.id).where(TrialRow.job_id == job_id)
    stored = {(number, attempt): trial_id for number, attempt, trial_id in session.execute(attempts)}
    for trial in trials:
        if (trial.number, trial.attempt) not in stored:
            raise TrialNotStored(f"job {job_id} has no trial {trial.number}, attempt {trial.attempt}; store it first")
    return [stored[trial.number, trial.attempt] for trial in trials]


def _fronts_of(session: Session, rows: Sequence[FrontRow]) -> list[Front]:
    """Rebuild fronts; a trial that stands on several is read once."""
    places = session.execute(
        select(FrontPointRow.front_id, FrontPointRow.trial_id)
        .where(FrontPointRow.front_id.in_([row.id for row in rows]))
        .order_by(FrontPointRow.front_id, FrontPointRow.rank)
    ).all()
    trials = _trials_by_id(session, {trial_id for _, trial_id in places})
    return [
        front_of_row(row, [trials[trial_id] for front_id, trial_id in places if front_id == row.id]) for row in rows
    ]


def _trials_by_id(session: Session, trial_ids: set[int]) -> dict[int, Trial]:
    query = select(TrialRow).where(TrialRow.id.in_(trial_ids)).options(joinedload(TrialRow.measurement))
    return {row.id: trial_of(row) for row in session.scalars(query)}
