"""A stored request with its state, and a worker's claim to it. Knows nothing of SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tuner.request import KnobRange, TuneRequest
from tuner.trial import TrialState


class JobState(StrEnum):
    """How far a job is."""

    QUEUED = "queued"  # waits for a worker
    RUNNING = "running"  # a worker holds it, or held it until it died: see Job.is_interrupted
    FINISHED = "finished"  # ran to its end, with or without a feasible point
    FAILED = "failed"  # could not go on
    CANCELLED = "cancelled"  # someone asked for its end


#: States that no claim leaves.
ENDED = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is known of one job at the moment of asking."""

    #: 32 hexadecimal digits.
    id: str
    #: The request's label for people; may be empty, need not be unique.
    name: str
    #: Never changes: a job that is resumed goes on with the very knobs it began with.
    request: TuneRequest
    state: JobState
    created_at: datetime
    #: First claim; None while it has never been claimed.
    started_at: datetime | None = None
    finished_at: datetime | None = None
    #: trials, minutes, device_hours, joules, plateau, exhausted, no_feasible_point, no_usable_trial, stopped,
    #: cancelled, attempts, hung, error; None until it ended.
    ended_because: str | None = None
    #: The same for people.
    message: str | None = None
    #: The device it ran on; None until a worker opened one.
    device_uuid: str | None = None
    #: The last worker that claimed it; None while it waits.
    owner: str | None = None
    #: Until then the owner is taken to be alive; None unless RUNNING.
    lease_expires_at: datetime | None = None
    #: Someone asked for its end; its worker will see to it.
    cancel_requested: bool = False
    #: Rows by state, repeated attempts included; states without rows are left out.
    num_trials: Mapping[TrialState, int]
    #: Points on its latest front.
    front_size: int = 0
    #: Claims after the first.
    resume_count: int = 0
    #: The job whose results this one begins with, as far as they hold under its own lists of values.
    previous_job_id: str | None = None
    #: The knobs as they are searched on the device; None until a worker found out.
    space: tuple[KnobRange, ...] | None = None
    #: Higher ones are taken first.
    priority: int = 0
    #: Claims whose worker was lost in a row, without a trial that ended in between.
    num_lost: int = 0
    #: Who asked for it: an API key's name, `local`, or `schedule NAME`.
    submitted_by: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED

    def is_interrupted(self, now: datetime) -> bool:
        """Tell whether its worker let the lease run out, so that another may go on with it."""
        return self.state is JobState.RUNNING and self.lease_expires_at is not None and self.lease_expires_at <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker's right to a job, as long as the job carries its token."""

    job_id: str
    #: Who claimed, for people: host and process.
    owner: str
    #: Random and new for every claim, so that a worker that comes back cannot pass for its successor.
    token: str
    lease_expires_at: datetime
    #: Whether someone had asked for the job's end at the last heartbeat.
    cancel_requested: bool = False
