"""Proving a claim, and what becomes of the trials that a dead claim left behind.

Works inside the caller's transaction. Knows nothing of who claims or why.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from db.errors import LeaseLost
from db.events import tell_trial
from db.job import Claim, JobState
from db.tables import JobRow, TrialRow
from tuner.trial import TrialState

#: Reason of a trial whose second attempt was cut short as well.
INTERRUPTED_TWICE = "interrupted_twice"
#: Interruptions that somebody alive asked for, or that the guard or the device forced: no fault of the point.
ORDERLY = ("released", "job_ended")


def held_job(session: Session, claim: Claim) -> JobRow:
    """Return the job's row, locked, if the claim still holds it. Raises LeaseLost.

    A lease that ran out unnoticed still counts: a slow worker that nobody replaced may go on.
    """
    row = session.scalar(
        select(JobRow)
        .where(JobRow.id == claim.job_id, JobRow.token == claim.token, JobRow.state == JobState.RUNNING)
        .with_for_update()
    )
    if row is None:
        raise LeaseLost(claim.job_id, owner=claim.owner)
    return row


def interrupt_running(session: Session, job: JobRow, *, reason: str, now: datetime) -> None:
    """End the trials that a job's last claim left RUNNING, so that none of them runs without an owner.

    The caller holds the job's row. An attempt took no longer than its worker kept the lease: whatever came after that
    is time in which nothing ran.
    """
    lease_end = job.lease_expires_at
    running = select(TrialRow).where(TrialRow.job_id == job.id, TrialRow.state == TrialState.RUNNING)
    for row in session.scalars(running.with_for_update()).all():
        row.state, row.reason, row.detail = outcome_of_interruption(session, row, reason=reason)
        row.finished_at = now if lease_end is None else max(row.started_at, min(now, lease_end))
        tell_trial(session, row, now)


def outcome_of_interruption(session: Session, row: TrialRow, *, reason: str) -> tuple[str, str, str]:
    """Return state, reason and detail of an attempt cut short.

    A worker that dies is bad luck once, and the point's fault twice; one that stops in order says nothing of it.
    """
    was_interrupted_before = session.scalar(
        select(
            exists().where(
                TrialRow.job_id == row.job_id,
                TrialRow.number == row.number,
                TrialRow.attempt < row.attempt,
                TrialRow.state == TrialState.INTERRUPTED,
                TrialRow.reason.not_in(ORDERLY),
            )
        )
    )
    if was_interrupted_before and reason not in ORDERLY:
        return TrialState.FAILED, INTERRUPTED_TWICE, f"attempt {row.attempt} was cut short as well ({reason})"
    return TrialState.INTERRUPTED, reason, f"attempt {row.attempt} was cut short; the point is tried again"
