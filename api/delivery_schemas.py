"""Notifications as JSON. Field names are public and in docs/glossary.md."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel

from db.deliveries import Delivery
from db.service import DeliveryState


class DeliveryOut(BaseModel):
    """A notification for one target."""

    #: As in X-Wattfront-Delivery.
    id: int
    target: str
    event_key: str
    state: DeliveryState
    num_attempts: int
    #: Null when it has been delivered or given up.
    next_attempt_at: datetime | None
    created_at: datetime
    delivered_at: datetime | None
    last_error: str | None
    body: dict[str, Any]


class DeliveriesOut(BaseModel):
    """A page of notifications, newest first."""

    items: list[DeliveryOut]
    #: Give it as `before` for the next page; null on the last one.
    next: int | None


def delivery_out(delivery: Delivery) -> DeliveryOut:
    """Return a notification's public form."""
    return DeliveryOut(
        id=delivery.id,
        target=delivery.target,
        event_key=delivery.event_key,
        state=delivery.state,
        num_attempts=delivery.num_attempts,
        next_attempt_at=delivery.next_attempt_at if delivery.state is DeliveryState.PENDING else None,
        created_at=delivery.created_at,
        delivered_at=delivery.delivered_at,
        last_error=delivery.last_error,
        body=dict(delivery.body),
    )
