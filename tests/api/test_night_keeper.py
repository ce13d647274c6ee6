"""One look at every schedule: late and missed nights, those in the way, what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from api.job_run import run_job
from api.night_keeper import MAX_RECORDED, OVERRUN, NightKeeper
from api.operator_file import Operator
from api.schedule_desk import ScheduleDesk
from api.settings import Settings
from api.stores import Stores
from db.job import JobState
from db.schedule import Night, Schedule
from db.service import NightState, Overlap
from tests.api.night_watch import at, clocked, end_jobs, make_spec, nights_of
from tests.api.test_reuse import asked
from tests.db.factories import Clock

STARTED, MISSED, SKIPPED = NightState.STARTED, NightState.MISSED, NightState.SKIPPED
#: Noon before the first night of these tests.
NOON = at("2026-01-05T12:00+01:00")
ONE_DAY = timedelta(days=1)

Told = list[tuple[str, str, dict[str, Any]]]


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
def kept(stores: Stores, clock: Clock) -> Stores:
    """Stores by the test's clock."""
    return clocked(stores, clock)


@pytest.fixture
def look(kept: Stores, clock: Clock) -> Callable[..., datetime | None]:
    """Look at every schedule at a time."""
    keeper = NightKeeper(kept, clock.now)

    def look_at(time: datetime | None = None) -> datetime | None:
        clock.time = time or clock.time
        return keeper.keep()

    return look_at


Look = Callable[..., datetime | None]


def states(stores: Stores, schedule: Schedule) -> list[tuple[str, NightState]]:
    return [(night.night, night.state) for night in nights_of(stores, schedule)]


def last(stores: Stores, schedule: Schedule) -> Night:
    return nights_of(stores, schedule)[-1]


def test_it_says_when_something_is_due_next(kept: Stores, look: Look) -> None:
    """The next look is due when the first of all schedules is; without one that is active it is not."""
    assert look() is None
    kept.schedules.create(make_spec())
    kept.schedules.create(make_spec(name="earlier", cron="30 23 * * *"))
    assert look() == at("2026-01-05T23:30+01:00")
    kept.schedules.pause("earlier")
    assert look() == at("2026-01-06T01:00+01:00")
    kept.schedules.delete("nightly")
    assert look() is None


def test_a_night_found_late_runs_late_inside_its_window(kept: Stores, look: Look) -> None:
    """BUG-23: a service that was down from 00:55 to 03:10 starts the night's run at 03:10, until 05:00."""
    schedule = kept.schedules.create(make_spec())
    look(at("2026-01-06T03:10+01:00"))
    night = last(kept, schedule)
    assert (night.night, night.state, night.reason) == ("2026-01-06", STARTED, None)
    assert kept.jobs.get(str(night.job_id)).request.budget.minutes == 110
    look()
    assert len(nights_of(kept, schedule)) == 1


@pytest.mark.parametrize(
    ("changes", "found", "state"),
    [
        ({}, "2026-01-06T05:00+01:00", STARTED),
        ({}, "2026-01-06T05:01+01:00", MISSED),
        ({"grace_s": 600.0}, "2026-01-06T01:10+01:00", STARTED),
        ({"grace_s": 600.0}, "2026-01-06T01:11+01:00", MISSED),
        ({"cron": "0 1 * * *"}, "2026-01-06T02:00+01:00", STARTED),
        ({"cron": "0 1 * * *"}, "2026-01-06T02:01+01:00", MISSED),
        ({"cron": "0 1 * * *", "grace_s": 7200.0}, "2026-01-06T02:01+01:00", STARTED),
    ],
)
def test_how_late_is_too_late(kept: Stores, look: Look, changes: dict[str, Any], found: str, state: NightState) -> None:
    """BUG-23: a run may start late until its window ends or its grace is over; then the night is recorded as missed."""
    schedule = kept.schedules.create(make_spec(**changes))
    look(at(found))
    assert last(kept, schedule).state is state


