"""Which job a worker gets next, and what a claim, a loss or an end writes into a job's row.

Works inside the caller's transaction. Knows nothing of how a job is run.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from db.events import tell_job
from db.job import ENDED, Claim, JobState
from db.leases import interrupt_running
from db.records import claim_of
from db.tables import JobRow
from probes.simulated.names import PREFIX, is_simulated_name

#: In what a worker takes: every simulated device.
SIMULATED_DEVICES = f"{PREFIX}*"
#: Claims that may be lost in a row before the job is taken to be what kills its workers.
MAX_LOST = 3


def take_next(
    session: Session, *, owner: str, lease_s: float, now: datetime, takes: Collection[str] | None
) -> Claim | None:
    """Take the first job in line that this worker may have: higher priority first, then the older one.

    `takes` are device names, with SIMULATED_DEVICES for all simulated ones; None takes everything. A job that was
    lost too often ends here.
    """
    passed_over: set[str] = set()
    while (row := session.scalar(_first_in_line(now, takes, passed_over))) is not None:
        if row.state == JobState.RUNNING and row.num_lost + 1 >= MAX_LOST:
            _give_up(session, row, now=now)
        elif has_device(session, row, now=now):
            return take(session, row, owner=owner, lease_s=lease_s, now=now)
        else:
            passed_over.add(row.device)
    return None


def has_device(session: Session, row: JobRow, *, now: datetime) -> bool:
    """Tell whether a job may have its device now, and on PostgreSQL keep others from getting it until the commit.

    Two workers that look at the same moment at two jobs of one device would each find it free: neither sees what the
    other has not committed. So whoever takes a device first takes an advisory lock of its name, which ends with the
    transaction, and looks again under it: a claim that was committed before is then seen, as every statement has a
    fresh view (READ COMMITTED). A lock that another has means that the device is just being taken; nobody waits for
    it, so nobody waits in a circle. SQLite needs none of this: there a writing transaction is alone.
    """
    if is_simulated_name(row.device):
        return True
    if session.get_bind().dialect.name == "postgresql":
        digest = hashlib.sha256(f"wattfront device {row.device}".encode()).digest()
        key = int.from_bytes(digest[:8], "big", signed=True)
        if not session.scalar(select(func.pg_try_advisory_xact_lock(key))):
            return False
    other = aliased(JobRow)
    is_held = exists().where(other.device == row.device, other.seq != row.seq, *_is_live(other, now))
    return not session.scalar(select(is_held))


def take(session: Session, row: JobRow, *, owner: str, lease_s: float, now: datetime) -> Claim:
    """Make a job this owner's; a claim that it takes over counts as lost."""
    interrupt_running(session, row, reason="worker_lost", now=now)
    if row.started_at is None:
        row.started_at = now
    else:
        row.resume_count += 1
    if row.state == JobState.RUNNING:
        row.num_lost += 1
    elif row.state in ENDED:  # reopened by hand: what ended it then is over
        row.ended_because = row.message = row.finished_at = None
        row.cancel_requested = False
        row.num_lost = 0
    row.state = JobState.RUNNING
    row.owner = owner
    row.token = uuid.uuid4().hex
    row.lease_expires_at = now + timedelta(seconds=lease_s)
    tell_job(session, row, now)
    return claim_of(row)


def end(
    session: Session, row: JobRow, *, state: JobState, ended_because: str, message: str | None, now: datetime
) -> None:
    """End a job, and with it the trial that it may have left running."""
    interrupt_running(session, row, reason="job_ended", now=now)
    row.state = state
    row.ended_because = ended_because
    row.message = message
    row.finished_at = now
    row.token = row.lease_expires_at = None
    tell_job(session, row, now)


def cancel(session: Session, row: JobRow, *, now: datetime) -> None:
    """End a job because somebody asked for it."""
    end(session, row, state=JobState.CANCELLED, ended_because="cancelled", message=None, now=now)


def _first_in_line(now: datetime, takes: Collection[str] | None, passed_over: Collection[str]) -> Select[JobRow]:
    """Select the job to do next, passing over those that another claim is just taking.

    SQLite has no row locks and ignores FOR UPDATE: there the transaction holds the database's write lock.
    """
    other = aliased(JobRow)
    is_held = exists().where(other.device == JobRow.device, other.seq != JobRow.seq, *_is_live(other, now))
    is_lost = (JobRow.state == JobState.RUNNING) & (JobRow.lease_expires_at <= now)
    query = select(JobRow).where(
        or_(JobRow.state == JobState.QUEUED, is_lost),
        or_(_is_simulated(), ~is_held),
        JobRow.device.not_in(passed_over),
    )
    if takes is not None:
        query = query.where(_is_one_of(takes))
    return query.order_by(JobRow.priority.desc(), JobRow.seq).limit(1).with_for_update(skip_locked=True, of=JobRow)


def _is_live(row: type[JobRow], now: datetime) -> tuple[ColumnElement[bool], ...]:
    return row.state == JobState.RUNNING, row.lease_expires_at > now


def _is_simulated() -> ColumnElement[bool]:
    return func.lower(func.trim(JobRow.device)).startswith(PREFIX, autoescape=True)


def _is_one_of(takes: Collection[str]) -> ColumnElement[bool]:
    named = JobRow.device.in_([name for name in takes if name != SIMULATED_DEVICES])
    return or_(named, _is_simulated()) if SIMULATED_DEVICES in takes else named


def _give_up(session: Session, row: JobRow, *, now: datetime) -> None:
    """End a job that one worker after the other was lost with, instead of losing the next one too."""
    row.num_lost += 1
    message = (
        f"{row.num_lost} workers in a row were lost with it and no trial ended in between; the last was {row.owner}. "
        "See its log, and the kernel's for a lack of memory; then begin anew with what was measured: "
        f"wattfront tune JOB.yaml --after {row.id[:8]}"
    )
    interrupt_running(session, row, reason="worker_lost", now=now)
    end(session, row, state=JobState.FAILED, ended_because="attempts", message=message, now=now)
