"""Claims and leases: one worker at a time, and another when it is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from db.errors import JobClaimed, LeaseLost
from db.jobs import Claim, JobState, JobStore
from tests.db.factories import Clock, make_request
from tests.db.workers import at_once


def test_a_claim_makes_a_job_run(jobs: JobStore, clock: Clock) -> None:
    """A claimed job runs, says by whom and until when, and is not interrupted before its lease ran out."""
    clock.advance(5)
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    job = jobs.get(claim.job_id)
    assert (JobState.RUNNING, "host:1", clock.now()) == (job.state, job.owner, job.started_at)
    assert claim.lease_expires_at == job.lease_expires_at
    assert not job.is_interrupted(clock.now())
    clock.advance(60)
    assert job.is_interrupted(clock.now())


def test_a_live_lease_keeps_others_away(jobs: JobStore, clock: Clock) -> None:
    """A second worker is refused with the first one's name until the lease has run out."""
    job = jobs.create(make_request())
    jobs.claim(job.id, "host:1", 60)
    clock.advance(59)
    with pytest.raises(JobClaimed, match="is held by host:1 until 2026-03-01T12:01:00") as refused:
        jobs.claim(job.id, "host:2", 60)
    assert refused.value.owner == "host:1"
    assert jobs.claim_next("host:2", 60) is None


def test_an_expired_lease_lets_another_go_on(jobs: JobStore, clock: Clock) -> None:
    """When the lease ran out another worker takes the job; the first one is told at its next heartbeat."""
    job = jobs.create(make_request())
    lost = jobs.claim(job.id, "host:1", 60)
    clock.advance(60)
    claim = jobs.claim(job.id, "host:2", 60)
    assert (jobs.get(job.id).owner, jobs.get(job.id).resume_count) == ("host:2", 1)
    uses: list[Callable[[Claim], object]] = [
        lambda claim: jobs.heartbeat(claim, 60),
        lambda claim: jobs.finish(claim, JobState.FINISHED, "trials"),
        lambda claim: jobs.set_device(claim, "GPU-1"),
        jobs.release,
    ]
    for use in uses:
        with pytest.raises(LeaseLost, match="host:1 no longer holds job"):
            use(lost)
    assert jobs.heartbeat(claim, 60).token == claim.token


def test_a_slow_worker_whose_device_is_gone_stops(jobs: JobStore, clock: Clock) -> None:
    """A heartbeat after the lease ran out is refused when another job got the device: two would measure each other."""
    slow = jobs.claim(jobs.create(make_request(device="gpu0")).id, "host:1", 60)
    clock.advance(61)
    other = jobs.claim(jobs.create(make_request(device="gpu0")).id, "host:2", 60)
    with pytest.raises(LeaseLost):
        jobs.heartbeat(slow, 60)
    assert jobs.heartbeat(other, 60).token == other.token


def test_the_same_worker_claims_anew_after_a_crash(jobs: JobStore, clock: Clock) -> None:
    """A token is new for every claim: a frozen worker cannot pass for its restarted self of the same name."""
    job = jobs.create(make_request())
    frozen = jobs.claim(job.id, "host", 60)
    clock.advance(61)
    assert jobs.claim(job.id, "host", 60).token != frozen.token
    with pytest.raises(LeaseLost):
        jobs.heartbeat(frozen, 60)


def test_a_slow_worker_that_nobody_replaced_goes_on(jobs: JobStore, clock: Clock) -> None:
    """A heartbeat that comes after the lease ran out keeps the job when no other took it, nor its device."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    clock.advance(1000)
    renewed = jobs.heartbeat(claim, 60)
    assert claim.token == renewed.token
    assert clock.now() < renewed.lease_expires_at
    assert jobs.claim_next("host:2", 60) is None


def test_no_two_workers_get_the_same_job(jobs: JobStore, database_url: str, clock: Clock) -> None:
    """Workers that claim at the same time share the jobs out, each job once."""
    made = [jobs.create(make_request(device="simulated:h100-sxm")).id for _ in range(6)]
    claims = at_once(database_url, clock, lambda store: [store.claim_next("host", 60) for _ in range(2)])
    taken = [claim.job_id for pair in claims for claim in pair if claim is not None]
    assert sorted(made) == sorted(taken)


def test_a_released_job_is_first_in_the_queue_again(jobs: JobStore) -> None:
    """A job given back with work left keeps its place, and counts how often it was resumed."""
    first, second = (jobs.create(make_request(device="simulated:h100-sxm")).id for _ in range(2))
    claim = jobs.claim(first, "host:1", 60)
    jobs.release(claim)
    job = jobs.get(first)
    assert (job.state, job.owner, job.lease_expires_at) == (JobState.QUEUED, None, None)
    with pytest.raises(LeaseLost):
        jobs.heartbeat(claim, 60)
    claims = [jobs.claim_next("host:2", 60) for _ in range(2)]
    assert [first, second] == [claim and claim.job_id for claim in claims]
    assert [jobs.get(job_id).resume_count for job_id in (first, second)] == [1, 0]
