"""A job as a line of a page: its public form with what it found until now. Knows nothing of a page's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from api import schemas
from api.records import job_out
from api.stores import Stores
from db.job_lists import ListedJob
from tuner.knobs import SIMULATED

#: Browsers keep six connections to a server for all of their tabs, and each stream of events takes one.
MAX_FOLLOWED = 2
#: Attempts that have not ended, or that will be made again.
_OPEN = ("running", "interrupted")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """What a line of a list shows of a job."""

    job: schemas.JobOut
    is_simulated: bool
    #: Whether its energy figures come from a formula; None without figures.
    is_estimate: bool | None
    num_done: int
    best_tok_per_j: float | None
    #: The best over the default point, with its interval as far as that is known.
    gain: schemas.EstimateOut | None
    #: Whether figures are those of a job that ran to its end, over all windows of a point.
    is_final: bool
    #: From its first claim to its end, or until now; None while it waits.
    lasted_s: float | None

    @property
    def title(self) -> str:
        """What it is called."""
        return self.job.name or f"Job {self.job.id[:8]}"


def job_line(listed: ListedJob, now: datetime) -> JobLine:
    """Return a job as a line."""
    job = job_out(listed.job, now)
    end = job.finished_at or now
    return JobLine(
        job=job,
        is_simulated=job.engine == SIMULATED,
        is_estimate=listed.is_estimate,
        num_done=sum(count for state, count in job.trials.items() if state not in _OPEN),
        best_tok_per_j=listed.best_tok_per_j,
        gain=None
        if listed.gain is None
        else schemas.EstimateOut(value=listed.gain, low=listed.gain_low, high=listed.gain_high),
        is_final=listed.is_final,
        lasted_s=None if job.started_at is None else (end - job.started_at).total_seconds(),
    )


def follow_words(stores: Stores, job_ids: Sequence[str]) -> str:
    """Return the jobs that a page follows, each with its last event, as static/js/live.mjs reads them."""
    return " ".join(f"{job_id}:{stores.events.last_id(job_id)}" for job_id in job_ids[:MAX_FOLLOWED])
