"""Who gets which job: order, devices, and the jobs that workers are lost with."""

from __future__ import annotations

import pytest

from db.claims import MAX_LOST
from db.jobs import Claim, JobState, JobStore
from db.trials import TrialStore
from tests.db.factories import Clock, make_point, make_request, make_trial
from tests.db.workers import at_once
from tuner.trial import TrialState

SIMULATED = "simulated:h100-sxm"


def lost(jobs: JobStore, clock: Clock, *, owner: str = "host:1") -> Claim | None:
    """Let a worker take the next job and die with it."""
    claim = jobs.claim_next(owner, 60)
    clock.advance(60)
    return claim


# Order


def test_the_more_urgent_and_then_the_older_job_is_next(jobs: JobStore, clock: Clock) -> None:
    """Priority goes before age, and a job whose worker died has the place that it always had."""
    made = [jobs.create(make_request(device=SIMULATED), priority=priority).id for priority in (0, -1, 5, 0, 5)]
    jobs.claim(made[0], "host:1", 60)
    clock.advance(60)
    claims = [jobs.claim_next("host:2", 60) for _ in range(6)]
    assert [made[2], made[4], made[0], made[3], made[1], None] == [claim and claim.job_id for claim in claims]


# Devices


def test_a_device_has_one_job_at_a_time(jobs: JobStore) -> None:
    """A job waits while another runs on its device, whatever its priority, and those of other devices do not."""
    first = jobs.claim(jobs.create(make_request(device="rack3-gpu0")).id, "host:1", 60)
    waiting = jobs.create(make_request(device="rack3-gpu0"), priority=9)
    other = jobs.create(make_request(device="rack3-gpu1"))
    claim = jobs.claim_next("host:2", 60)
    assert (other.id, None) == (claim and claim.job_id, jobs.claim_next("host:3", 60))
    jobs.finish(first, JobState.FINISHED, "trials")
    claim = jobs.claim_next("host:3", 60)
    assert waiting.id == (claim and claim.job_id)


def test_a_dead_worker_keeps_no_device(jobs: JobStore, clock: Clock) -> None:
    """A lease that ran out holds up no other job of the device; once one has it, the dead one's job waits for it."""
    dead = jobs.claim(jobs.create(make_request(device="gpu0")).id, "host:1", 60)
    urgent = jobs.create(make_request(device="gpu0"), priority=1)
    assert jobs.claim_next("host:2", 60) is None
    clock.advance(60)
    claim = jobs.claim_next("host:2", 60)
    assert claim is not None
    assert (urgent.id, None) == (claim.job_id, jobs.claim_next("host:3", 60))
    jobs.release(claim)
    jobs.request_cancel(urgent.id)
    again = jobs.claim_next("host:3", 60)
    assert dead.job_id == (again and again.job_id)


@pytest.mark.parametrize("device", [SIMULATED, " Simulated:H100-SXM:8"])
def test_a_simulated_device_is_everybodys(jobs: JobStore, device: str) -> None:
    """Any number of jobs run on one simulated device, however its name is written."""
    for _ in range(3):
        jobs.create(make_request(device=device))
    assert None not in [jobs.claim_next("host:1", 60) for _ in range(3)]


def test_workers_that_claim_at_once_share_devices_out(jobs: JobStore, database_url: str, clock: Clock) -> None:
    """Of jobs on two devices, workers that look at the same moment get one each, and no third one gets any."""
    for device in ("gpu0", "gpu1") * 4:
        jobs.create(make_request(device=device))
    claims = at_once(database_url, clock, lambda store: store.claim_next("host", 60), num_workers=6)
    taken = [jobs.get(claim.job_id).request.device for claim in claims if claim is not None]
    assert len(taken) == len(set(taken))
    while (claim := jobs.claim_next("host", 60)) is not None:  # one that met another's lock comes back a second later
        taken.append(jobs.get(claim.job_id).request.device)
    assert sorted(taken) == ["gpu0", "gpu1"]


