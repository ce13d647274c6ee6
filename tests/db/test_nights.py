"""Nights: each due time is decided once, whoever asks; what it starts, and what is left of it later."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from db.database import Database
from db.errors import ScheduleNotFound
from db.fronts import FrontStore
from db.job import Job, JobState
from db.jobs import JobStore
from db.nights import MAX_QUEUED, NightStore
from db.schedule import FRESH_HOURS, Due, Night, Schedule, ScheduleSpec, night_request
from db.schedules import ScheduleStore
from db.service import NightState, Overlap
from db.trials import TrialStore
from tests.db.factories import START, Clock, make_point, make_request, make_trial
from tuner.pareto import front_of
from tuner.request import Budget, ReuseRule

HOUR = timedelta(hours=1)


def make_spec(**changes: Any) -> ScheduleSpec:
    spec = ScheduleSpec(name="nightly", request=make_request(), cron="0 2 * * *", timezone="Europe/Berlin", priority=3)
    return replace(spec, **changes)


def make_due(number: int = 0, **changes: Any) -> Due:
    """Return the due time of the number-th night after the start."""
    due_at = START + HOUR + timedelta(days=number)
    return replace(Due(night=f"night {number}", due_at=due_at, closes_at=due_at + HOUR), **changes)


@pytest.fixture
def schedules(database: Database, clock: Clock) -> ScheduleStore:
    return ScheduleStore(database, clock.now)


@pytest.fixture
def nights(database: Database) -> NightStore:
    return NightStore(database)


@pytest.fixture
def schedule(schedules: ScheduleStore) -> Schedule:
    return schedules.create(make_spec())


def decide(nights: NightStore, schedule: Schedule, number: int = 0, **changes: Any) -> Night:
    """Decide a night at its due time; it must not have been decided before."""
    due = make_due(number, **changes)
    night = nights.decide(schedule, due, now=due.due_at)
    assert night is not None
    return night


def end(jobs: JobStore, job_id: str | None, state: JobState = JobState.FINISHED) -> None:
    assert job_id is not None
    jobs.finish(jobs.claim(job_id, "host:1:1", 60.0), state, "trials")


def measured(jobs: JobStore, trials: TrialStore, fronts: FrontStore, job_id: str | None) -> Job:
    """Run a night's job: four points, of which the default and the best two are on its front."""
    assert job_id is not None
    claim = jobs.claim(job_id, "host:1:1", 60.0)
    done = []
    for number, batch in enumerate((8, 16, 32, 16)):
        trial = make_trial(number=number, point=make_point(batch))
        started = trials.start(claim, number, trial.point)
        assert trials.finish(started, trial)
        done.append(trial)
    fronts.save(job_id, front_of(done[1:2], "tpot_p99_ms", created_at=START))
    jobs.finish(claim, JobState.FINISHED, "trials")
    return jobs.get(job_id)


def test_a_due_time_is_decided_once(nights: NightStore, schedules: ScheduleStore, jobs: JobStore) -> None:
    """BUG-21: the second server that wants to start a night finds it started, in what it read before too."""
    schedule = schedules.create(make_spec())
    night = decide(nights, schedule)
    assert nights.decide(schedule, make_due(), now=make_due().due_at) is None
    assert nights.list(schedule.id, limit=9) == [night]
    (job,) = jobs.list(limit=9)
    assert (night.state, night.job_id, night.job_state) == (NightState.STARTED, job.id, JobState.QUEUED)
    assert (job.submitted_by, job.priority, job.request, job.previous_job_id) == (
        "schedule nightly", 3, make_request(), None
    )  # fmt: skip
    assert schedules.get("nightly").decided_until == make_due().due_at


