"""Running jobs: every way in which one ends, and what is kept of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import structlog

from api.heartbeat import LEASE_S
from api.job_run import run_job
from api.owners import owner_name
from api.settings import Settings
from api.stores import Stores, utc_now
from api.worker import work
from db.errors import DatabaseBusy
from db.job import Claim, Job, JobState
from db.jobs import JobStore
from engine.errors import CheckpointError
from probes.detect import find_device, list_devices
from probes.holder import hold
from tests.api.commands import wait_until
from tests.api.scripted import claimed, complete, tiny_request, too_slow, use_script
from tests.db.factories import make_point, make_request
from tuner.bench import Outcome
from tuner.point import OperatingPoint
from tuner.request import Budget
from tuner.trial import TrialState

Run = Callable[..., Job]


@pytest.fixture
def claim(stores: Stores, tiny_folder: Path) -> Claim:
    return claimed(stores, tiny_request(tiny_folder))


@pytest.fixture
def run(stores: Stores, settings: Settings, claim: Claim) -> Run:
    """Run the claimed job by the script that the test has set."""
    return lambda **options: run_job(stores, claim, settings, **options)


# The end of a job


def test_a_job_ends_when_every_point_is_measured(run: Run, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A space of four points ends a job of 24 trials after four, each measured once (BUG-18)."""
    use_script(monkeypatch, complete)
    job = run()
    assert (job.state, job.ended_because) == (JobState.FINISHED, "exhausted")
    trials = stores.trials.list(job.id)
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert len({trial.point for trial in trials}) == 4
    assert job.num_trials == {TrialState.COMPLETE: 4}
    assert job.front_size == len(stores.front(job).trials) == 4
    assert job.device_uuid == stores.devices.list()[0].info.uuid


