"""The life of a job: created once, claimed by one, ended once."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, update

from db.database import Database
from db.devices import DeviceStore
from db.errors import AmbiguousJob, DeviceNotStored, JobEnded, JobNotFound, LeaseLost
from db.jobs import JobState, JobStore
from db.service_tables import EventRow
from db.tables import JobRow
from db.trials import TrialStore
from tests.db.factories import START, Clock, make_device, make_point, make_request, make_trial
from tests.db.workers import at_once
from tuner.request import KnobRange
from tuner.trial import TrialState


def test_a_job_is_stored_as_it_was_asked_for(jobs: JobStore) -> None:
    """A created job waits, knows nothing yet, and is found with its request unchanged."""
    job = jobs.create(make_request())
    assert job == jobs.get(job.id)
    assert (make_request(), "nightly", JobState.QUEUED, START) == (job.request, job.name, job.state, job.created_at)
    assert (
        job.started_at,
        job.owner,
        job.lease_expires_at,
        job.resume_count,
        job.num_trials,
        job.front_size,
    ) == (None, None, None, 0, {}, 0)


def test_a_repeated_key_makes_one_job(jobs: JobStore, database_url: str, clock: Clock) -> None:
    """Three restarts that create the same keyed job leave one row, and each gets it (BUG-25)."""
    job = jobs.create(make_request(), idempotency_key="nightly/2026-03-01")
    for _ in range(3):
        restarted = Database(database_url)
        assert job == JobStore(restarted, clock.now).create(make_request(), idempotency_key="nightly/2026-03-01")
        restarted.dispose()
    assert [job] == jobs.list(limit=10)
    assert job != jobs.create(make_request(), idempotency_key="nightly/2026-03-02")


def test_a_job_is_found_by_its_key(jobs: JobStore) -> None:
    """The key tells which job it made; one that made none tells nothing."""
    job = jobs.create(make_request(), idempotency_key="one")

    assert jobs.with_key("one") == job
    assert jobs.with_key("other") is None


def test_a_repeated_key_keeps_the_first_request(jobs: JobStore) -> None:
    """A job goes on with the choices it began with: changed knobs under the same key do not change it (BUG-14)."""
    changed = make_request(knobs=(KnobRange(name="max_batch", values=(64, 8, 16, 32)),))
    jobs.create(make_request(), idempotency_key="k")
    job = jobs.create(changed, idempotency_key="k")
    assert make_request() == job.request
    assert changed != job.request


def test_a_new_version_knows_the_job_before_it(jobs: JobStore) -> None:
    """BUG-14: a job that goes on from another one under changed lists is a job of its own, and names the other."""
    first = jobs.create(make_request())
    changed = make_request(knobs=(KnobRange(name="max_batch", values=(8, 16, 32, 64)),))
    claim = jobs.create_claimed(changed, "host:1", 60, previous_job_id=first.id[:8])
    assert (changed, first.id) == (jobs.get(claim.job_id).request, jobs.get(claim.job_id).previous_job_id)
    assert (make_request(), None) == (jobs.get(first.id).request, jobs.get(first.id).previous_job_id)
    with pytest.raises(JobNotFound):
        jobs.create_claimed(changed, "host:1", 60, previous_job_id="none such")


def test_the_values_that_are_searched_are_kept(jobs: JobStore) -> None:
    """BUG-14: which values a device offered stands with the job, in their order, once a worker found out."""
    claim = jobs.create_claimed(make_request(), "host:1", 60)
    assert jobs.get(claim.job_id).space is None
    space = (KnobRange(name="sm_clock_cap_mhz", values=(1980, 1395)), KnobRange(name="precision", values=("fp8",)))
    jobs.set_space(claim, space)
    assert space == jobs.get(claim.job_id).space


def test_a_key_used_by_several_at_once_makes_one_job(jobs: JobStore, database_url: str, clock: Clock) -> None:
    """Clients that post the same key at the same time all get the same job."""
    created = at_once(database_url, clock, lambda store: store.create(make_request(), idempotency_key="k").id)
    assert {jobs.list(limit=10)[0].id} == set(created)
    assert len(jobs.list(limit=10)) == 1


def test_a_job_is_found_by_the_start_of_its_id(jobs: JobStore) -> None:
    """Four characters are enough when they fit one job, in either case; fewer, or wildcards, find nothing."""
    job = jobs.create(make_request())
    assert job == jobs.get(job.id[:4])
    assert job == jobs.get(job.id[:8].upper())
    for unknown in (job.id[:3], "", "%%%%", "____", "no-such-job"):
        with pytest.raises(JobNotFound, match="give an id from the list"):
            jobs.get(unknown)


def test_an_ambiguous_id_names_the_candidates(database: Database, jobs: JobStore) -> None:
    """A start that fits several jobs is refused with their ids; a full id always finds its job."""
    ids = ["abcd" + digit * 28 for digit in "12"]
    for job_id in ids:
        job = jobs.create(make_request())
        with database.transaction() as session:
            session.execute(delete(EventRow).where(EventRow.job_id == job.id))
            session.execute(update(JobRow).where(JobRow.id == job.id).values(id=job_id))
    with pytest.raises(AmbiguousJob) as refused:
        jobs.get("abcd")
    assert tuple(ids) == refused.value.candidates
    assert ids[0] == jobs.get(ids[0]).id == jobs.get("abcd1").id


def test_jobs_are_listed_newest_first(jobs: JobStore) -> None:
    """The list begins with the newest, even within one tick of the clock, and goes on from any job of it."""
    made = [jobs.create(make_request(name=str(i))).id for i in range(5)]
    jobs.claim(made[0], "worker", 60)
    assert made[:2:-1] == [job.id for job in jobs.list(limit=2)]
    assert made[2::-1] == [job.id for job in jobs.list(limit=9, before=made[3])]
    assert made[:1] == [job.id for job in jobs.list(limit=9, state=JobState.RUNNING)]


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.FAILED, JobState.CANCELLED])
def test_a_job_ends_once(jobs: JobStore, clock: Clock, state: JobState) -> None:
    """An ended job says when and why, is never claimed again, and cannot be ended again."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    clock.advance(10)
    jobs.finish(claim, state, "no_feasible_point", "nothing meets ttft_p99_ms<=1")
    job = jobs.get(claim.job_id)
    assert (state, "no_feasible_point", "nothing meets ttft_p99_ms<=1") == (job.state, job.ended_because, job.message)
    assert (clock.now(), None, True) == (job.finished_at, job.lease_expires_at, job.has_ended)
    assert jobs.claim_next("host:2", 60) is None
    with pytest.raises(JobEnded, match=f"is already {state}"):
        jobs.claim(job.id, "host:2", 60)
    with pytest.raises(LeaseLost):
        jobs.finish(claim, JobState.FINISHED, "trials")
    assert job == jobs.request_cancel(job.id)


