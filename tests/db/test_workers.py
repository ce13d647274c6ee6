"""Which workers are there."""

from __future__ import annotations

import pytest

from db.database import Database
from db.jobs import JobStore
from db.workers import FORGOTTEN_AFTER, Worker, WorkerStore
from tests.db.factories import START, Clock, make_request


@pytest.fixture
def workers(database: Database, clock: Clock) -> WorkerStore:
    return WorkerStore(database, clock.now)


def register(workers: WorkerStore, owner: str) -> None:
    workers.register(owner, host="rack3", version="0.1.0", devices=("gpu0", "simulated:*"), engines=("simulated",))


def test_a_worker_is_listed_with_what_it_takes(workers: WorkerStore, clock: Clock) -> None:
    """A worker that registered is there as it said, and once more when it starts again under the same name."""
    register(workers, "rack3:1:1")
    assert workers.list() == [
        Worker(
            owner="rack3:1:1",
            host="rack3",
            version="0.1.0",
            devices=("gpu0", "simulated:*"),
            engines=("simulated",),
            started_at=START,
            last_seen=START,
        )
    ]
    clock.advance(10)
    register(workers, "rack3:1:1")
    assert [worker.started_at for worker in workers.list()] == [clock.now()]


def test_a_worker_says_what_it_runs(workers: WorkerStore, clock: Clock) -> None:
    """Each word of a worker moves the time it was last seen, and says its job or that it has none."""
    register(workers, "rack3:1:1")
    for job_id in ("a" * 32, None):
        clock.advance(10)
        assert workers.seen("rack3:1:1", job_id)
        (worker,) = workers.list()
        assert (clock.now(), job_id) == (worker.last_seen, worker.job_id)
    clock.advance(30)
    assert [worker.is_silent(clock.now(), after_s) for after_s in (29, 30)] == [True, False]


def test_a_worker_that_leaves_is_off_the_list(workers: WorkerStore) -> None:
    """After an orderly end a worker is not listed, and its late word does not bring it back."""
    register(workers, "rack3:1:1")
    workers.forget("rack3:1:1")
    workers.forget("rack3:1:1")
    assert (workers.list(), workers.seen("rack3:1:1")) == ([], False)


def test_dead_workers_leave_the_list_with_their_jobs(workers: WorkerStore, jobs: JobStore) -> None:
    """A worker known to be dead goes once nobody waits for its job's rescue; the living stay."""
    for owner in ("dead", "dead with a job", "alive"):
        register(workers, owner)
    claim = jobs.claim(jobs.create(make_request()).id, "dead with a job", 60)
    assert workers.forget_dead(lambda owner: owner.startswith("dead")) == 1
    assert {worker.owner for worker in workers.list()} == {"dead with a job", "alive"}
    jobs.release(claim)
    assert workers.forget_dead(lambda owner: owner.startswith("dead")) == 1


def test_a_worker_that_is_silent_for_a_week_is_forgotten(workers: WorkerStore, clock: Clock) -> None:
    """What other machines lost without a word goes when somebody registers a week later."""
    register(workers, "gone:1:1")
    clock.advance(FORGOTTEN_AFTER.total_seconds() + 1)
    register(workers, "rack3:1:1")
    assert [worker.owner for worker in workers.list()] == ["rack3:1:1"]
