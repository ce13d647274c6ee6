"""Results: one row a point, the last job's are current, and what an earlier version left out can be filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from db.database import Database
from db.devices import DeviceStore
from db.errors import JobNotFound
from db.fronts import FrontStore
from db.job import Claim, JobState
from db.jobs import JobStore
from db.result import quality_share, results_of, workload_key
from db.results import ResultStore
from db.trials import TrialStore
from probes.device import Method, Scope
from tests.db.factories import START, make_device, make_measurement, make_point, make_reading, make_request, make_trial
from tuner.measurement import Estimate, Quality, TaskScore
from tuner.pareto import front_of
from tuner.request import TuneRequest, WorkloadSpec
from tuner.trial import Trial, TrialRole, TrialState

AXIS = "tpot_p99_ms"


@pytest.fixture
def results(database: Database) -> ResultStore:
    return ResultStore(database)


def measured(number: int, tok_per_j: float, *, max_batch: int | None = None, **changes: Any) -> Trial:
    """Return a complete trial with figures of its own."""
    figures = make_measurement(tok_per_j=Estimate(tok_per_j, 0.9 * tok_per_j, 1.1 * tok_per_j))
    return make_trial(number=number, point=make_point(max_batch or number + 1), measurement=figures, **changes)


def ended(
    jobs: JobStore, trials: TrialStore, fronts: FrontStore, done: Sequence[Trial], request: TuneRequest | None = None
) -> Claim:
    """Store a finished job with these trials and its front, and no results: as an earlier version did."""
    claim = jobs.create_claimed(request or make_request(), "host:1", 600)
    for trial in done:
        assert trials.finish(trials.start(claim, trial.number, trial.point, role=trial.role), trial)
    fronts.save(claim.job_id, front_of(done, AXIS, created_at=START))
    jobs.finish(claim, JobState.FINISHED, "trials")
    return claim


def saved(results: ResultStore, job_id: str, done: Sequence[Trial]) -> int:
    return results.save(job_id, done, front_of(done, AXIS, created_at=START))


def test_a_row_has_what_the_windows_of_a_point_show_together(
    jobs: JobStore, trials: TrialStore, fronts: FrontStore, results: ResultStore
) -> None:
    """Two sessions of one point are one result with their mean, two windows, and the interval between them."""
    done = [
        measured(0, 2.0, max_batch=4, session="a"),
        measured(1, 3.0, max_batch=8, session="b"),
        measured(2, 4.0, max_batch=8, session="c", role=TrialRole.FINALIST),
    ]
    claim = ended(jobs, trials, fronts, done)
    assert saved(results, claim.job_id, done) == 2
    best, other = results.of_job(claim.job_id)
    assert (best.number, best.tok_per_j, best.evidence.num_windows, best.evidence.interval_of) == (
        1, 3.5, 2, "sessions"
    )  # fmt: skip
    assert (other.number, other.tok_per_j, other.evidence.interval_of) == (0, 2.0, "window")
    assert best.point == make_point(8)
    assert best.latency_ms("ttft_p99_ms") == 31.0
    assert best.latency_ms("e2e_p99_ms") is None


def test_what_is_stored_comes_back(
    jobs: JobStore, trials: TrialStore, fronts: FrontStore, results: ResultStore
) -> None:
    """A result read from its row equals the one that was built from the trials."""
    done = [measured(0, 2.0), measured(1, 3.0)]
    claim = ended(jobs, trials, fronts, done)
    saved(results, claim.job_id, done)
    built = results_of(claim.job_id, make_request(), done, front_of(done, AXIS, created_at=START))
    assert sorted(built, key=lambda one: -one.tok_per_j) == results.of_job(claim.job_id)
    found = results.find("smollm2-135m", make_request().device)
    assert [results.get(one.id) for one in found] == results.of_job(claim.job_id)


def test_only_points_inside_the_limits_are_results(results: ResultStore, jobs: JobStore) -> None:
    """Infeasible, invalid, failed and cut windows, and those without a power figure, leave no row."""
    whole = make_measurement()
    done = [
        measured(0, 2.0),
        make_trial(number=1, point=make_point(20), state=TrialState.INFEASIBLE, reason="sla:ttft_p99_ms"),
        make_trial(number=2, point=make_point(21), state=TrialState.INVALID, reason="hw_thermal"),
        make_trial(number=3, point=make_point(22), state=TrialState.FAILED, reason="engine_died", measurement=None),
        make_trial(number=4, point=make_point(23), measurement=replace(whole, cut_by="dominated")),
        make_trial(number=5, point=make_point(24), measurement=replace(whole, mean_power_w=None)),
    ]
    job = jobs.create(make_request())
    assert saved(results, job.id, done) == 1
    assert [one.number for one in results.of_job(job.id)] == [0]


def test_a_later_job_takes_the_place_of_an_earlier_one(results: ResultStore, jobs: JobStore) -> None:
    """Of two jobs that differ in nothing that counts, a point that both measured is found as the later one saw it.

    What the later one did not measure is found as before, and both jobs keep what they have.
    """
    first, second = jobs.create(make_request()), jobs.create(make_request(name="again", seed=7))
    saved(results, first.id, [measured(0, 5.0, max_batch=4), measured(1, 4.0, max_batch=8)])
    later = START + timedelta(hours=1)
    saved(results, second.id, [measured(0, 3.0, max_batch=4, started_at=later, finished_at=later)])
    assert [(first.id, 4.0), (second.id, 3.0)] == [
        (one.job_id, one.tok_per_j) for one in results.find("smollm2-135m", "auto")
    ]
    assert [one.tok_per_j for one in results.of_job(first.id)] == [5.0, 4.0]


def test_results_that_are_stored_late_do_not_replace_newer_ones(results: ResultStore, jobs: JobStore) -> None:
    """Whatever the order in which two jobs are stored, the one that was measured later is current."""
    old, new = jobs.create(make_request()), jobs.create(make_request())
    later = START + timedelta(hours=1)
    saved(results, new.id, [measured(0, 3.0, started_at=later, finished_at=later)])
    saved(results, old.id, [measured(0, 5.0)])
    assert [one.job_id for one in results.find("smollm2-135m", "auto")] == [new.id]


def test_other_models_devices_and_loads_stay_current(results: ResultStore, jobs: JobStore) -> None:
    """A job replaces no results of another model, engine, device or workload."""
    requests = [
        make_request(),
        make_request(model="other"),
        make_request(device="GPU-2"),
        make_request(workload=WorkloadSpec(seed=9)),
    ]
    for request in requests:
        saved(results, jobs.create(request).id, [measured(0, 2.0)])
    assert [len(results.find(*names)) for names in (("smollm2-135m", "auto"), ("other", "auto"))] == [2, 1]
    assert len(results.find("smollm2-135m", "GPU-2")) == 1
    assert len(results.find("smollm2-135m", "auto", workload=workload_key(WorkloadSpec(seed=9)))) == 1
    assert results.find("smollm2-135m", "auto", engine="another") == []


def test_a_job_without_points_replaces_nothing(results: ResultStore, jobs: JobStore) -> None:
    """A later job of which no point is inside its limits leaves the earlier results current."""
    first, second = jobs.create(make_request()), jobs.create(make_request())
    saved(results, first.id, [measured(0, 5.0)])
    assert saved(results, second.id, [make_trial(state=TrialState.FAILED, reason="engine_died", measurement=None)]) == 0
    assert [one.job_id for one in results.find("smollm2-135m", "auto")] == [first.id]


def test_storing_twice_changes_nothing(results: ResultStore, jobs: JobStore) -> None:
    """A worker that died after storing results and before the job's end stores the same rows again."""
    job = jobs.create(make_request())
    for _ in range(2):
        saved(results, job.id, [measured(0, 2.0), measured(1, 3.0)])
    assert [one.number for one in results.of_job(job.id)] == [1, 0]
    assert len(results.find("smollm2-135m", "auto")) == 2