def test_a_job_ends_with_its_budget(
    stores: Stores, settings: Settings, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more points are measured than the job may have trials; the default point comes first."""
    use_script(monkeypatch, complete)
    claim = claimed(stores, tiny_request(tiny_folder, budget=Budget(trials=2)))
    job = run_job(stores, claim, settings)
    assert (job.state, job.ended_because) == (JobState.FINISHED, "trials")
    assert stores.trials.list(job.id)[0].point == make_point(8)
    assert job.num_trials == {TrialState.COMPLETE: 2}


def test_an_engine_failure_costs_one_trial(run: Run, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A point that runs out of memory fails with its reason, and the points after it succeed (BUG-19f)."""

    def script(point: OperatingPoint) -> Outcome:
        if point["max_batch"] == 16:
            return Outcome(state=TrialState.FAILED, reason="out_of_memory", detail="an allocation failed")
        return complete(point)

    use_script(monkeypatch, script)
    job = run()
    assert (job.state, job.num_trials) == (JobState.FINISHED, {TrialState.COMPLETE: 3, TrialState.FAILED: 1})
    (failed,) = [trial for trial in stores.trials.list(job.id) if trial.state is TrialState.FAILED]
    assert (failed.point["max_batch"], failed.reason, failed.measurement) == (16, "out_of_memory", None)
    assert failed.point not in [trial.point for trial in stores.front(job).trials]


def test_no_feasible_point_is_an_end(
    stores: Stores, settings: Settings, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose limits nothing meets is finished and tells the nearest point and what it misses (BUG-15b)."""
    use_script(monkeypatch, too_slow)
    request = tiny_request(tiny_folder, sla=make_request().sla)
    limits = tuple(replace(limit, bound_ms=1.0) for limit in request.sla)
    job = run_job(stores, claimed(stores, replace(request, sla=limits)), settings)
    assert (job.state, job.ended_because, job.front_size) == (JobState.FINISHED, "no_feasible_point", 0)
    nearest = next(trial.number for trial in stores.trials.list(job.id) if trial.point == make_point(2))
    assert (job.message or "").startswith(
        f"No configuration meets the limits; nearest: trial {nearest}, max_batch=2 precision=fp32: "
        "ttft_p99_ms is 2, the limit is 1 (missed by 100 %); "
    )


def test_no_usable_trial_is_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose trials gave no figures at all has failed, and names the reasons."""
    use_script(monkeypatch, lambda point: Outcome(state=TrialState.FAILED, reason="engine_died", detail="SIGKILL"))
    job = run()
    assert (job.state, job.ended_because) == (JobState.FAILED, "no_usable_trial")
    assert job.message == "no trial gave a usable measurement (engine_died)"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CheckpointError("model.safetensors: truncated"), "model.safetensors: truncated"),
        (RuntimeError("unexpected"), "RuntimeError: unexpected"),
    ],
)
def test_an_error_fails_the_job_and_is_raised(
    run: Run, claim: Claim, stores: Stores, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    """What no other point could do better fails the job with its words, keeping what was measured before."""
    seen: list[OperatingPoint] = []

    def script(point: OperatingPoint) -> Outcome:
        seen.append(point)
        if len(seen) == 3:
            raise error
        return complete(point)

    use_script(monkeypatch, script)
    with pytest.raises(type(error)):
        run()
    job = stores.jobs.get(claim.job_id)
    assert (job.state, job.ended_because, job.message) == (JobState.FAILED, "error", message)
    assert job.num_trials == {TrialState.COMPLETE: 2, TrialState.INTERRUPTED: 1}


# Stopping


@pytest.mark.parametrize(
    ("is_requeued", "state", "because"), [(True, JobState.QUEUED, None), (False, JobState.CANCELLED, "stopped")]
)
def test_a_stopped_job_waits_for_its_rest(
    run: Run, stores: Stores, monkeypatch: pytest.MonkeyPatch, is_requeued: bool, state: JobState, because: str | None
) -> None:
    """A job that is told to stop ends its trial, keeps it, and waits for the next worker or for a resume by hand."""
    use_script(monkeypatch, complete)
    stopping = threading.Event()

    def script(point: OperatingPoint) -> Outcome:
        stopping.set()
        return complete(point)

    use_script(monkeypatch, script)
    job = run(should_stop=stopping.is_set, is_requeued=is_requeued)
    assert (job.state, job.ended_because, job.num_trials) == (state, because, {TrialState.COMPLETE: 1})
    again = stores.jobs.claim(job.id, "host:2:2", LEASE_S, reopen=True)
    assert stores.jobs.get(again.job_id).resume_count == 1


@pytest.mark.parametrize(("is_requeued", "state"), [(True, JobState.QUEUED), (False, JobState.CANCELLED)])
def test_an_interrupt_keeps_the_job(
    run: Run, claim: Claim, stores: Stores, monkeypatch: pytest.MonkeyPatch, is_requeued: bool, state: JobState
) -> None:
    """Ctrl-C inside a trial leaves the trial interrupted, to be tried again, and the job with work left."""

    def script(_: OperatingPoint) -> Outcome:
        raise KeyboardInterrupt

    use_script(monkeypatch, script)
    with pytest.raises(KeyboardInterrupt):
        run(is_requeued=is_requeued)
    job = stores.jobs.get(claim.job_id)
    assert (job.state, job.num_trials) == (state, {TrialState.INTERRUPTED: 1})
    assert stores.trials.to_retry(job.id) == ((0, make_point(8)),)


def test_a_cancelled_job_ends_after_its_trial(
    run: Run, claim: Claim, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for a job's end reaches its worker with a heartbeat; the trial that runs then is kept."""
    monkeypatch.setattr("api.heartbeat._HEARTBEAT_S", 0.01)

    def script(point: OperatingPoint) -> Outcome:
        stores.jobs.request_cancel(claim.job_id)
        for _ in range(2):  # the second beat after the request has surely seen it
            wait_for_a_beat(stores, claim)
        return complete(point)

    use_script(monkeypatch, script)
    job = run()
    assert (job.state, job.ended_because, job.num_trials) == (
        JobState.CANCELLED,
        "cancelled",
        {TrialState.COMPLETE: 1},
    )


# Losing and keeping the claim


def taken_over(stores: Stores, claim: Claim) -> None:
    """Let another worker take the job after the lease has run out."""
    later = JobStore(stores.database, lambda: utc_now() + timedelta(seconds=2 * LEASE_S))
    later.claim(claim.job_id, "other:1:1", LEASE_S)


def test_a_late_result_is_dropped(run: Run, claim: Claim, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was frozen past its lease drops its result with a line in the log, and does not crash (BUG-17)."""

    def script(point: OperatingPoint) -> Outcome:
        taken_over(stores, claim)
        return complete(point)

    use_script(monkeypatch, script)
    with structlog.testing.capture_logs() as logs:
        job = run()
    assert (job.state, job.owner) == (JobState.RUNNING, "other:1:1")
    assert job.num_trials == {TrialState.INTERRUPTED: 1}
    assert {"lease_lost", "late_result_dropped"} <= {entry["event"] for entry in logs}


def test_a_lost_lease_is_noticed_by_the_heartbeat(
    run: Run, claim: Claim, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job taken over between two trials gets no further trial from its old worker."""
    monkeypatch.setattr("api.heartbeat._HEARTBEAT_S", 0.01)
    use_script(monkeypatch, complete)

    def should_stop() -> bool:
        if stores.jobs.get(claim.job_id).owner != "other:1:1":
            taken_over(stores, claim)
        return False

    job = run(should_stop=should_stop)
    assert (job.state, job.owner, job.num_trials) == (JobState.RUNNING, "other:1:1", {})


def test_a_slow_trial_keeps_its_lease(run: Run, claim: Claim, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a trial runs, heartbeats move the end of the lease on, so that nobody else can take the job."""
    monkeypatch.setattr("api.heartbeat._HEARTBEAT_S", 0.01)

    def script(point: OperatingPoint) -> Outcome:
        wait_for_a_beat(stores, claim)
        return complete(point)

    use_script(monkeypatch, script)
    assert run().state is JobState.FINISHED


def wait_for_a_beat(stores: Stores, claim: Claim) -> None:
    """Wait until the end of the lease has moved on."""
    before = stores.jobs.get(claim.job_id).lease_expires_at or claim.lease_expires_at
    wait_until(lambda: (stores.jobs.get(claim.job_id).lease_expires_at or before) > before, what="a heartbeat")


# Working through the queue


def test_the_queue_is_worked_off_in_order(
    stores: Stores, settings: Settings, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker runs the oldest job first, goes on after one that cannot run, and takes what a dead worker left."""
    order: list[JobState] = []
    stop = threading.Event()
    broken = stores.jobs.create(tiny_request(tiny_folder, model="no-such-model"))
    good = stores.jobs.create(tiny_request(tiny_folder))
    left = stores.jobs.claim(stores.jobs.create(tiny_request(tiny_folder)).id, dead_owner(), LEASE_S)

    def script(point: OperatingPoint) -> Outcome:
        order.append(stores.jobs.get(left.job_id).state)
        if stores.jobs.get(left.job_id).owner == owner_name():
            stop.set()
        return complete(point)

    use_script(monkeypatch, script)
    with structlog.testing.capture_logs() as logs:
        work(stores, settings, should_stop=stop, poll_s=0.01, backoff_s=0.01)
    assert stores.jobs.get(broken.id).message == stores_message("no-such-model", logs)
    assert stores.jobs.get(good.id).state is JobState.FINISHED
    job = stores.jobs.get(left.job_id)
    assert (job.state, job.resume_count, job.num_trials) == (JobState.QUEUED, 1, {TrialState.COMPLETE: 1})


def test_a_job_waits_for_its_device(
    stores: Stores, settings: Settings, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process measures the device, the job goes back to the queue, and runs once the device is free."""
    use_script(monkeypatch, complete)
    job = stores.jobs.create(tiny_request(tiny_folder))
    holding = contextlib.ExitStack()
    holding.enter_context(hold(find_device("cpu", list_devices()).info.uuid))
    seen: list[JobState] = []

    class Stop(threading.Event):
        """A worker's stop, with a look at the job whenever the worker has nothing to do."""

        def wait(self, timeout: float | None = None) -> bool:
            seen.append(stores.jobs.get(job.id).state)
            holding.close()
            if len(seen) == 2:
                self.set()
            return super().wait(0)

    work(stores, settings, should_stop=Stop(), poll_s=0.01, backoff_s=0.01)
    assert seen == [JobState.QUEUED, JobState.FINISHED]


def test_a_busy_store_is_no_failed_job(stores: Stores, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot ask for a job says why, waits, and asks again."""
    waited: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            if len(waited) == 2:
                self.set()
            return super().wait(0)

    def busy(*_: object, **__: object) -> None:
        raise DatabaseBusy("locked")

    monkeypatch.setattr(type(stores.jobs), "claim_next", busy)
    with structlog.testing.capture_logs() as logs:
        work(stores, settings, should_stop=Stop(), poll_s=0.01, backoff_s=0.02)
    assert [(log["event"], log["error"]) for log in logs] == [("store_not_available", "locked")] * 2
    assert waited == [0.02, 0.02]


def dead_owner() -> str:
    host, pid, start = owner_name().rsplit(":", 2)
    return f"{host}:{pid}:{int(start) + 1}"


def stores_message(model: str, logs: object) -> str:
    """Return what the log says of a job that failed."""
    assert isinstance(logs, list)
    (message,) = [entry["error"] for entry in logs if entry["event"] == "job_failed"]
    assert model in message
    return str(message)
