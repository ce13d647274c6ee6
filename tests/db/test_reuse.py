"""What earlier jobs measured: found by key, by age and by job, and the front where a search may begin."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from db.database import Database
from db.devices import DeviceStore
from db.fronts import FrontStore
from db.job import Claim, JobState
from db.jobs import JobStore
from db.reuse import ReuseStore
from db.trials import TrialStore
from tests.db.factories import START, make_device, make_point, make_request, make_trial
from tuner.fingerprint import ReuseKey
from tuner.pareto import front_of
from tuner.point import OperatingPoint
from tuner.request import WorkloadSpec
from tuner.trial import Trial

KEY = ReuseKey(fingerprint="f" * 64, settings="5" * 64)
NOBODY = "0" * 32


@pytest.fixture
def reuse(database: Database) -> ReuseStore:
    return ReuseStore(database)


@pytest.fixture
def claim(jobs: JobStore) -> Claim:
    return jobs.create_claimed(make_request(), "host:1", 600)


def store(trials: TrialStore, claim: Claim, trial: Trial, key: ReuseKey | None = KEY) -> Trial:
    assert trials.finish(trials.start(claim, trial.number, trial.point), trial, key=key)
    return trial


def test_a_measurement_is_found_by_its_key(trials: TrialStore, reuse: ReuseStore, claim: Claim) -> None:
    """Another job finds trial and request by fingerprint and settings; either one alone is not enough."""
    trial = store(trials, claim, make_trial())
    (found,) = reuse.find(KEY, since=START, except_job=NOBODY)
    assert (claim.job_id, make_request(), trial) == (found.job_id, found.request, found.trial)
    for other in (replace(KEY, fingerprint="e" * 64), replace(KEY, settings="4" * 64)):
        assert reuse.find(other, since=START, except_job=NOBODY) == []


def test_the_newest_comes_first_and_the_old_not_at_all(trials: TrialStore, reuse: ReuseStore, claim: Claim) -> None:
    """What ended before the time asked for is left out, of the rest the last comes first."""
    for number in range(3):
        store(trials, claim, make_trial(number=number, finished_at=START + timedelta(hours=number)))
    found = reuse.find(KEY, since=START + timedelta(hours=1), except_job=NOBODY)
    assert [one.trial.number for one in found] == [2, 1]


def test_a_job_does_not_find_itself(trials: TrialStore, reuse: ReuseStore, claim: Claim) -> None:
    """What a job measured itself is its history, not another job's."""
    store(trials, claim, make_trial())
    assert reuse.find(KEY, since=START, except_job=claim.job_id) == []


def test_what_was_taken_over_ages_with_its_origin(trials: TrialStore, reuse: ReuseStore, claim: Claim) -> None:
    """A measurement that was taken over is not found as if it were new; of a job that is named it is found."""
    taken = store(trials, claim, make_trial(reused_from="cd" * 16 + "/0"))
    assert reuse.find(KEY, since=START, except_job=NOBODY) == []
    assert [taken] == [one.trial for one in reuse.find_in(KEY, claim.job_id)]
    assert reuse.find_in(KEY, NOBODY) == []


def test_without_a_key_nothing_is_found(trials: TrialStore, reuse: ReuseStore, claim: Claim) -> None:
    """A trial that was stored without a key, as all were before there were any, is never taken over."""
    store(trials, claim, make_trial(), key=None)
    assert reuse.find_in(KEY, claim.job_id) == []


def test_the_key_is_looked_up_in_an_index(database: Database) -> None:
    """No measurement is read for a look that finds none: the index leads to those with the key."""
    if not database.is_sqlite:
        pytest.skip("PostgreSQL scans small tables, whatever indexes there are")
    query = "EXPLAIN QUERY PLAN SELECT trial_id FROM measurements WHERE fingerprint = 'f' AND settings = 's'"
    with database.read() as session:
        plan = " ".join(str(row) for row in session.execute(text(query)))
    assert "ix_measurements_fingerprint_settings" in plan


class TestLastFront:
    """Where the last job of the same kind ended."""

    @pytest.fixture(autouse=True)
    def _stores(self, jobs: JobStore, trials: TrialStore, fronts: FrontStore, devices: DeviceStore) -> None:
        self.jobs, self.trials, self.fronts = jobs, trials, fronts
        for uuid in ("GPU-1", "GPU-2"):
            devices.seen(make_device(uuid=uuid), [])

    def run(self, *batches: int, uuid: str = "GPU-1", state: JobState = JobState.FINISHED, **changes: Any) -> str:
        """Store a job with these points on its front."""
        claim = self.jobs.create_claimed(make_request(**changes), "host:1", 600)
        self.jobs.set_device(claim, uuid)
        of_front = [make_trial(number=i, point=make_point(batch)) for i, batch in enumerate(batches)]
        for trial in of_front:
            store(self.trials, claim, trial)
        self.fronts.save(claim.job_id, front_of(of_front, "tpot_p99_ms", created_at=START))
        self.jobs.finish(claim, state, "trials")
        return claim.job_id

    def test_the_last_of_the_same_kind_counts(self, reuse: ReuseStore) -> None:
        """Points come from the newest finished job that had a front, of the same device, model, engine and workload."""
        self.run(1)
        last = self.run(8, 16, name="another", seed=3)
        self.run()
        self.run(2, uuid="GPU-2")
        self.run(3, model="another")
        self.run(4, engine="simulated")
        self.run(5, workload=WorkloadSpec(seed=99))
        self.run(6, state=JobState.CANCELLED)
        assert (make_point(8), make_point(16)) == self.points(reuse)
        assert (make_point(1),) == self.points(reuse, except_job=last)

    def test_before_the_first_job_there_is_none(self, reuse: ReuseStore) -> None:
        """A device without a finished job gives no points."""
        assert self.points(reuse) == ()

    def points(self, reuse: ReuseStore, except_job: str = NOBODY) -> tuple[OperatingPoint, ...]:
        return reuse.last_front(make_request(), "GPU-1", except_job=except_job)