@pytest.mark.parametrize(
    ("takes", "devices"),
    [
        (None, {"gpu0", "gpu1", SIMULATED, "simulated:h200-sxm"}),
        (("gpu1",), {"gpu1"}),
        (("simulated:*",), {SIMULATED, "simulated:h200-sxm"}),
        (("gpu0", SIMULATED), {"gpu0", SIMULATED}),
        (("gpu0", "simulated:*"), {"gpu0", SIMULATED, "simulated:h200-sxm"}),
        ((), set()),
    ],
)
def test_a_worker_takes_what_it_offers(jobs: JobStore, takes: tuple[str, ...] | None, devices: set[str]) -> None:
    """A worker gets jobs of the devices that it names, `simulated:*` meaning all simulated ones, and no others."""
    for device in ("gpu0", "gpu1", SIMULATED, "simulated:h200-sxm"):
        jobs.create(make_request(device=device))
    taken = set()
    while (claim := jobs.claim_next("host:1", 60, takes=takes)) is not None:
        taken.add(jobs.get(claim.job_id).request.device)
    assert devices == taken


# Lost workers


def test_a_job_that_its_workers_are_lost_with_ends(jobs: JobStore, clock: Clock) -> None:
    """After three workers lost in a row the job has failed, says so and what to do, and the next one is taken."""
    bad, good = (jobs.create(make_request(device=SIMULATED), priority=priority).id for priority in (1, 0))
    for _ in range(MAX_LOST):
        claim = lost(jobs, clock)
        assert bad == (claim and claim.job_id)
    claim = jobs.claim_next("host:2", 60)
    job = jobs.get(bad)
    assert good == (claim and claim.job_id)
    assert (job.state, job.ended_because, job.num_lost) == (JobState.FAILED, "attempts", MAX_LOST)
    assert job.message is not None
    assert job.message.startswith("3 workers in a row were lost with it and no trial ended in between; the last was ")
    assert f"--after {bad[:8]}" in job.message
    assert (None, clock.now()) == (job.lease_expires_at, job.finished_at)


def test_a_trial_that_ended_makes_up_for_lost_workers(jobs: JobStore, trials: TrialStore, clock: Clock) -> None:
    """Only workers lost in a row count: a job that gets on is never given up."""
    job = jobs.create(make_request(device=SIMULATED))
    for number in range(2 * MAX_LOST):
        claim = jobs.claim_next("host:1", 60)
        assert claim is not None
        assert jobs.get(job.id).num_lost == min(number, 1)
        trials.finish(trials.start(claim, number, make_point()), make_trial(number=number))
        assert jobs.get(job.id).num_lost == 0
        clock.advance(60)


def test_a_job_that_is_put_aside_is_not_lost(jobs: JobStore, clock: Clock) -> None:
    """However often workers give a job back in order, that counts for nothing; what was lost before still does."""
    job = jobs.create(make_request(device=SIMULATED))
    lost(jobs, clock)
    for _ in range(2 * MAX_LOST):
        claim = jobs.claim_next("host:1", 60)
        assert claim is not None
        jobs.release(claim)
    assert (jobs.get(job.id).num_lost, jobs.get(job.id).state) == (1, JobState.QUEUED)


def test_a_person_may_go_on_with_a_job_that_was_lost(jobs: JobStore, trials: TrialStore, clock: Clock) -> None:
    """`--resume` is somebody's word: it takes a job that was lost twice, and begins to count anew after a stop."""
    job = jobs.create(make_request(device=SIMULATED))
    for _ in range(MAX_LOST):
        jobs.claim(job.id, "host:1", 60)
        clock.advance(60)
    claim = jobs.claim(job.id, "host:1", 60)
    assert jobs.get(job.id).num_lost == MAX_LOST
    jobs.finish(claim, JobState.CANCELLED, "stopped")
    jobs.claim(job.id, "host:1", 60, reopen=True)
    assert jobs.get(job.id).num_lost == 0


def test_the_point_of_a_lost_job_has_failed(jobs: JobStore, trials: TrialStore, clock: Clock) -> None:
    """A job given up keeps every attempt, with how each ended, and none of them runs on."""
    job = jobs.create(make_request(device=SIMULATED))
    for number in (0, 0, 1):
        claim = jobs.claim_next("host:1", 60)
        assert claim is not None
        trials.start(claim, number, make_point())
        clock.advance(60)
    assert jobs.claim_next("host:2", 60) is None
    ended = [(trial.number, trial.attempt, trial.state, trial.reason) for trial in trials.list(job.id)]
    assert ended == [
        (0, 1, TrialState.INTERRUPTED, "worker_lost"),
        (0, 2, TrialState.FAILED, "interrupted_twice"),
        (1, 1, TrialState.INTERRUPTED, "worker_lost"),
    ]