def test_a_job_cannot_end_as_running(jobs: JobStore) -> None:
    """Ending a job in a state that is no end is refused."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    with pytest.raises(ValueError, match="cannot end as queued; choose cancelled, failed, finished"):
        jobs.finish(claim, JobState.QUEUED, "trials")


def test_a_waiting_job_is_cancelled_at_once(jobs: JobStore) -> None:
    """Cancelling a queued job ends it."""
    job = jobs.request_cancel(jobs.create(make_request()).id)
    assert (job.state, job.ended_because, job.finished_at) == (JobState.CANCELLED, "cancelled", START)


def test_a_running_job_is_told_to_stop(jobs: JobStore) -> None:
    """Cancelling a running job reaches its worker with the next heartbeat; releasing it then ends it."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    assert not claim.cancel_requested
    assert JobState.RUNNING is jobs.request_cancel(claim.job_id).state
    assert jobs.heartbeat(claim, 60).cancel_requested
    jobs.release(claim)
    assert JobState.CANCELLED is jobs.get(claim.job_id).state


def test_a_job_whose_worker_died_is_cancelled_at_once(jobs: JobStore, trials: TrialStore, clock: Clock) -> None:
    """Nobody is left to stop an interrupted job, so cancelling ends it with its running trial."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    started = trials.start(claim, 0, make_point())
    clock.advance(61)
    job = jobs.request_cancel(claim.job_id)
    assert (job.state, job.num_trials) == (JobState.CANCELLED, {TrialState.INTERRUPTED: 1})
    assert not trials.finish(started, make_trial())


@pytest.mark.parametrize("unknown", ["0" * 32, "abcd"])
def test_an_unknown_job_cannot_be_used(jobs: JobStore, unknown: str) -> None:
    """Claiming or cancelling a job that is not there says so, and never goes by the start of an id."""
    jobs.create(make_request())
    with pytest.raises(JobNotFound):
        jobs.claim(unknown, "host:1", 60)
    with pytest.raises(JobNotFound):
        jobs.request_cancel(unknown)


def test_a_job_knows_its_device(jobs: JobStore, devices: DeviceStore) -> None:
    """A device that was seen can be noted for a job; one that was not is refused by name."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    with pytest.raises(DeviceNotStored, match="device GPU-1 was never stored"):
        jobs.set_device(claim, "GPU-1")
    devices.seen(make_device(), ())
    jobs.set_device(claim, "GPU-1")
    assert jobs.get(claim.job_id).device_uuid == "GPU-1"


