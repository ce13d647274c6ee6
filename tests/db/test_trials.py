"""Trials: a row before measuring, its outcome exactly once, and what a crash leaves."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from db.database import Database
from db.errors import LeaseLost, RecordNotStorable, TrialNotStored
from db.jobs import Claim, JobState, JobStore
from db.trials import TrialStore
from tests.db.factories import REPOSITORY, START, Clock, make_measurement, make_point, make_request, make_trial
from tuner.measurement import Estimate
from tuner.trial import OUTCOMES, TrialRole, TrialState

DIES_IN_ITS_SECOND_TRIAL = """
import os, signal, sys
from datetime import datetime
from db.database import Database
from db.jobs import JobStore
from db.trials import TrialStore
from tests.db.factories import Clock, make_point, make_trial

database = Database(sys.argv[1])
trials = TrialStore(database, Clock().now)
claim = JobStore(database, Clock().now).claim(sys.argv[2], "killed", 60)
trials.finish(trials.start(claim, 0, make_point(8)), make_trial(point=make_point(8)))
trials.start(claim, 1, make_point(16))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def claim(jobs: JobStore) -> Claim:
    return jobs.claim(jobs.create(make_request()).id, "host:1", 60)


def test_a_trial_is_stored_before_it_is_measured(trials: TrialStore, claim: Claim, clock: Clock) -> None:
    """A started trial is there, running, for everyone to see."""
    clock.advance(3)
    started = trials.start(claim, 0, make_point())
    running = make_trial(state=TrialState.RUNNING, measurement=None, started_at=clock.now(), finished_at=None)
    assert [running] == trials.list(claim.job_id)
    assert (0, 1, make_point(), clock.now()) == (started.number, started.attempt, started.point, started.started_at)


def test_what_a_trial_was_for_and_what_it_cost_is_kept(trials: TrialStore, claim: Claim) -> None:
    """Role, launch, device time, device energy and the origin of taken-over figures come back as they were stored."""
    baseline = make_trial(role=TrialRole.BASELINE, session="3", device_s=62.5, device_j=9_000.0)
    assert trials.finish(trials.start(claim, 0, make_point(), role=TrialRole.BASELINE), baseline)
    reused = make_trial(number=1, device_s=0.0, device_j=0.0, reused_from="f" * 32 + "/7")
    assert trials.finish(trials.start(claim, 1, make_point()), reused)
    assert [baseline, reused] == trials.list(claim.job_id)


def test_the_role_is_kept_while_a_trial_runs_and_when_it_is_cut_short(
    jobs: JobStore, trials: TrialStore, claim: Claim
) -> None:
    """A repeat is known as one while it runs and when it was cut short, and is not tried again as something else."""
    trials.start(claim, 0, make_point(), role=TrialRole.FINALIST)
    assert [trial.role for trial in trials.list(claim.job_id)] == [TrialRole.FINALIST]
    jobs.release(claim)
    assert trials.to_retry(claim.job_id) == ()
    assert [trial.role for trial in trials.list(claim.job_id)] == [TrialRole.FINALIST]


@pytest.mark.parametrize("state", sorted(OUTCOMES))
def test_an_outcome_is_stored_with_its_measurement(trials: TrialStore, claim: Claim, state: TrialState) -> None:
    """A finished trial comes back equal, with every figure, in every outcome."""
    trial = make_trial(state=state, reason="sla:ttft_p99_ms", detail="ttft_p99_ms is 612 ms, allowed are 500 ms")
    assert trials.finish(trials.start(claim, 0, make_point()), trial)
    assert [trial] == trials.list(claim.job_id) == trials.history(claim.job_id)


def test_a_failed_trial_needs_no_measurement(trials: TrialStore, claim: Claim) -> None:
    """A trial with nothing to show is stored without figures, never with zeros."""
    trial = make_trial(state=TrialState.FAILED, reason="engine_died", measurement=None)
    trials.finish(trials.start(claim, 0, make_point()), trial)
    assert [trial] == trials.history(claim.job_id)


def test_a_trial_without_an_end_gets_the_time_of_storing(trials: TrialStore, claim: Claim, clock: Clock) -> None:
    """An outcome that does not say when it came about takes the moment at which it is stored."""
    started = trials.start(claim, 0, make_point())
    clock.advance(7)
    trials.finish(started, make_trial(finished_at=None))
    assert [START + timedelta(seconds=7)] == [trial.finished_at for trial in trials.list(claim.job_id)]


