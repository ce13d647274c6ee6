"""Jobs: create, find, claim under a lease, keep, end, cancel.

A claim is a random token in the job's row: whoever carries it may write, nobody else. Leases are judged by the clock
that is passed in, so workers on several machines need roughly equal clocks. Knows nothing of how a job is run.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db.claims import cancel, end, has_device, take, take_next
from db.database import Database
from db.errors import AmbiguousJob, DeviceNotStored, JobClaimed, JobEnded, JobNotFound, LeaseLost
from db.events import tell_job
from db.job import ENDED, Claim, Job, JobState
from db.job_filter import JobFilter
from db.leases import held_job, interrupt_running
from db.records import claim_of, job_of, request_to_json, space_to_json
from db.tables import DeviceRow, FrontRow, JobRow, TrialRow
from tuner.request import KnobRange, TuneRequest
from tuner.trial import TrialState

__all__ = ["Claim", "Job", "JobState", "JobStore"]

MIN_PREFIX = 4
#: Candidates that an ambiguous id names at most.
MAX_CANDIDATES = 5
#: Of the columns that lists filter by.
MAX_NAME = 300
MAX_ENGINE = 50
EVERY_JOB = JobFilter()
#: Who asks on the command line.
LOCAL = "local"

Jobs = list[Job]


class JobStore:
    """The jobs of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def create(
        self,
        request: TuneRequest,
        *,
        idempotency_key: str | None = None,
        priority: int = 0,
        submitted_by: str | None = None,
        previous_job_id: str | None = None,
    ) -> Job:
        """Store a request as a queued job; those of higher priority are taken first.

        It begins with the results of the previous job, where one is given by its whole id. The same key again returns
        the job it first made, whatever the request now says; compare `job.request` to notice.
        """
        try:
            with self._database.transaction() as session:
                row = _with_key(session, idempotency_key)
                if row is None:
                    row = add_job(
                        session,
                        request,
                        now=self._now(),
                        idempotency_key=idempotency_key,
                        priority=priority,
                        submitted_by=submitted_by,
                        previous_job_id=previous_job_id,
                    )
                return jobs_of(session, [row])[0]
        except IntegrityError:  # on PostgreSQL another process may insert the key after we looked
            with self._database.read() as session:
                row = _with_key(session, idempotency_key)
                if row is None:
                    raise
                return jobs_of(session, [row])[0]

    def with_key(self, idempotency_key: str) -> Job | None:
        """Return the job that a key made, if there is one."""
        with self._database.read() as session:
            row = _with_key(session, idempotency_key)
            return None if row is None else jobs_of(session, [row])[0]

    def get(self, job_id: str) -> Job:
        """Find a job by its id, or by the first 4 or more characters of it. Raises JobNotFound, AmbiguousJob."""
        with self._database.read() as session:
            return jobs_of(session, [find_job(session, job_id)])[0]

    def list(
        self,
        *,
        limit: int,
        state: JobState | None = None,
        before: str | None = None,
        only: JobFilter = EVERY_JOB,
    ) -> Jobs:
        """Return at most `limit` jobs, newest first; those created before the job `before`, to go on with a list."""
        with self._database.read() as session:
            query = select(JobRow).where(*only.conditions()).order_by(JobRow.seq.desc()).limit(limit)
            if state is not None:
                query = query.where(JobRow.state == state)
            if before is not None:
                query = query.where(JobRow.seq < find_job(session, before).seq)
            return jobs_of(session, session.scalars(query).all())

    def create_claimed(
        self, request: TuneRequest, owner: str, lease_s: float, *, previous_job_id: str | None = None
    ) -> Claim:
        """Store a request as a job that is this owner's from the start: no worker can take it in between.

        It begins with the results of the previous job, where one is given. Raises JobNotFound.
        """
        with self._database.transaction() as session:
            now = self._now()
            previous_id = None if previous_job_id is None else find_job(session, previous_job_id).id
            row = add_job(session, request, now=now, previous_job_id=previous_id, submitted_by=LOCAL)
            return take(session, row, owner=owner, lease_s=lease_s, now=now)

    def claim(self, job_id: str, owner: str, lease_s: float, *, reopen: bool = False) -> Claim:
        """Take a job that is queued or whose lease ran out, and with `reopen` one that was cancelled.

        Raises JobNotFound, JobClaimed, JobEnded.
        """
        with self._database.transaction() as session:
            row = _locked(session, job_id)
            now = self._now()
            if row.state in ENDED and not (reopen and row.state == JobState.CANCELLED):
                raise JobEnded(job_id, state=row.state)
            if row.owner is not None and row.lease_expires_at is not None and row.lease_expires_at > now:
                raise JobClaimed(job_id, owner=row.owner, lease_expires_at=row.lease_expires_at)
            return take(session, row, owner=owner, lease_s=lease_s, now=now)

    def claim_next(self, owner: str, lease_s: float, *, takes: Collection[str] | None = None) -> Claim | None:
        """Take the first job in line, else nothing: those of higher priority first, then the older ones.

        `takes` are names of devices, `simulated:*` for all simulated ones; None takes everything. No two workers get
        one job, nor two jobs of one device, unless that is simulated; a name is taken to mean one device, whichever
        machine has it. A job that three workers in a row were lost with ends as FAILED instead.
        """
        with self._database.transaction() as session:
            return take_next(session, owner=owner, lease_s=lease_s, now=self._now(), takes=takes)

    def expire(self, is_dead: Callable[[str], bool]) -> int:
        """Let the leases of owners that are known to be dead run out now; return how many.

        A lease protects against what cannot be known; a worker on this machine whose process is gone needs no wait.
        """
        with self._database.transaction() as session:
            now = self._now()
            held = select(JobRow).where(JobRow.state == JobState.RUNNING, JobRow.lease_expires_at > now)
            # What another has locked is just being written by its owner, or looked at by another worker like this.
            rows = session.scalars(held.with_for_update(skip_locked=True))
            dead = [row for row in rows if row.owner and is_dead(row.owner)]
            for row in dead:
                row.lease_expires_at = now
            return len(dead)

    def heartbeat(self, claim: Claim, lease_s: float) -> Claim:
        """Keep a claim for `lease_s` more; the result says whether an end was asked for.

        Raises LeaseLost, also when the lease had run out and the device went to another job.
        """
        with self._database.transaction() as session:
            row, now = held_job(session, claim), self._now()
            has_run_out = row.lease_expires_at is None or row.lease_expires_at <= now
            if has_run_out and not has_device(session, row, now=now):
                raise LeaseLost(claim.job_id, owner=claim.owner)
            row.lease_expires_at = now + timedelta(seconds=lease_s)
            return claim_of(row)

    def set_device(self, claim: Claim, device_uuid: str) -> None:
        """Note the device that a job runs on. Raises LeaseLost, DeviceNotStored."""
        with self._database.transaction() as session:
            row = held_job(session, claim)
            if session.get(DeviceRow, device_uuid) is None:
                raise DeviceNotStored(device_uuid)
            row.device_uuid = device_uuid

    def set_space(self, claim: Claim, space: Sequence[KnobRange]) -> None:
        """Note the knobs that a job searches, as its device takes them. Raises LeaseLost."""
        with self._database.transaction() as session:
            held_job(session, claim).space = space_to_json(space)

    def finish(self, claim: Claim, state: JobState, ended_because: str, message: str | None = None) -> None:
        """End a job as FINISHED, FAILED or CANCELLED. Raises LeaseLost."""
        if state not in ENDED:
            raise ValueError(f"a job cannot end as {state}; choose {', '.join(sorted(ENDED))}")
        with self._database.transaction() as session:
            row = held_job(session, claim)
            end(session, row, state=state, ended_because=ended_because, message=message, now=self._now())

    def release(self, claim: Claim) -> None:
        """Put a job with work left back into the queue, or end it if that was asked for. Raises LeaseLost."""
        with self._database.transaction() as session:
            row = held_job(session, claim)
            if row.cancel_requested:
                cancel(session, row, now=self._now())
                return
            interrupt_running(session, row, reason="released", now=self._now())
            row.state = JobState.QUEUED
            row.owner = row.token = row.lease_expires_at = None
            tell_job(session, row, self._now())

    def request_cancel(self, job_id: str) -> Job:
        """Ask for a job's end: at once when no live worker holds it, else at its worker's next heartbeat.

        Nothing happens to a job that has ended. Raises JobNotFound.
        """
        with self._database.transaction() as session:
            row = _locked(session, job_id)
            if row.state not in ENDED:
                row.cancel_requested = True
                if row.lease_expires_at is None or row.lease_expires_at <= self._now():
                    cancel(session, row, now=self._now())
            session.flush()
            return jobs_of(session, [row])[0]


