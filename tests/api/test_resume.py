"""Jobs that are killed, stopped, frozen and resumed, through real processes (BUG-17).

The engine is the real one wherever its process matters, else a simulated one, which starts at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from api.heartbeat import LEASE_S
from api.stores import Stores, utc_now
from db.job import Job, JobState
from db.jobs import JobStore
from tests.api.commands import (
    ended_of,
    engine_child_of,
    has_run_to_its_end,
    is_gone,
    run,
    simulated_flags,
    started,
    tiny_flags,
    wait_until,
)
from tests.api.scripted import tiny_request
from tuner.request import WindowRule
from tuner.trial import OUTCOMES, Trial, TrialState

pytestmark = pytest.mark.slow


def only_job(stores: Stores) -> Job | None:
    return next(iter(stores.jobs.list(limit=1)), None)


def trial_seen(stores: Stores, number: int, state: TrialState) -> Callable[[], Trial | None]:
    """Look for a trial of the only job in a state."""

    def look() -> Trial | None:
        job = only_job(stores)
        trials = [] if job is None else stores.trials.list(job.id)
        return next((trial for trial in trials if (trial.number, trial.state) == (number, state)), None)

    return look


def running_engine(stores: Stores, pid: int, number: int) -> psutil.Process:
    """Wait until a trial runs and its engine is there."""
    wait_until(trial_seen(stores, number, TrialState.RUNNING), what=f"trial {number} to begin")
    return wait_until(lambda: engine_child_of(pid), what="the engine's process")


def outcomes(trials: list[Trial]) -> list[tuple[int, int]]:
    return [(trial.number, trial.attempt) for trial in trials if trial.state in OUTCOMES]


def test_a_killed_engine_costs_one_trial(stores: Stores, tiny_folder: Path) -> None:
    """An engine that is killed during a trial fails that trial with `engine_died`, and the job runs to its end."""
    with started("tune", *tiny_flags(tiny_folder), "--trials=2") as tune:
        running_engine(stores, tune.pid, 0).kill()
        ended = ended_of(tune)
    job = only_job(stores)
    assert job is not None
    assert has_run_to_its_end(ended.code, job), ended
    first, second = stores.trials.list(job.id)
    assert (first.state, first.reason, first.measurement) == (TrialState.FAILED, "engine_died", None)
    assert "SIGKILL" in str(first.detail)
    assert second.measurement is not None
    assert second.state in OUTCOMES


def test_a_killed_job_is_resumed_at_once(stores: Stores, tiny_folder: Path) -> None:
    """A job killed in trial 2 leaves no engine, goes on at once, and ends with each of its 3 points measured once."""
    with started("tune", *tiny_flags(tiny_folder), "--trials=3") as tune:
        engine = running_engine(stores, tune.pid, 1)
        tune.kill()
        tune.wait()
        wait_until(lambda: is_gone(engine), what="the engine to follow its host")
    job = only_job(stores)
    assert job is not None
    assert (job.state, job.num_trials[TrialState.RUNNING]) == (JobState.RUNNING, 1)
    kept = stores.trials.list(job.id)[0]

    ended = run("tune", "--resume", job.id[:8])

    after = stores.jobs.get(job.id)
    assert has_run_to_its_end(ended.code, after), ended
    assert after.resume_count == 1
    assert "resumed: 1 trials are done and are not repeated" in ended.out
    trials = stores.trials.list(job.id)
    assert trials[0] == kept
    assert (trials[1].state, trials[1].reason, trials[1].attempt) == (TrialState.INTERRUPTED, "worker_lost", 1)
    assert outcomes(trials) == [(0, 1), (1, 2), (2, 1)]
    assert trials[1].point == trials[2].point
    assert len({trial.point for trial in trials}) == 3


def test_an_interrupt_stops_after_the_window(stores: Stores, tiny_folder: Path) -> None:
    """One Ctrl-C lets the running window end, keeps its trial, and says how to go on; the job can be claimed again."""
    with started("tune", *tiny_flags(tiny_folder), "--trials=4") as tune:
        running_engine(stores, tune.pid, 0)
        tune.send_signal(signal.SIGINT)
        ended = ended_of(tune)
    job = only_job(stores)
    assert job is not None
    assert (ended.code, ended.err) == (130, "")
    assert "stopping after the running window" in ended.out
    assert f"stopped; go on with: wattfront tune --resume {job.id[:8]}" in ended.out
    assert (job.state, job.ended_because) == (JobState.CANCELLED, "stopped")
    (trial,) = stores.trials.list(job.id)
    assert trial.measurement is not None
    stores.jobs.claim(job.id, "host:1:1", LEASE_S, reopen=True)
    assert outcomes(stores.trials.history(job.id)) == [(0, 1)]


def test_a_second_interrupt_stops_at_once(stores: Stores) -> None:
    """Two Ctrl-C end a window that would take minutes; its trial is tried again on a resume."""
    with started("tune", *simulated_flags(window=86_400), "--trials=4") as tune:
        wait_until(trial_seen(stores, 0, TrialState.RUNNING), what="the trial to begin")
        assert tune.stdout is not None
        tune.send_signal(signal.SIGINT)
        assert any("once more to stop at once" in line for line in iter(tune.stdout.readline, ""))
        tune.send_signal(signal.SIGINT)
        ended = ended_of(tune)
    job = only_job(stores)
    assert job is not None
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert f"stopped at once; go on with: wattfront tune --resume {job.id[:8]}" in ended.out
    assert (job.state, job.ended_because) == (JobState.CANCELLED, "stopped")
    assert [number for number, _ in stores.trials.to_retry(job.id)] == [0]


def test_a_worker_that_is_told_twice_ends_at_once(stores: Stores, tiny_folder: Path) -> None:
    """A second signal ends a window that would take an hour; the job is back in the queue, and no engine is left."""
    window = WindowRule(warmup_s=0.2, window_s=3600.0, max_window_s=3600.0)
    job = stores.jobs.create(tiny_request(tiny_folder, window=window))
    with started("worker") as worker:
        engine = running_engine(stores, worker.pid, 0)
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)  # another one: two alike that wait together are one
        ended = ended_of(worker)
        wait_until(lambda: is_gone(engine), what="the engine to end")
    assert (ended.code, ended.err) == (0, "stopped at once; its job is back in the queue\n")
    assert JobState.QUEUED is stores.jobs.get(job.id).state
    assert [number for number, _ in stores.trials.to_retry(job.id)] == [0]


def test_a_frozen_worker_does_not_disturb_its_successor(stores: Stores, tiny_folder: Path) -> None:
    """A worker that is frozen past its lease and then goes on drops its result, and the job is its successor's."""
    with started("tune", *tiny_flags(tiny_folder), "--trials=4") as tune:
        running_engine(stores, tune.pid, 0)
        tune.send_signal(signal.SIGSTOP)
        job = only_job(stores)
        assert job is not None
        later = JobStore(stores.database, lambda: utc_now() + timedelta(seconds=2 * LEASE_S))
        later.claim(job.id, "successor:1:1", LEASE_S)
        tune.send_signal(signal.SIGCONT)
        ended = ended_of(tune)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert f"no longer holds job {job.id}: another worker took it" in ended.err
    after = stores.jobs.get(job.id)
    assert (after.state, after.owner) == (JobState.RUNNING, "successor:1:1")
    assert outcomes(stores.trials.list(job.id)) == []
