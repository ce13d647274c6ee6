"""What past jobs took of a device: for estimates of the next one. Knows nothing of what they measured."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from db.database import Database
from db.jobs import MAX_NAME
from db.tables import JobRow, TrialRow

#: The newest of a model and a device: older ones may be of other drivers and engines.
MAX_JOBS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCost:
    """What trials of past jobs took, launches and warm-ups included; those without both figures are left out."""

    num_jobs: int
    num_trials: int
    device_s: float
    joules: float

    @property
    def mean_power_w(self) -> float:
        """Joules over the time of the device."""
        return self.joules / self.device_s


class PastCosts:
    """The costs of one database's jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, model: str, device: str) -> PastCost | None:
        """Return what the newest jobs of a model on a device of that name took; None where there is no figure."""
        newest = (
            select(JobRow.id)
            .where(JobRow.model == model[:MAX_NAME], JobRow.device == device[:MAX_NAME])
            .order_by(JobRow.seq.desc())
            .limit(MAX_JOBS)
        )
        with self._database.read() as session:
            ids = session.scalars(newest).all()
            row = session.execute(
                select(
                    func.count(TrialRow.job_id.distinct()),
                    func.count(),
                    func.sum(TrialRow.device_s),
                    func.sum(TrialRow.device_j),
                ).where(
                    TrialRow.job_id.in_(ids),
                    TrialRow.reused_from.is_(None),
                    TrialRow.device_s.is_not(None),
                    TrialRow.device_j.is_not(None),
                )
            ).one()
        num_jobs, num_trials, device_s, joules = row
        if not device_s or joules is None:
            return None
        return PastCost(num_jobs=num_jobs, num_trials=num_trials, device_s=device_s, joules=joules)