def test_the_mark_changes_with_what_is_found(results: ResultStore, jobs: JobStore) -> None:
    """Other models' results leave it as it is; new points change it, and other figures under the numbers of before."""
    job, other = jobs.create(make_request()), jobs.create(make_request(model="another"))
    key = (job.request.model, job.request.device)
    marks = [results.mark(*key)]
    for done in ([measured(0, 2.0)], [measured(0, 3.0)], [measured(0, 3.0), measured(1, 3.0)]):
        saved(results, job.id, done)
        marks.append(results.mark(*key))
    assert len(set(marks)) == len(marks)
    saved(results, other.id, [measured(0, 9.0)])
    assert results.mark(*key) == marks[-1]
    assert results.mark(*key, engine="none") == marks[0]


def test_a_device_is_found_by_uuid_too(
    jobs: JobStore, trials: TrialStore, devices: DeviceStore, results: ResultStore
) -> None:
    """What a job on `auto` measured is found by the UUID of the device that it turned out to be."""
    devices.seen(make_device(), [])
    claim = jobs.create_claimed(make_request(device="auto"), "host:1", 600)
    jobs.set_device(claim, "GPU-1")
    saved(results, claim.job_id, [measured(0, 2.0)])
    for name in ("auto", "GPU-1"):
        assert [one.device_uuid for one in results.find("smollm2-135m", name)] == ["GPU-1"]


