"""Notifications on their way: each is stored once for a target, taken by one server at a time, and ends in a state.

A server takes a delivery by moving its next attempt beyond what sending can last: a server that dies leaves it to be
taken again. So a receiver may get the same delivery twice, under the same id. Knows nothing of targets' addresses, nor
of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError

from db.database import Database
from db.service import DeliveryState
from db.service_tables import DeliveryRow

Deliveries = list["Delivery"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A notification for one target."""

    #: Grows; the same at every attempt, so that receivers notice what they have had.
    id: int
    #: Name of the operator's file.
    target: str
    #: What it tells of: night/ID/finished, ...
    event_key: str
    body: Mapping[str, Any]
    state: DeliveryState
    #: Attempts so far, the one that is under way included.
    num_attempts: int
    #: While an attempt is under way: when another server may take it.
    next_attempt_at: datetime
    created_at: datetime
    delivered_at: datetime | None
    last_error: str | None


class DeliveryStore:
    """The deliveries of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def add(self, target: str, event_key: str, body: Mapping[str, Any]) -> bool:
        """Store a notification that is due now; False, storing nothing, when the target has one of that key."""
        known = select(DeliveryRow.id).where(DeliveryRow.target == target, DeliveryRow.event_key == event_key)
        try:
            with self._database.transaction() as session:
                if session.scalar(known) is not None:
                    return False
                session.add(_new_row(target, event_key, body, now=self._now()))
        except IntegrityError:  # on PostgreSQL another server may insert it after we looked
            return False
        return True

    def add_taken(self, target: str, event_key: str, body: Mapping[str, Any], *, hold_s: float) -> Delivery:
        """Store a notification that the caller sends himself, once; the key must be a new one."""
        with self._database.transaction() as session:
            row = _new_row(target, event_key, body, now=self._now())
            row.num_attempts, row.next_attempt_at = 1, row.created_at + timedelta(seconds=hold_s)
            session.add(row)
            session.flush()
            return _delivery_of(row)

    def take_due(self, *, limit: int, hold_s: float) -> Deliveries:
        """Take at most `limit` deliveries whose time has come, those that wait longest first.

        No other server gets them for `hold_s`, in which their outcome has to be told.
        """
        with self._database.transaction() as session:
            now = self._now()
            due = select(DeliveryRow).where(
                DeliveryRow.state == DeliveryState.PENDING, DeliveryRow.next_attempt_at <= now
            )
            due = due.order_by(DeliveryRow.next_attempt_at, DeliveryRow.id).limit(limit)
            rows = session.scalars(due.with_for_update(skip_locked=True)).all()
            for row in rows:
                row.num_attempts += 1
                row.next_attempt_at = now + timedelta(seconds=hold_s)
            return [_delivery_of(row) for row in rows]

    def delivered(self, delivery: Delivery) -> bool:
        """Note that the target has it; False when another server has taken it since."""
        return self._end_attempt(delivery, state=DeliveryState.DELIVERED, delivered_at=self._now(), last_error=None)

    def failed(self, delivery: Delivery, error: str, next_attempt_at: datetime | None) -> bool:
        """Note why an attempt failed and when the next one is due; None gives up. False when another has taken it."""
        if next_attempt_at is None:
            return self._end_attempt(delivery, state=DeliveryState.FAILED, last_error=error)
        return self._end_attempt(delivery, next_attempt_at=next_attempt_at, last_error=error)

    def next_attempt_at(self) -> datetime | None:
        """Return when the next attempt is due; None when nothing waits."""
        with self._database.read() as session:
            waiting = DeliveryRow.state == DeliveryState.PENDING
            return session.scalar(select(func.min(DeliveryRow.next_attempt_at)).where(waiting))

    def list(self, *, limit: int, before: int | None = None, state: DeliveryState | None = None) -> Deliveries:
        """Return at most `limit` deliveries, newest first: older than the delivery `before`, in one state."""
        query = select(DeliveryRow).order_by(DeliveryRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(DeliveryRow.id < before)
        if state is not None:
            query = query.where(DeliveryRow.state == state)
        with self._database.read() as session:
            return [_delivery_of(row) for row in session.scalars(query)]

    def _end_attempt(self, delivery: Delivery, **columns: Any) -> bool:
        """Write an attempt's outcome, unless the delivery was taken again meanwhile."""
        this_attempt = (
            DeliveryRow.id == delivery.id,
            DeliveryRow.state == DeliveryState.PENDING,
            DeliveryRow.num_attempts == delivery.num_attempts,
        )
        ended = update(DeliveryRow).where(*this_attempt).values(columns).returning(DeliveryRow.id)
        with self._database.transaction() as session:
            return session.execute(ended).one_or_none() is not None


def _new_row(target: str, event_key: str, body: Mapping[str, Any], *, now: datetime) -> DeliveryRow:
    return DeliveryRow(
        target=target,
        event_key=event_key,
        body=dict(body),
        state=DeliveryState.PENDING,
        num_attempts=0,
        next_attempt_at=now,
        created_at=now,
    )


def _delivery_of(row: DeliveryRow) -> Delivery:
    return Delivery(
        id=row.id,
        target=row.target,
        event_key=row.event_key,
        body=row.body,
        state=DeliveryState(row.state),
        num_attempts=row.num_attempts,
        next_attempt_at=row.next_attempt_at,
        created_at=row.created_at,
        delivered_at=row.delivered_at,
        last_error=row.last_error,
    )