def test_three_missed_nights_give_one_run(kept: Stores, look: Look) -> None:
    """BUG-23: after three nights without a service the last one, still open, runs; the others are there as missed."""
    schedule = kept.schedules.create(make_spec())
    look(at("2026-01-08T04:00+01:00"))
    assert states(kept, schedule) == [("2026-01-06", MISSED), ("2026-01-07", MISSED), ("2026-01-08", STARTED)]
    first, second, third = nights_of(kept, schedule)
    assert first.reason == "no service was there in time: it was found 2 days, 3:00:00 after it was due"
    assert second.reason == "no service was there in time: it was found 1 day, 3:00:00 after it was due"
    assert third.due_at == at("2026-01-08T01:00+01:00")


def test_three_nights_missed_for_good_are_three_records(kept: Stores, look: Look) -> None:
    """BUG-23: found at noon none of them runs, and none is silent."""
    schedule = kept.schedules.create(make_spec())
    look(at("2026-01-08T12:00+01:00"))
    assert [state for _, state in states(kept, schedule)] == [MISSED] * 3
    assert kept.jobs.list(limit=9) == []


def test_due_times_found_together_run_once(kept: Stores, look: Look) -> None:
    """Of several that are still open the last runs, and the others say that it runs for them."""
    schedule = kept.schedules.create(make_spec(cron="0,20,40 1 * * *"))
    look(at("2026-01-06T01:45+01:00"))
    assert [state for _, state in states(kept, schedule)] == [MISSED, MISSED, STARTED]
    assert nights_of(kept, schedule)[0].reason == (
        "it was found late together with 2026-01-06T01:40+01:00, which runs for both"
    )


def test_a_long_absence_does_not_fill_the_history(kept: Stores, look: Look) -> None:
    """Of a month of missed hours the last hundred are recorded, and the first of them tells of the rest."""
    schedule = kept.schedules.create(make_spec(cron="0 * * * *"))
    look(NOON + 30 * ONE_DAY)
    nights = nights_of(kept, schedule)
    assert len(nights) == MAX_RECORDED
    assert nights[0].reason is not None
    assert nights[0].reason.endswith(
        f"so were {30 * 24 - MAX_RECORDED} due times before it, from 2026-01-05T13:00+01:00 on"
    )
    assert "so were" not in str(nights[1].reason)


def test_a_night_of_26_hours_costs_the_next_one(kept: Stores, look: Look) -> None:
    """BUG-26: the second night is skipped with the reason and the running job, and the third runs."""
    schedule = kept.schedules.create(make_spec(cron="0 1 * * *"))
    look(at("2026-01-06T01:00+01:00"))
    claim = kept.jobs.claim_next("host:1:1", 30 * 3600.0)
    assert claim is not None
    look(at("2026-01-07T01:00+01:00"))
    skipped = last(kept, schedule)
    assert (skipped.state, skipped.job_id, skipped.job_state) == (SKIPPED, claim.job_id, JobState.RUNNING)
    assert skipped.reason == f"job {claim.job_id[:8]} of a night before is running"
    kept.jobs.finish(claim, JobState.FINISHED, "trials")
    look(at("2026-01-08T01:00+01:00"))
    assert last(kept, schedule).state is STARTED


def test_a_job_that_hangs_is_ended_after_its_window(kept: Stores, look: Look) -> None:
    """BUG-26: a job that runs on past its window is asked to end, says why, and the next night runs."""
    schedule = kept.schedules.create(make_spec())
    look(at("2026-01-06T01:00+01:00"))
    claim = kept.jobs.claim_next("host:1:1", 8 * 3600.0)
    assert claim is not None
    look(at("2026-01-06T05:00+01:00") + OVERRUN - timedelta(seconds=1))
    assert not kept.jobs.get(claim.job_id).cancel_requested
    look(at("2026-01-06T05:00+01:00") + OVERRUN)
    assert kept.jobs.get(claim.job_id).cancel_requested
    assert last(kept, schedule).reason == "its job ran on after its window ended (2026-01-06T05:00+01:00)"
    kept.jobs.finish(claim, JobState.CANCELLED, "cancelled")
    look(at("2026-01-07T01:00+01:00"))
    assert last(kept, schedule).state is STARTED