def test_the_gain_is_over_the_default_point(results: ResultStore, jobs: JobStore) -> None:
    """Each point tells its tokens per joule over the default's, and the default knows that it is it."""
    job = jobs.create(make_request(knobs=()))
    saved(results, job.id, [measured(0, 2.0, max_batch=8), measured(1, 3.0, max_batch=16)])
    best, default = results.of_job(job.id)
    assert best.evidence.gain is not None
    assert (best.evidence.gain.number, best.evidence.gain.ratio) == (0, 1.5)
    assert (best.is_default, default.is_default) == (False, True)


def test_jobs_of_an_earlier_version_are_filled_in(
    jobs: JobStore, trials: TrialStore, fronts: FrontStore, results: ResultStore
) -> None:
    """A finished job that has a front and no results gets them from its trials, and only once."""
    done = [measured(0, 2.0), measured(1, 3.0)]
    claim = ended(jobs, trials, fronts, done)
    ended(jobs, trials, fronts, [])
    assert results.missing(10) == [claim.job_id]
    assert results.fill(10) == 2
    filled = results.of_job(claim.job_id)
    saved(results, claim.job_id, done)
    assert filled == results.of_job(claim.job_id)
    assert (results.missing(10), results.fill(10)) == ([], 0)


def test_a_job_that_is_not_there_has_no_results(results: ResultStore) -> None:
    """Storing results of an unknown job says so."""
    with pytest.raises(JobNotFound):
        saved(results, "0" * 32, [measured(0, 2.0)])


def test_an_estimate_stays_one(results: ResultStore, jobs: JobStore) -> None:
    """What the CPU estimate gave is marked as an estimate, with its scope and method."""
    figures = make_measurement(reading=make_reading(method=Method.ESTIMATE, scope=Scope.CPU_SHARE))
    job = jobs.create(make_request())
    saved(results, job.id, [make_trial(measurement=figures)])
    (one,) = results.of_job(job.id)
    assert (one.is_estimate, one.evidence.method, one.evidence.scope) == (True, "estimate", "cpu_share")


def test_quality_is_the_smallest_share_that_is_known() -> None:
    """Agreement and task scores count, the smallest of them; without any nothing is known, and 1 is the most."""
    quality = Quality(num_tokens=9, perplexity=2.0, perplexity_ratio=1.0, top1_agreement=0.98)
    task = TaskScore(task="t", metric="acc", score=0.5, reference_score=0.4, num_documents=9)
    assert quality_share(quality) == 0.98
    assert quality_share(replace(quality, top1_agreement=None, tasks=(task,))) == 1.0
    assert quality_share(replace(quality, tasks=(replace(task, score=0.3),))) == pytest.approx(0.75)
    assert quality_share(replace(quality, top1_agreement=None)) is None
    assert quality_share(None) is None


def test_a_workload_is_told_by_all_that_it_is() -> None:
    """Two descriptions have one key exactly when they are equal."""
    keys = {workload_key(one) for one in (WorkloadSpec(), WorkloadSpec(), WorkloadSpec(seed=1))}
    assert len(keys) == 2
