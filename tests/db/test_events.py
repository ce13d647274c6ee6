"""What happened to jobs, in order: every change of a job and of a trial leaves one event."""

from __future__ import annotations

import pytest

from db.database import Database
from db.events import Event, EventStore
from db.jobs import Claim, JobState, JobStore
from db.trials import TrialStore
from tests.db.factories import Clock, make_point, make_request, make_trial
from tests.db.workers import at_once
from tuner.trial import TrialState


@pytest.fixture
def events(database: Database) -> EventStore:
    return EventStore(database)


@pytest.fixture
def claim(jobs: JobStore) -> Claim:
    return jobs.claim(jobs.create(make_request()).id, "host:1", 60)


def said(event: Event) -> tuple[object, ...]:
    """Return an event's kind and what it says of states."""
    trial = (event.data["number"], event.data["attempt"]) if "number" in event.data else ()
    return event.kind, *trial, event.data.get("state"), event.data.get("reason", event.data.get("ended_because"))


def test_a_job_tells_what_happens_to_it(
    jobs: JobStore, trials: TrialStore, events: EventStore, claim: Claim, clock: Clock
) -> None:
    """From its creation to its end each change is there once, in its order, the trials' with their figures."""
    trials.finish(trials.start(claim, 0, make_point()), make_trial())
    failed = make_trial(number=1, state=TrialState.FAILED, reason="engine_died", measurement=None)
    clock.advance(7)
    trials.finish(trials.start(claim, 1, make_point()), failed)
    jobs.finish(claim, JobState.FINISHED, "trials", "all done")
    told = events.after(claim.job_id, 0)
    assert [said(event) for event in told] == [
        ("job", "queued", None),
        ("job", "running", None),
        ("trial_started", 0, 1, None, None),
        ("trial", 0, 1, "complete", None),
        ("trial_started", 1, 1, None, None),
        ("trial", 1, 1, "failed", "engine_died"),
        ("job", "finished", "trials"),
    ]
    assert [told[3].data["tok_per_j"], told[5].data["tok_per_j"]] == [2.0, None]
    assert (told[-1].data["message"], told[-1].at) == ("all done", clock.now())
    assert told[4:] == events.after(claim.job_id, told[3].id)
    assert told[-1].id == events.last_id(claim.job_id)


def test_an_interrupted_trial_is_told(
    jobs: JobStore, trials: TrialStore, events: EventStore, claim: Claim, clock: Clock
) -> None:
    """A trial that its worker left, or that a release cut short, ends with an event too, before its job goes on."""
    trials.start(claim, 0, make_point())
    jobs.release(claim)
    before = events.last_id(claim.job_id)
    for owner in ("host:2", "host:3"):
        successor = jobs.claim(claim.job_id, owner, 60)
        trials.start(successor, 0, make_point())
        clock.advance(60)
    jobs.finish(jobs.claim(claim.job_id, "host:4", 60), JobState.CANCELLED, "cancelled")
    assert ("trial", 0, 1, "interrupted", "released") in [said(event) for event in events.after(claim.job_id, 0)]
    assert [said(event) for event in events.after(claim.job_id, before)] == [
        ("job", "running", None),
        ("trial_started", 0, 2, None, None),
        ("trial", 0, 2, "interrupted", "worker_lost"),
        ("job", "running", None),
        ("trial_started", 0, 3, None, None),
        ("trial", 0, 3, "failed", "interrupted_twice"),
        ("job", "running", None),
        ("job", "cancelled", "cancelled"),
    ]


def test_an_event_says_what_became_of_a_trial(trials: TrialStore, events: EventStore, claim: Claim) -> None:
    """A second interruption that the worker reports is told as what it was stored as: a failure."""
    interrupted = make_trial(state=TrialState.INTERRUPTED, reason="interrupted", measurement=None)
    for _ in range(2):
        trials.finish(trials.start(claim, 0, make_point()), interrupted)
    told = [said(event) for event in events.after(claim.job_id, 0) if event.kind == "trial"]
    assert told == [("trial", 0, 1, "interrupted", "interrupted"), ("trial", 0, 2, "failed", "interrupted_twice")]
    assert [reason for *_, reason in told] == [trial.reason for trial in trials.list(claim.job_id)]


def test_events_of_a_job_keep_their_order(jobs: JobStore, database_url: str, events: EventStore, clock: Clock) -> None:
    """Whoever follows a job while several change it finds no number lower than one that it has read."""
    job_id = jobs.create(make_request(device="simulated:h100-sxm")).id

    def disturb(store: JobStore) -> list[int]:
        seen: list[int] = []
        for _ in range(5):
            if (claim := store.claim_next("host", 60)) is not None:
                store.release(claim)
            seen += [event.id for event in events.after(job_id, seen[-1] if seen else 0)]
        return seen

    read = at_once(database_url, clock, disturb)
    everything = [event.id for event in events.after(job_id, 0)]
    assert all(ids == everything[: len(ids)] for ids in read)