def test_other_times_end_no_job_that_runs(kept: Stores, look: Look, clock: Clock) -> None:
    """A night that began at 22:00 runs on when the schedule moves to 01:00-05:00 of another day; a day is its end."""
    schedule = kept.schedules.create(make_spec(window_start="22:00", window_end="06:00"))
    look(at("2026-01-05T22:00+01:00"))
    claim = kept.jobs.claim_next("host:1:1", 48 * 3600.0)
    assert claim is not None
    clock.time += timedelta(hours=1)
    kept.schedules.change("nightly", make_spec(), expected_version=1)
    look()
    assert (kept.jobs.get(claim.job_id).cancel_requested, last(kept, schedule).reason) == (False, None)
    look(at("2026-01-06T22:00+01:00") + OVERRUN)
    assert kept.jobs.get(claim.job_id).cancel_requested


def test_a_job_that_no_worker_took_ends_with_its_window(kept: Stores, look: Look) -> None:
    """Nothing starts in working hours because a worker was missing at night."""
    schedule = kept.schedules.create(make_spec())
    look(at("2026-01-06T01:00+01:00"))
    look(at("2026-01-06T05:00+01:00"))
    night = last(kept, schedule)
    assert night.job_state is JobState.CANCELLED
    assert night.reason == "no worker took its job until its window ended (2026-01-06T05:00+01:00)"


def test_a_run_by_hand_has_no_window(kept: Stores, look: Look) -> None:
    """What somebody started at noon goes on in the evening."""
    schedule = kept.schedules.create(make_spec())
    night = kept.nights.run_now(schedule.id, now=NOON)
    look(NOON + timedelta(hours=8))
    assert not kept.jobs.get(str(night.job_id)).cancel_requested


def test_a_replacing_night_ends_the_one_before(kept: Stores, look: Look) -> None:
    """Under `replace` the older job is asked to end, the newer one stays."""
    schedule = kept.schedules.create(make_spec(cron="0 1 * * *", overlap=Overlap.REPLACE))
    for day in range(1, 3):
        look(at("2026-01-05T01:00+01:00") + day * ONE_DAY)
    older, newer = nights_of(kept, schedule)
    assert (older.job_state, older.reason) == (JobState.CANCELLED, "a later night took its place")
    assert (newer.job_state, newer.reason) == (JobState.QUEUED, None)


def test_a_paused_schedule_leaves_a_trace(kept: Stores, look: Look) -> None:
    """Nights of a paused schedule are skipped; resumed in the middle of one it waits for the next."""
    schedule = kept.schedules.create(make_spec())
    kept.schedules.pause("nightly")
    look(at("2026-01-06T01:01+01:00"))
    kept.schedules.resume("nightly")
    look(at("2026-01-06T02:00+01:00"))
    assert states(kept, schedule) == [("2026-01-06", SKIPPED)]
    look(at("2026-01-07T01:00+01:00"))
    assert last(kept, schedule).state is STARTED


def test_resumed_just_after_a_due_time_it_waits_for_the_next(kept: Stores, look: Look, clock: Clock) -> None:
    """A night that was due while the schedule was paused is skipped, also when nobody looked before it was resumed."""
    schedule = kept.schedules.create(make_spec())
    desk = ScheduleDesk(kept, Operator(), clock.now)
    desk.pause("nightly", actor="ops")
    look(at("2026-01-06T00:59+01:00"))
    clock.time = at("2026-01-06T01:00:20+01:00")
    desk.resume("nightly", actor="ops")
    look()
    assert states(kept, schedule) == [("2026-01-06", SKIPPED)]
    look(at("2026-01-07T01:00+01:00"))
    assert last(kept, schedule).state is STARTED


def test_a_schedule_made_inside_its_window_waits(kept: Stores, look: Look, clock: Clock) -> None:
    """What was due before a schedule was made is nobody's fault: it is neither run nor missed."""
    clock.time = at("2026-01-06T02:00+01:00")
    schedule = kept.schedules.create(make_spec())
    look()
    assert states(kept, schedule) == []


