"""Fronts: kept, and rebuilt from the rows of their trials."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from db.errors import LeaseLost, RecordNotStorable, TrialNotStored
from db.fronts import FrontStore
from db.jobs import Claim, JobStore
from db.trials import TrialStore
from tests.db.factories import START, Clock, make_measurement, make_point, make_request, make_trial
from tuner.measurement import Distribution, Estimate
from tuner.pareto import Front, front_of
from tuner.trial import Trial


@pytest.fixture
def claim(jobs: JobStore) -> Claim:
    return jobs.claim(jobs.create(make_request()).id, "host:1", 60)


@pytest.fixture
def stored(trials: TrialStore, claim: Claim) -> list[Trial]:
    """Three trials, the later the faster and the less efficient."""
    for number in range(3):
        measurement = make_measurement(
            tok_per_j=Estimate(3.0 - number), tpot=Distribution(count=9, p99=Estimate(30.0 - 5 * number))
        )
        point = make_point(8 << number)
        trial = make_trial(number=number, point=point, measurement=measurement)
        trials.finish(trials.start(claim, number, point), trial)
    return trials.history(claim.job_id)


def make_front(trials: list[Trial], minutes: int = 0) -> Front:
    return front_of(trials, "tpot_p99_ms", created_at=START + timedelta(minutes=minutes))


def test_a_front_comes_back_with_its_trials(fronts: FrontStore, claim: Claim, stored: list[Trial]) -> None:
    """A stored front is equal to the one that was saved: same trials, same order, same area."""
    front = make_front(stored)
    fronts.save(claim.job_id, front)
    assert front == fronts.latest(claim.job_id)
    assert [trial.number for trial in front.trials] == [2, 1, 0]


def test_a_worker_that_was_given_up_saves_no_front(
    fronts: FrontStore, jobs: JobStore, clock: Clock, claim: Claim, stored: list[Trial]
) -> None:
    """Once another has taken the job over, the former holder's front is refused and the job's last one stays."""
    fronts.save(claim.job_id, make_front(stored), claim=claim)
    clock.advance(3600)
    assert jobs.claim_next("host:2", 60) is not None
    with pytest.raises(LeaseLost):
        fronts.save(claim.job_id, make_front(stored[:1]), claim=claim)
    assert fronts.history(claim.job_id) == [make_front(stored)]


def test_old_fronts_stay(fronts: FrontStore, jobs: JobStore, claim: Claim, stored: list[Trial]) -> None:
    """Every front is kept in the order of saving; the job shows the size of the last."""
    history = [make_front(stored[:n], minutes=n) for n in (1, 3, 2)]
    for front in history:
        fronts.save(claim.job_id, front)
    assert history == fronts.history(claim.job_id)
    assert history[-1] == fronts.latest(claim.job_id)
    assert jobs.get(claim.job_id).front_size == 2


def test_a_job_without_a_front_has_none(fronts: FrontStore, claim: Claim) -> None:
    """Before the first front there is none and no history."""
    assert fronts.latest(claim.job_id) is None
    assert fronts.history(claim.job_id) == []


def test_an_empty_front_is_a_front(fronts: FrontStore, claim: Claim) -> None:
    """That nothing was feasible is a result which is kept like any other."""
    fronts.save(claim.job_id, make_front([]))
    assert make_front([]) == fronts.latest(claim.job_id)


def test_a_front_of_trials_that_are_not_stored_is_refused(
    fronts: FrontStore, claim: Claim, stored: list[Trial]
) -> None:
    """A front can only refer to trials of its job, and a refused one leaves nothing behind."""
    with pytest.raises(TrialNotStored, match="has no trial 7, attempt 1"):
        fronts.save(claim.job_id, replace(make_front(stored), trials=(*stored, make_trial(number=7))))
    assert fronts.latest(claim.job_id) is None


def test_a_front_with_an_infinite_area_is_refused(fronts: FrontStore, claim: Claim) -> None:
    """An area that is not finite is refused by name."""
    front = Front(
        latency_metric="tpot_p99_ms", trials=(), hypervolume=math.inf, latency_reference_ms=None, created_at=START
    )
    with pytest.raises(RecordNotStorable, match=r"front\.hypervolume is inf"):
        fronts.save(claim.job_id, front)