def test_of_many_who_decide_at_once_one_does(nights: NightStore, schedule: Schedule, jobs: JobStore) -> None:
    """BUG-21: threads that decide the same night start one job."""
    found: list[Night | None] = []

    def try_it() -> None:
        found.append(nights.decide(schedule, make_due(), now=make_due().due_at))

    threads = [threading.Thread(target=try_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([night for night in found if night is not None]) == 1
    assert (len(found), len(jobs.list(limit=9))) == (6, 1)


def test_nothing_is_decided_backwards(nights: NightStore, schedule: Schedule) -> None:
    """A due time before the last decided one stays undecided: clocks that jump back repeat nothing."""
    decide(nights, schedule, 1)
    assert nights.decide(schedule, make_due(0), now=make_due(2).due_at) is None
    assert len(nights.list(schedule.id, limit=9)) == 1


def test_a_change_meanwhile_leaves_the_night_undecided(
    nights: NightStore, schedules: ScheduleStore, schedule: Schedule
) -> None:
    """Whoever read the schedule before it was changed or deleted decides nothing."""
    schedules.change("nightly", make_spec(cron="0 3 * * *"), expected_version=1)
    assert nights.decide(schedule, make_due(), now=make_due().due_at) is None
    schedules.delete("nightly")
    assert nights.decide(schedule, make_due(), now=make_due().due_at) is None


def test_a_night_that_ran_does_not_run_again_at_another_hour(
    nights: NightStore, schedules: ScheduleStore, schedule: Schedule, jobs: JobStore
) -> None:
    """Times that are changed in the middle of the night give that night no second run."""
    decide(nights, schedule)
    later = schedules.change("nightly", make_spec(cron="0 3 * * *"), expected_version=1)
    assert nights.decide(later, make_due(0, due_at=make_due().due_at + HOUR), now=START + 3 * HOUR) is None
    assert len(jobs.list(limit=9)) == 1
    assert schedules.get("nightly").decided_until == make_due().due_at + HOUR


def test_a_missed_night_is_recorded(nights: NightStore, schedule: Schedule, jobs: JobStore) -> None:
    """BUG-23: a due time that nobody was there for has a row with the reason, and no job."""
    night = nights.decide(schedule, make_due(), now=START + timedelta(days=3), missed_because="nobody was there")
    assert night is not None
    assert (night.state, night.reason, night.job_id) == (NightState.MISSED, "nobody was there", None)
    assert jobs.list(limit=9) == []


def test_a_paused_schedule_starts_nothing(nights: NightStore, schedules: ScheduleStore, schedule: Schedule) -> None:
    """Its nights are recorded as skipped, so that nobody looks for them."""
    night = decide(nights, schedules.pause("nightly"))
    assert (night.state, night.reason) == (NightState.SKIPPED, "the schedule was paused")


def test_a_night_is_skipped_while_the_one_before_runs(
    nights: NightStore, schedule: Schedule, jobs: JobStore, schedules: ScheduleStore
) -> None:
    """BUG-26: it is recorded with the job that is in its way; once that has ended the next one runs."""
    first = decide(nights, schedule, 0)
    assert first.job_id is not None
    jobs.claim(first.job_id, "host:1:1", 60.0)
    second = decide(nights, schedule, 1)
    assert (second.state, second.job_id) == (NightState.SKIPPED, first.job_id)
    assert second.reason == f"job {first.job_id[:8]} of a night before is running"
    jobs.request_cancel(first.job_id)
    claim = jobs.claim_next("host:1:1", 60.0)
    assert claim is None
    assert decide(nights, schedule, 2).state is NightState.SKIPPED


def test_queued_nights_wait_and_do_not_pile_up(nights: NightStore, schedules: ScheduleStore, jobs: JobStore) -> None:
    """BUG-26: under `queue` a few nights wait behind one that hangs, the others are skipped."""
    schedule = schedules.create(make_spec(overlap=Overlap.QUEUE))
    states = [decide(nights, schedule, number).state for number in range(MAX_QUEUED + 2)]
    assert states == [NightState.STARTED] * MAX_QUEUED + [NightState.SKIPPED] * 2
    assert len(jobs.list(limit=9)) == MAX_QUEUED


def test_a_replacing_night_starts_at_once(nights: NightStore, schedules: ScheduleStore) -> None:
    """Under `replace` the job before is in nobody's way; both are open until somebody ends the older one."""
    schedule = schedules.create(make_spec(overlap=Overlap.REPLACE))
    made = [decide(nights, schedule, number) for number in range(2)]
    assert [night.state for night in made] == [NightState.STARTED] * 2
    assert nights.open() == made


def test_a_retune_begins_with_the_last_front(
    nights: NightStore, schedule: Schedule, jobs: JobStore, trials: TrialStore, fronts: FrontStore
) -> None:
    """The next night's job names the last one that found points, and takes over next to nothing that is old."""
    first = measured(jobs, trials, fronts, decide(nights, schedule, 0).job_id)
    end(jobs, decide(nights, schedule, 1).job_id, JobState.FAILED)
    night = decide(nights, schedule, 2)
    assert night.job_id is not None
    job = jobs.get(night.job_id)
    assert job.previous_job_id == first.id
    assert job.request == make_request(reuse=ReuseRule(max_age_hours=FRESH_HOURS))


@pytest.mark.parametrize(
    ("minutes", "hours_left", "expected"),
    [(None, 4.0, 240.0), (30.0, 4.0, 30.0), (300.0, 2.0, 120.0), (None, 0.0, 1.0)],
)
def test_a_job_is_over_when_its_window_is(minutes: float | None, hours_left: float, expected: float) -> None:
    """The budget in minutes is what is left of the window, or less where the request says so; never nothing."""
    request = make_request(budget=Budget(trials=4, minutes=minutes))
    asked = night_request(request, now=START, ends_at=START + timedelta(hours=hours_left), is_retune=False)
    assert asked.budget == Budget(trials=4, minutes=expected)
    assert asked.reuse == request.reuse


def test_a_request_that_says_how_old_is_believed() -> None:
    """A retune of a request that takes over measurements of a day takes those over."""
    request = make_request(reuse=ReuseRule(max_age_hours=24))
    assert night_request(request, now=START, ends_at=None, is_retune=True) == request


def test_a_run_by_hand_is_a_night_of_its_own(nights: NightStore, schedule: Schedule, jobs: JobStore) -> None:
    """It starts beside the calendar, once a second and once a key, and the calendar's next night still comes."""
    first = nights.run_now(schedule.id, now=START, idempotency_key="key")
    assert (first.night, first.state) == ("manual 2026-03-01T12:00:00+00:00", NightState.STARTED)
    assert nights.run_now(schedule.id, now=START) == first
    end(jobs, first.job_id)
    again = nights.run_now(schedule.id, now=START + HOUR, idempotency_key="key")
    assert again == replace(first, job_state=JobState.FINISHED)
    assert decide(nights, schedule).state is NightState.STARTED
    with pytest.raises(ScheduleNotFound):
        nights.run_now("0000", now=START)


def test_nights_that_ended_wait_for_their_report(nights: NightStore, schedule: Schedule, jobs: JobStore) -> None:
    """A night is to be reported once its job has ended, and what moved is stored by the first who says it."""
    first, second = (decide(nights, schedule), nights.run_now(schedule.id, now=START + 2 * HOUR))
    assert second.state is NightState.SKIPPED
    assert nights.to_report() == []
    end(jobs, first.job_id)
    assert [night.id for night in nights.to_report()] == [first.id]
    assert [nights.set_drift(first.id, {"has_moved": moved}) for moved in (True, False)] == [True, False]
    assert nights.to_report() == []
    assert nights.list(schedule.id, limit=1, before=second.id)[0].drift == {"has_moved": True}


def test_a_reason_is_given_once(nights: NightStore, schedule: Schedule) -> None:
    """Why a job was ended stays what was said first."""
    night = decide(nights, schedule)
    for words in ("its window ended", "something else"):
        nights.note(night.id, words)
    assert nights.list(schedule.id, limit=1)[0].reason == "its window ended"


def test_news_is_what_was_decided_or_ended_lately(
    nights: NightStore, schedule: Schedule, jobs: JobStore, clock: Clock
) -> None:
    """A night decided long ago is news again when its job ends."""
    night = decide(nights, schedule)
    assert [one.id for one in nights.since(schedule.id, make_due().due_at)] == [night.id]
    clock.time = START + timedelta(days=5)
    assert nights.since(schedule.id, START + timedelta(days=4)) == []
    end(jobs, night.job_id)
    assert [one.id for one in nights.since(schedule.id, START + timedelta(days=4))] == [night.id]


def test_old_nights_keep_their_fronts(
    nights: NightStore, schedule: Schedule, jobs: JobStore, trials: TrialStore, fronts: FrontStore
) -> None:
    """Of nights older than asked only measurements that stand for no front go; trials, fronts and jobs stay."""
    ended = [measured(jobs, trials, fronts, decide(nights, schedule, number).job_id) for number in range(3)]
    kept = [fronts.latest(job.id) for job in ended]
    assert [nights.prune(schedule.id, 1) for _ in range(2)] == [2, 0]
    left = {
        job.id: [trial.point["max_batch"] for trial in trials.list(job.id) if trial.measurement is not None]
        for job in ended
    }
    assert left == {ended[0].id: [8, 16, 16], ended[1].id: [8, 16, 16], ended[2].id: [8, 16, 32, 16]}
    assert [fronts.latest(job.id) for job in ended] == kept
    assert [len(trials.list(job.id)) for job in ended] == [4, 4, 4]


def test_old_nights_are_cleared_one_by_one(
    nights: NightStore,
    schedule: Schedule,
    jobs: JobStore,
    trials: TrialStore,
    fronts: FrontStore,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each night is a transaction of its own, and those with nothing to remove take no lock: others may write."""
    for number in range(4):
        measured(jobs, trials, fronts, decide(nights, schedule, number).job_id)
    begun: list[int] = []
    transaction = Database.transaction

    def counted(self: Database) -> AbstractContextManager[Session]:
        begun.append(1)
        return transaction(self)

    monkeypatch.setattr(Database, "transaction", counted)
    assert (nights.prune(schedule.id, 1), len(begun)) == (3, 3)
    assert (nights.prune(schedule.id, 1), len(begun)) == (0, 3)


def test_nights_that_were_cleared_are_not_read_again(
    nights: NightStore,
    schedule: Schedule,
    jobs: JobStore,
    trials: TrialStore,
    fronts: FrontStore,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database names the nights that have something to remove: with none there is one query, however many."""
    for number in range(4):
        measured(jobs, trials, fronts, decide(nights, schedule, number).job_id)
    assert nights.prune(schedule.id, 2) == 2
    begun: list[int] = []
    read = Database.read

    def counted(self: Database) -> AbstractContextManager[Session]:
        begun.append(1)
        return read(self)

    monkeypatch.setattr(Database, "read", counted)
    assert (nights.prune(schedule.id, 2), len(begun)) == (0, 1)
    assert (nights.prune(schedule.id, 1), len(begun)) == (1, 3)


def test_nights_go_with_their_schedule_and_jobs_stay(
    nights: NightStore, schedules: ScheduleStore, schedule: Schedule, jobs: JobStore
) -> None:
    """Deleting a schedule deletes its history, and nobody's results."""
    night = decide(nights, schedule)
    schedules.delete("nightly")
    assert nights.list(schedule.id, limit=9) == []
    assert jobs.get(str(night.job_id)).state is JobState.QUEUED