def add_job(
    session: Session,
    request: TuneRequest,
    *,
    now: datetime,
    idempotency_key: str | None = None,
    priority: int = 0,
    submitted_by: str | None = None,
    previous_job_id: str | None = None,
) -> JobRow:
    """Add a queued job inside the caller's transaction, with the event that tells of it."""
    row = JobRow(
        id=uuid.uuid4().hex,
        idempotency_key=idempotency_key,
        name=request.name,
        request=request_to_json(request),
        state=JobState.QUEUED,
        created_at=now,
        cancel_requested=False,
        resume_count=0,
        model=request.model[:MAX_NAME],
        engine=request.engine[:MAX_ENGINE],
        device=request.device[:MAX_NAME],
        priority=priority,
        num_lost=0,
        submitted_by=submitted_by,
        previous_job_id=previous_job_id,
    )
    session.add(row)
    session.flush()
    tell_job(session, row, now)
    return row


def _with_key(session: Session, idempotency_key: str | None) -> JobRow | None:
    if idempotency_key is None:
        return None
    return session.scalar(select(JobRow).where(JobRow.idempotency_key == idempotency_key))


def find_job(session: Session, job_id: str) -> JobRow:
    """Return a job's row by its id or the first 4 characters or more of it. Raises JobNotFound, AmbiguousJob."""
    if not job_id.isalnum():  # PostgreSQL refuses some of what may stand in an address
        raise JobNotFound(job_id)
    row = session.scalar(select(JobRow).where(JobRow.id == job_id))
    if row is not None:
        return row
    if len(job_id) < MIN_PREFIX:
        raise JobNotFound(job_id)
    fits = select(JobRow).where(JobRow.id.startswith(job_id.lower(), autoescape=True)).order_by(JobRow.id)
    rows = session.scalars(fits.limit(MAX_CANDIDATES)).all()
    if not rows:
        raise JobNotFound(job_id)
    if len(rows) > 1:
        raise AmbiguousJob(job_id, [row.id for row in rows])
    return rows[0]


def _locked(session: Session, job_id: str) -> JobRow:
    row = session.scalar(select(JobRow).where(JobRow.id == job_id).with_for_update())
    if row is None:
        raise JobNotFound(job_id)
    return row


def jobs_of(session: Session, rows: Sequence[JobRow]) -> Jobs:
    """Turn rows into jobs, counting trials and front points of all of them in two queries."""
    ids = [row.id for row in rows]
    num_trials: dict[str, dict[TrialState, int]] = defaultdict(dict)
    by_state = select(TrialRow.job_id, TrialRow.state, func.count()).where(TrialRow.job_id.in_(ids))
    for job_id, state, count in session.execute(by_state.group_by(TrialRow.job_id, TrialRow.state)):
        num_trials[job_id][TrialState(state)] = count
    latest = select(func.max(FrontRow.id)).where(FrontRow.job_id.in_(ids)).group_by(FrontRow.job_id)
    sizes = session.execute(select(FrontRow.job_id, FrontRow.num_points).where(FrontRow.id.in_(latest)))
    front_sizes = {row.job_id: row.num_points for row in sizes}
    return [job_of(row, num_trials=num_trials.get(row.id, {}), front_size=front_sizes.get(row.id, 0)) for row in rows]