def test_trials_are_counted_by_state(jobs: JobStore, trials: TrialStore) -> None:
    """A job and a list of jobs show how many trials there are in each state."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    other = jobs.create(make_request())
    for number, state in enumerate((TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAILED)):
        trials.finish(trials.start(claim, number, make_point()), make_trial(number=number, state=state))
    trials.start(claim, 3, make_point())
    counts = {TrialState.COMPLETE: 2, TrialState.FAILED: 1, TrialState.RUNNING: 1}
    assert counts == jobs.get(claim.job_id).num_trials
    assert [{}, counts] == [job.num_trials for job in jobs.list(limit=2)]
    assert other == jobs.get(other.id)


def test_a_cancelled_job_whose_worker_dies_is_still_ended(jobs: JobStore, clock: Clock) -> None:
    """When a worker dies before it saw the request to stop, its successor is told with the claim."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    jobs.request_cancel(claim.job_id)
    clock.advance(60)
    successor = jobs.claim_next("host:2", 60)
    assert successor is not None
    assert successor.cancel_requested


def test_a_stopped_job_is_reopened_by_hand_only(jobs: JobStore) -> None:
    """A cancelled job is claimed again with `reopen`, as if it had never ended; no worker takes it by itself."""
    job = jobs.create(make_request())
    jobs.finish(jobs.claim(job.id, "a", 30), JobState.CANCELLED, "stopped", "by hand")
    assert jobs.claim_next("b", 30) is None
    with pytest.raises(JobEnded):
        jobs.claim(job.id, "b", 30)

    jobs.claim(job.id, "b", 30, reopen=True)

    again = jobs.get(job.id)
    assert (again.state, again.ended_because, again.message, again.finished_at) == (JobState.RUNNING, None, None, None)
    assert again.resume_count == 1


def test_a_finished_job_is_never_reopened(jobs: JobStore) -> None:
    """`reopen` is for cancelled jobs: a finished one has nothing left to do."""
    job = jobs.create(make_request())
    jobs.finish(jobs.claim(job.id, "a", 30), JobState.FINISHED, "trials")
    with pytest.raises(JobEnded, match="finished"):
        jobs.claim(job.id, "b", 30, reopen=True)


def test_the_lease_of_a_dead_owner_ends_at_once(jobs: JobStore) -> None:
    """An owner that is known to be dead loses its lease without waiting; the others keep theirs."""
    dead, alive = (jobs.create(make_request(device="simulated:h100-sxm")) for _ in range(2))
    jobs.claim(dead.id, "dead", 1000)
    jobs.claim(alive.id, "alive", 1000)

    assert jobs.expire(lambda owner: owner == "dead") == 1

    claim = jobs.claim_next("next", 30)
    assert claim is not None
    assert claim.job_id == dead.id
    assert jobs.claim_next("next", 30) is None