def test_restarts_repeat_nothing(kept: Stores, clock: Clock) -> None:
    """BUG-25: three services started one after the other find one schedule, and its night started."""
    schedule = kept.schedules.create(make_spec(), idempotency_key="configured")
    clock.time = at("2026-01-06T01:00+01:00")
    for _ in range(3):
        kept.schedules.create(make_spec(), idempotency_key="configured")
        NightKeeper(kept, clock.now).keep()
    assert (len(kept.schedules.all()), states(kept, schedule)) == (1, [("2026-01-06", STARTED)])


def test_a_second_night_measures_anew_and_tells_what_moved(kept: Stores, look: Look, settings: Settings) -> None:
    """It begins with the first night's front, measures every point anew and finds none moved; old windows then go."""
    schedule = kept.schedules.create(make_spec(request=asked(), keep_nights=1))
    for day in range(1, 3):
        look(at("2026-01-05T01:00+01:00") + day * ONE_DAY)
        claim = kept.jobs.claim_next("host:1:1", 60.0)
        assert claim is not None
        run_job(kept, claim, settings)
    look()
    first, second = (kept.jobs.get(str(night.job_id)) for night in nights_of(kept, schedule))
    trials, front = kept.trials.history(second.id), {trial.point for trial in kept.front(first).trials}
    assert second.previous_job_id == first.id
    assert front <= {trial.point for trial in trials[: len(front) + 1]}
    assert [(trial.reused_from, trial.measurement is None) for trial in trials] == [(None, False)] * 4
    before, drift = (night.drift for night in nights_of(kept, schedule))
    assert before is not None
    assert drift is not None
    assert (before["compared_with"], before["has_moved"]) == (None, False)
    assert (drift["compared_with"], drift["has_moved"], drift["changes"]) == (first.id, False, [])
    assert {point["state"] for point in drift["points"]} <= {"held", "not_told"}
    left = {trial.point for trial in kept.trials.history(first.id) if trial.measurement is not None}
    assert left == front | {trials[0].point}


def test_each_piece_of_news_is_told_once(kept: Stores, clock: Clock) -> None:
    """Start, end and misses are announced to every target of the schedule, once, also by a keeper that comes later."""
    told: dict[tuple[str, str], dict[str, Any]] = {}

    def announce(target: str, key: str, body: dict[str, Any]) -> None:
        told.setdefault((target, key), body)

    schedule = kept.schedules.create(make_spec(notify=("ops", "lab")))
    keeper = NightKeeper(kept, clock.now, announce)
    clock.time = at("2026-01-07T01:00+01:00")
    keeper.keep()
    missed, started = nights_of(kept, schedule)
    end_jobs(kept)
    NightKeeper(kept, clock.now, announce).keep()
    keys = [f"night/{missed.id}/missed", f"night/{started.id}/started", f"night/{started.id}/finished"]
    assert sorted(told) == sorted((target, key) for target in ("ops", "lab") for key in keys)
    finished = told["ops", keys[2]]
    assert (finished["event"], finished["schedule"], finished["job"]) == ("night.finished", "nightly", started.job_id)
    assert (finished["job_state"], finished["sentences"]) == ("finished", ["no front yet"])


def test_an_end_that_nobody_saw_is_told_later(kept: Stores, clock: Clock) -> None:
    """A job that ended while no service was there is announced by the next one, however late."""
    told: Told = []
    kept.schedules.create(make_spec(notify=("ops",)))
    clock.time = at("2026-01-06T01:00+01:00")
    NightKeeper(kept, clock.now, lambda *news: told.append(news)).keep()
    end_jobs(kept)
    clock.time += 5 * ONE_DAY
    kept.schedules.pause("nightly")
    NightKeeper(kept, clock.now, lambda *news: told.append(news)).keep()
    assert "night.finished" in [body["event"] for _, _, body in told]


def test_a_zone_that_is_unknown_here_stops_nobody_else(kept: Stores, look: Look) -> None:
    """A schedule that this machine cannot read is passed over, and the others run."""
    spec = make_spec(name="lost")
    kept.schedules.create(replace(spec, timezone="Mars/Olympus_Mons"))
    schedule = kept.schedules.create(make_spec())
    assert look(at("2026-01-06T01:00+01:00")) == at("2026-01-07T01:00+01:00")
    assert last(kept, schedule).state is STARTED
