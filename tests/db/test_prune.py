"""Pruning removes what is old and not asked for, nothing else, and holds nobody up who writes meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select

from db.audit import AuditStore
from db.database import Database
from db.deliveries import DeliveryStore
from db.events import EventStore
from db.fronts import FrontStore
from db.job import Claim, JobState
from db.jobs import JobStore
from db.nights import NightStore
from db.prune import PAUSE_S, Pruned, PruneStore
from db.results import ResultStore
from db.schedules import ScheduleStore
from db.tables import MeasurementRow
from db.trials import TrialStore
from tests.db.factories import Clock, make_measurement, make_point, make_request, make_trial
from tests.db.test_nights import make_due, make_spec
from tuner.measurement import Estimate
from tuner.pareto import front_of
from tuner.trial import Trial

OLD = timedelta(days=30)
NOTHING = Pruned(events=0, measurements=0, deliveries=0, audit_entries=None)
#: Trials of one job: the default, the front's only point with a repeat, and two that are on no front.
SIZES, ON_FRONT = (4, 8, 16, 16, 32), 16
TOK_PER_J = {4: 1.0, 8: 1.5, 16: 3.0, 32: 2.0}

MakeOld = Callable[..., Claim]


@pytest.fixture
def prune(database: Database) -> PruneStore:
    return PruneStore(database, batch=3, pause=lambda _: None)


def trial_of(number: int) -> Trial:
    size = SIZES[number]
    value = TOK_PER_J[size]
    measurement = make_measurement(tok_per_j=Estimate(value, 0.99 * value, 1.01 * value))
    return make_trial(number=number, point=make_point(size), measurement=measurement)


def run(jobs: JobStore, trials: TrialStore, claim: Claim) -> None:
    """Measure what a job measures."""
    for number, size in enumerate(SIZES):
        trials.finish(trials.start(claim, number, make_point(size)), trial_of(number))


def end(jobs: JobStore, trials: TrialStore, fronts: FrontStore, claim: Claim, clock: Clock) -> None:
    """End a job with its front, after all of its trials."""
    clock.advance(60)
    front = front_of(trials.history(claim.job_id), "tpot_p99_ms", created_at=clock.now())
    fronts.save(claim.job_id, front)
    jobs.finish(claim, JobState.FINISHED, "trials")


@pytest.fixture
def make_old(jobs: JobStore, trials: TrialStore, fronts: FrontStore, clock: Clock) -> MakeOld:
    """Make a job that ran and ended now, and is looked at a month later."""

    def make(job_id: str | None = None, *, is_ended: bool = True, has_front: bool = True) -> Claim:
        job_id = job_id or jobs.create(make_request()).id
        claim = jobs.claim(job_id, "host:1", 1e9)
        run(jobs, trials, claim)
        if is_ended and has_front:
            end(jobs, trials, fronts, claim, clock)
        elif is_ended:
            jobs.finish(claim, JobState.FAILED, "no_usable_trial")
        return claim

    return make


def measured(trials: TrialStore, job_id: str) -> list[int]:
    """Return the sizes whose figures a job still has."""
    return [int(trial.point["max_batch"]) for trial in trials.list(job_id) if trial.measurement is not None]


def test_an_old_job_keeps_what_is_asked_for(
    prune: PruneStore, make_old: MakeOld, trials: TrialStore, fronts: FrontStore, database: Database, clock: Clock
) -> None:
    """Front, results, the default, the event of its end and every trial's row stay; the rest goes, once.

    Of the job whose results are recommended from only events go.
    """
    events, results, claims = EventStore(database), ResultStore(database), []
    for _ in range(2):
        claims.append(make_old())
        results.fill(9)
    job_id, later_id = (claim.job_id for claim in claims)
    shown = (fronts.latest(job_id), results.of_job(job_id), events.after(job_id, 0)[-1:])
    assert all(shown)
    before = clock.now() + OLD
    counted = prune.prune(before, is_dry_run=True)
    assert measured(trials, job_id) == list(SIZES)
    assert counted == prune.prune(before) == Pruned(events=24, measurements=2, deliveries=0, audit_entries=None)
    assert prune.prune(before) == NOTHING
    assert shown == (fronts.latest(job_id), results.of_job(job_id), events.after(job_id, 0))
    assert measured(trials, job_id) == [4, ON_FRONT, ON_FRONT]
    assert measured(trials, later_id) == list(SIZES)
    assert len(trials.list(job_id)) == len(SIZES)


def test_what_is_in_results_stays(
    prune: PruneStore, make_old: MakeOld, trials: TrialStore, database: Database, clock: Clock
) -> None:
    """The measurement behind what is recommended from stays, on a front or not."""
    claim = make_old()
    front = front_of([trial_of(4)], "tpot_p99_ms", created_at=clock.now())
    ResultStore(database).save(claim.job_id, [trial_of(4)], front)
    prune.prune(clock.now() + OLD)
    assert 32 in measured(trials, claim.job_id)


def test_what_is_not_old_stays(prune: PruneStore, make_old: MakeOld, clock: Clock) -> None:
    """A job that ended at the limit or after it loses nothing, however long ago it began."""
    make_old()
    assert prune.prune(clock.now()) == NOTHING


def test_jobs_that_wait_or_run_lose_nothing(prune: PruneStore, make_old: MakeOld, jobs: JobStore, clock: Clock) -> None:
    """A job that runs, one that is back in the queue, and the one that it begins with lose nothing."""
    first = make_old()
    jobs.release(make_old(is_ended=False))
    make_old(is_ended=False)
    counted = prune.prune(clock.now() + OLD, is_dry_run=True)
    jobs.create_claimed(make_request(), "host:2", 1e9, previous_job_id=first.job_id)
    assert (counted.measurements, prune.prune(clock.now() + OLD)) == (2, NOTHING)


def test_a_job_without_a_whole_front_keeps_its_figures(
    prune: PruneStore, make_old: MakeOld, trials: TrialStore, clock: Clock
) -> None:
    """Where the front has to be made of the trials they all stay; only events go."""
    claim = make_old(has_front=False)
    pruned = prune.prune(clock.now() + OLD)
    assert (pruned.events, pruned.measurements, measured(trials, claim.job_id)) == (12, 0, list(SIZES))


def test_the_last_nights_of_a_schedule_stay(
    prune: PruneStore, make_old: MakeOld, trials: TrialStore, database: Database, clock: Clock
) -> None:
    """The last two nights stay whole, and so does the last one with a front, which the next night begins with."""
    schedule = ScheduleStore(database, clock.now).create(make_spec())
    nights, claims = NightStore(database), []
    for number in range(4):
        due = make_due(number)
        clock.time = due.due_at
        night = nights.decide(schedule, due, now=due.due_at)
        assert night is not None
        claims.append(make_old(night.job_id, has_front=number < 2))
    pruned = prune.prune(clock.now() + OLD)
    assert [len(measured(trials, claim.job_id)) for claim in claims] == [3, 5, 5, 5]
    assert (pruned.measurements, pruned.events) == (2, 12)


def test_notifications_go_once_nobody_tells_them_again(
    prune: PruneStore, make_old: MakeOld, jobs: JobStore, database: Database, clock: Clock
) -> None:
    """Delivered ones go but the newest; failed and waiting ones stay, and those of nights whose job has not ended."""
    deliveries = DeliveryStore(database, clock.now)
    schedule = ScheduleStore(database, clock.now).create(make_spec())
    night = NightStore(database).decide(schedule, make_due(), now=make_due().due_at)
    assert night is not None
    keys = (f"night/{night.id}/started", "night/99/started", "night/98/started", "test/1")
    for key in ("waits", *keys):
        deliveries.add("ops", key, {"event": "test"})
    _, *taken = deliveries.take_due(limit=5, hold_s=1e9)
    for one in (taken[0], taken[1], taken[3]):
        deliveries.delivered(one)
    deliveries.failed(taken[2], "it answered 500", None)
    before = clock.now() + OLD
    assert prune.prune(before).deliveries == 1
    assert [one.event_key for one in deliveries.list(limit=9)] == [keys[3], keys[2], keys[0], "waits"]
    jobs.request_cancel(str(night.job_id))
    assert prune.prune(before).deliveries == 1


def test_the_audit_log_goes_only_when_asked(prune: PruneStore, database: Database, clock: Clock) -> None:
    """Entries stay unless they are asked for by name, and then the old ones go, in batches."""
    audit = AuditStore(database, clock.now)
    for number in range(7):
        audit.add(actor="ci", action="job.create", subject=f"job/{number}")
    before = clock.now() + OLD
    clock.advance(OLD.total_seconds())
    audit.add(actor="ci", action="job.create", subject="job/new")
    assert prune.prune(before).audit_entries is None
    counted = [prune.prune(before, with_audit=True, is_dry_run=is_dry).audit_entries for is_dry in (True, False)]
    assert (counted, [entry.subject for entry in audit.list(limit=9)]) == ([7, 7], ["job/new"])


def test_a_job_that_is_taken_up_again_keeps_the_rest(
    database: Database, make_old: MakeOld, jobs: JobStore, trials: TrialStore, clock: Clock
) -> None:
    """A cancelled job that somebody resumes while its measurements go loses no more of them."""
    claim = make_old()
    with database.transaction() as session:
        session.connection().exec_driver_sql("UPDATE jobs SET state = 'cancelled'")
    resumed: list[float] = []

    def resume(pause_s: float) -> None:
        if not resumed and len(measured(trials, claim.job_id)) < len(SIZES):
            resumed.append(pause_s)
            jobs.claim(claim.job_id, "host:2", 60, reopen=True)

    pruned = PruneStore(database, batch=1, pause=resume).prune(clock.now() + OLD)
    expected = (1, [PAUSE_S]) if database.is_sqlite else (2, [])  # PostgreSQL needs no pause
    assert (pruned.measurements, resumed) == expected


def test_writers_go_on_meanwhile(database: Database, make_old: MakeOld, clock: Clock, database_url: str) -> None:
    """A worker with little patience stores its trials while rows are removed, and is never turned away."""
    for _ in range(2):
        make_old()
    store = Database(database_url, busy_timeout_s=5.0)
    jobs, trials = JobStore(store, clock.now), TrialStore(store, clock.now)
    claim = jobs.claim(jobs.create(make_request()).id, "host:3", 1e9)
    is_pruned, stored = threading.Event(), []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            number = 0
            while not (is_pruned.is_set() and number >= 3):
                point = make_point(number + 1)
                stored.append(trials.finish(trials.start(claim, number, point), make_trial(number=number, point=point)))
                number += 1
        except BaseException as error:  # told in the test's own thread
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    pruned = PruneStore(database, batch=3).prune(clock.now() + OLD)
    is_pruned.set()
    worker.join(60)
    store.dispose()
    assert (failures, all(stored), len(stored) >= 3) == ([], True, True)
    assert (pruned.events, pruned.measurements) == (24, 4)


def test_nothing_is_removed_by_a_dry_run(
    prune: PruneStore, make_old: MakeOld, database: Database, clock: Clock
) -> None:
    """A dry run writes nothing, however often it counts."""
    make_old()
    before: datetime = clock.now() + OLD
    counted = [prune.prune(before, is_dry_run=True) for _ in range(2)]
    with database.read() as session:
        left = session.scalar(select(func.count()).select_from(MeasurementRow))
    assert (counted[0] == counted[1], counted[0].measurements, left) == (True, 2, len(SIZES))
