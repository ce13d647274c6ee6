"""Notifications: each is stored once, taken by one server at a time, and ends in a state."""

from __future__ import annotations

from datetime import timedelta

import pytest

from db.database import Database
from db.deliveries import Delivery, DeliveryStore
from db.service import DeliveryState
from tests.db.factories import Clock
from tests.db.workers import at_once

BODY = {"event": "night.started", "night": "2026-03-29"}
MINUTE = timedelta(minutes=1)


@pytest.fixture
def deliveries(database: Database, clock: Clock) -> DeliveryStore:
    return DeliveryStore(database, clock.now)


def take(deliveries: DeliveryStore, limit: int = 10) -> list[Delivery]:
    return deliveries.take_due(limit=limit, hold_s=60.0)


def test_a_target_is_told_once(deliveries: DeliveryStore) -> None:
    """The same news is stored once for a target, and for another target again."""
    told = [deliveries.add(target, "night/1/started", BODY) for target in ("ops", "ops", "chat")]
    assert told == [True, False, True]
    taken = take(deliveries)
    assert [(one.target, one.event_key, one.body) for one in taken] == [
        ("ops", "night/1/started", BODY),
        ("chat", "night/1/started", BODY),
    ]


def test_what_is_being_sent_is_nobody_elses(deliveries: DeliveryStore, clock: Clock) -> None:
    """What is taken comes again only after the hold, under the same id, and counts as a further attempt."""
    deliveries.add("ops", "night/1/started", BODY)
    (first,) = take(deliveries)
    clock.advance(59)
    assert take(deliveries) == []
    clock.advance(1)
    (again,) = take(deliveries)
    assert (again.id, first.num_attempts, again.num_attempts) == (first.id, 1, 2)


def test_what_waits_longest_comes_first(deliveries: DeliveryStore, clock: Clock) -> None:
    """A look takes as many as asked for, in the order in which they were due."""
    for number in range(3):
        deliveries.add("ops", f"night/{number}/started", BODY)
        clock.advance(1)
    assert [one.event_key for one in take(deliveries, 2)] == ["night/0/started", "night/1/started"]
    assert [one.event_key for one in take(deliveries, 2)] == ["night/2/started"]


def test_a_delivery_ends_once(deliveries: DeliveryStore, clock: Clock) -> None:
    """What has arrived is not sent again, and keeps when it arrived."""
    deliveries.add("ops", "night/1/started", BODY)
    (taken,) = take(deliveries)
    assert deliveries.failed(taken, "it answered 500", clock.now() + MINUTE)
    assert deliveries.next_attempt_at() == clock.now() + MINUTE
    clock.advance(60)
    (taken,) = take(deliveries)
    assert taken.last_error == "it answered 500"
    assert [deliveries.delivered(taken) for _ in range(2)] == [True, False]
    clock.advance(1e6)
    assert (take(deliveries), deliveries.next_attempt_at()) == ([], None)
    (listed,) = deliveries.list(limit=9)
    assert (listed.state, listed.last_error, listed.num_attempts) == (DeliveryState.DELIVERED, None, 2)
    assert listed.delivered_at == clock.now() - timedelta(seconds=1e6)


def test_what_is_given_up_stays_visible(deliveries: DeliveryStore, clock: Clock) -> None:
    """After the last attempt a delivery is listed as failed with its reason, and is not sent again."""
    deliveries.add("ops", "night/1/started", BODY)
    deliveries.add("ops", "night/2/started", BODY)
    assert deliveries.failed(take(deliveries, 1)[0], "it answered 410", None)
    clock.advance(1e6)
    assert [one.event_key for one in take(deliveries)] == ["night/2/started"]
    (failed,) = deliveries.list(limit=9, state=DeliveryState.FAILED)
    assert (failed.event_key, failed.last_error) == ("night/1/started", "it answered 410")


def test_a_late_outcome_changes_nothing(deliveries: DeliveryStore, clock: Clock) -> None:
    """A server that was held up beyond its hold cannot end what another has taken since."""
    deliveries.add("ops", "night/1/started", BODY)
    (late,) = take(deliveries)
    clock.advance(60)
    (current,) = take(deliveries)
    assert not deliveries.failed(late, "no answer", None)
    assert not deliveries.delivered(late)
    assert deliveries.delivered(current)


def test_lists_go_in_pages(deliveries: DeliveryStore) -> None:
    """Following the numbers shows every delivery once, the newest first."""
    for number in range(3):
        deliveries.add("ops", f"night/{number}/started", BODY)
    first = deliveries.list(limit=2)
    rest = deliveries.list(limit=2, before=first[-1].id)
    assert [one.event_key[6] for one in (*first, *rest)] == ["2", "1", "0"]


def test_two_servers_never_send_the_same(deliveries: DeliveryStore, database_url: str, clock: Clock) -> None:
    """Of servers that look and add at the same moment each delivery is stored once and taken by one."""

    def act(_: object) -> tuple[list[bool], list[int]]:
        database = Database(database_url)
        store = DeliveryStore(database, clock.now)
        added = [store.add("ops", f"night/{number}/started", BODY) for number in range(6)]
        taken = [one.id for _ in range(6) for one in take(store, 2)]
        database.dispose()
        return added, taken

    found = at_once(database_url, clock, act, num_workers=3)
    taken = [number for _, numbers in found for number in numbers]
    assert sum(sum(added) for added, _ in found) == 6
    assert sorted(taken) == sorted({one.id for one in deliveries.list(limit=99)})


def test_a_test_is_taken_from_the_start(deliveries: DeliveryStore) -> None:
    """What somebody sends himself is not sent by a server that looks meanwhile."""
    taken = deliveries.add_taken("ops", "test/1", BODY, hold_s=60.0)
    assert take(deliveries) == []
    assert (taken.num_attempts, deliveries.delivered(taken)) == (1, True)