def test_figures_that_people_filter_by_are_columns(database: Database, trials: TrialStore, claim: Claim) -> None:
    """Energy, rate and power can be queried without reading JSON, beside their scope and method."""
    trials.finish(trials.start(claim, 0, make_point()), make_trial())
    columns = "tok_per_j, output_tok_s, mean_power_w, window_s, energy_j, scope, method"
    with database.read() as session:
        row = session.execute(text(f"SELECT {columns} FROM measurements WHERE tok_per_j > 1.5")).one()
    assert tuple(row) == (2.0, 20.0, 10.0, 30.0, 300.0, "gpu", "counter")


def test_an_outcome_is_stored_once(trials: TrialStore, claim: Claim) -> None:
    """A second outcome for the same trial is dropped with a log line, and the first one stays."""
    started = trials.start(claim, 0, make_point())
    assert trials.finish(started, make_trial())
    with capture_logs() as logs:
        assert not trials.finish(started, make_trial(state=TrialState.FAILED, measurement=None))
    assert [("late_result_dropped", claim.job_id, 0, 1)] == [
        (line["event"], line["job"], line["number"], line["attempt"]) for line in logs
    ]
    assert [make_trial()] == trials.list(claim.job_id)


def test_an_outcome_that_cannot_be_stored_leaves_the_trial_running(trials: TrialStore, claim: Claim) -> None:
    """Outcome and measurement are one transaction: a figure that is refused leaves no half of them."""
    started = trials.start(claim, 0, make_point())
    broken = make_measurement(tok_per_j=Estimate(float("inf")))
    with pytest.raises(RecordNotStorable, match=r"measurement\.tok_per_j\.value is inf"):
        trials.finish(started, make_trial(measurement=broken))
    assert [trial.state for trial in trials.list(claim.job_id)] == [TrialState.RUNNING]
    assert trials.finish(started, make_trial())


def test_an_outcome_must_be_of_what_was_started(trials: TrialStore, claim: Claim) -> None:
    """An outcome of another point or number, or one that is still running, is refused."""
    started = trials.start(claim, 0, make_point(8))
    for other in (make_trial(point=make_point(16)), make_trial(number=1), make_trial(role=TrialRole.FINALIST)):
        with pytest.raises(TrialNotStored, match="is not what was started as 0"):
            trials.finish(started, other)
    with pytest.raises(RecordNotStorable, match="is still running"):
        trials.finish(started, make_trial(state=TrialState.RUNNING))


def test_only_the_claim_that_holds_the_job_starts_trials(
    jobs: JobStore, trials: TrialStore, claim: Claim, clock: Clock
) -> None:
    """A worker that lost its job, or whose job ended, cannot start a trial in it."""
    clock.advance(61)
    successor = jobs.claim(claim.job_id, "host:2", 60)
    with pytest.raises(LeaseLost):
        trials.start(claim, 0, make_point())
    jobs.finish(successor, JobState.FINISHED, "trials")
    with pytest.raises(LeaseLost):
        trials.start(successor, 0, make_point())
    assert trials.list(claim.job_id) == []


def test_a_killed_worker_loses_one_trial_which_is_tried_again(
    database_url: str, jobs: JobStore, trials: TrialStore, clock: Clock
) -> None:
    """After SIGKILL in trial 2 of 4 that trial is interrupted, retried once, and four trials count in the end."""
    job_id = jobs.create(make_request()).id
    command = [sys.executable, "-c", DIES_IN_ITS_SECOND_TRIAL, database_url, job_id]
    killed = subprocess.run(command, cwd=REPOSITORY, check=False)
    assert killed.returncode == -9
    assert jobs.get(job_id).num_trials == {TrialState.COMPLETE: 1, TrialState.RUNNING: 1}
    clock.advance(61)
    assert jobs.get(job_id).is_interrupted(clock.now())
    claim = jobs.claim_next("successor", 60)
    assert claim is not None
    assert ((1, make_point(16)),) == trials.to_retry(job_id)
    for number, point in (*trials.to_retry(job_id), (2, make_point(32)), (3, make_point(64))):
        assert trials.finish(trials.start(claim, number, point), make_trial(number=number, point=point))
    assert trials.to_retry(job_id) == ()
    assert [(t.number, t.attempt) for t in trials.history(job_id)] == [(0, 1), (1, 2), (2, 1), (3, 1)]
    assert jobs.get(job_id).num_trials == {TrialState.COMPLETE: 4, TrialState.INTERRUPTED: 1}


def test_a_frozen_workers_late_result_is_dropped(
    jobs: JobStore, trials: TrialStore, claim: Claim, clock: Clock
) -> None:
    """A worker frozen past its lease finds its result dropped, and the retry's result is the one that counts."""
    late = trials.start(claim, 0, make_point())
    clock.advance(61)
    successor = jobs.claim(claim.job_id, "host:2", 60)
    retry = trials.start(successor, 0, make_point())
    with capture_logs() as logs:
        assert not trials.finish(late, make_trial(detail="late"))
    assert [line["event"] for line in logs] == ["late_result_dropped"]
    assert trials.finish(retry, make_trial(detail="in time"))
    attempts = [(trial.attempt, trial.state, trial.detail) for trial in trials.list(claim.job_id)]
    assert attempts[1] == (2, TrialState.COMPLETE, "in time")
    assert attempts[0][:2] == (1, TrialState.INTERRUPTED)
    assert [trial.detail for trial in trials.history(claim.job_id)] == ["in time"]


def test_a_point_that_is_interrupted_twice_has_failed(
    jobs: JobStore, trials: TrialStore, claim: Claim, clock: Clock
) -> None:
    """A point that takes two workers down is not tried a third time, and counts as failed."""
    for owner in ("host:2", "host:3"):
        trials.start(claim, 0, make_point())
        clock.advance(61)
        claim = jobs.claim(claim.job_id, owner, 60)
    attempts = [(trial.attempt, trial.state, trial.reason) for trial in trials.list(claim.job_id)]
    assert attempts == [(1, TrialState.INTERRUPTED, "worker_lost"), (2, TrialState.FAILED, "interrupted_twice")]
    assert trials.to_retry(claim.job_id) == ()
    assert [trial.attempt for trial in trials.history(claim.job_id)] == [2]


def test_a_worker_may_say_itself_that_it_was_interrupted(jobs: JobStore, trials: TrialStore, claim: Claim) -> None:
    """An interruption that the worker stores counts like one that its successor finds."""
    interrupted = make_trial(state=TrialState.INTERRUPTED, reason="interrupted", measurement=None)
    for _ in range(2):
        trials.finish(trials.start(claim, 0, make_point()), interrupted)
    reasons = [(trial.state, trial.reason) for trial in trials.list(claim.job_id)]
    assert reasons == [(TrialState.INTERRUPTED, "interrupted"), (TrialState.FAILED, "interrupted_twice")]


def test_a_worker_that_stops_in_order_blames_no_point(jobs: JobStore, trials: TrialStore, claim: Claim) -> None:
    """However often a job is put aside in the midst of one trial, its point is tried again."""
    for attempt in (1, 2, 3):
        trials.start(claim, 0, make_point())
        jobs.release(claim)
        last = trials.list(claim.job_id)[-1]
        assert (attempt, TrialState.INTERRUPTED, "released") == (last.attempt, last.state, last.reason)
        assert ((0, make_point()),) == trials.to_retry(claim.job_id)
        claim = jobs.claim(claim.job_id, f"host:{attempt}", 60)


@pytest.mark.parametrize("how", ["release", "finish"])
def test_no_trial_runs_on_in_a_job_that_does_not(jobs: JobStore, trials: TrialStore, claim: Claim, how: str) -> None:
    """Giving a job back or ending it interrupts the trial that was running."""
    started = trials.start(claim, 0, make_point())
    if how == "release":
        jobs.release(claim)
    else:
        jobs.finish(claim, JobState.CANCELLED, "cancelled")
    assert [trial.state for trial in trials.list(claim.job_id)] == [TrialState.INTERRUPTED]
    assert not trials.finish(started, make_trial())


def test_trials_are_listed_by_number_and_attempt(jobs: JobStore, trials: TrialStore, claim: Claim) -> None:
    """The order is that of number and attempt, whatever the order of storing, and jobs do not mix."""
    other = jobs.claim(jobs.create(make_request()).id, "host:2", 60)
    for number in (2, 0, 1, 0):
        trials.start(claim, number, make_point())
    trials.start(other, 0, make_point())
    assert [(t.number, t.attempt) for t in trials.list(claim.job_id)] == [(0, 1), (0, 2), (1, 1), (2, 1)]
