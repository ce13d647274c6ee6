"""Sends notifications by HTTP to the targets that the operator configured, signed, until they arrive or are given up.

Where they go and what they are signed with is the operator's file and the environment: no request names an address.
What a target answers is not read, but for its status; nobody is led elsewhere by it. Knows nothing of what is told.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from api.operator_file import TargetEntry
from db.deliveries import Delivery, DeliveryStore

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger(__name__)

#: One attempt, from the look-up of the name to the status of the answer.
TIMEOUT_S = 10.0
#: For which nobody else takes what is being sent: well beyond an attempt, and the writing down of its outcome.
HOLD_S = 120.0
MAX_BODY_BYTES = 65_536
MAX_ATTEMPTS = 8
#: Sent side by side by one server at one look.
MAX_AT_ONCE = 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 6 * 3600.0
#: From one pause to the next: seven pauses lead from the first to the longest.
_GROWTH = 3.0
#: Share of a pause by which it is longer at most, so that what failed together does not come back together.
_JITTER = 0.25


class Webhooks:
    """Sends what is due of one database."""

    def __init__(
        self,
        deliveries: DeliveryStore,
        targets: Mapping[str, TargetEntry],
        now: Callable[[], datetime],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._deliveries = deliveries
        self._targets = targets
        self._now = now
        self._environment = environment

    def send_due(self) -> datetime | None:
        """Send what is due, `MAX_AT_ONCE` at most, and return when something is due next. Raises StoreError."""
        taken = self._deliveries.take_due(limit=MAX_AT_ONCE, hold_s=HOLD_S)
        for delivery, error in zip(taken, asyncio.run(self._send_all(taken)) if taken else [], strict=True):
            self._note(delivery, error)
        return self._deliveries.next_attempt_at()

    def send_once(self, target: str, event_key: str, body: Mapping[str, object]) -> str | None:
        """Send something now and not again; return in words why it did not arrive, None when it did."""
        delivery = self._deliveries.add_taken(target, event_key, body, hold_s=HOLD_S)
        (error,) = asyncio.run(self._send_all([delivery]))
        if error is None:
            self._deliveries.delivered(delivery)
        else:
            self._deliveries.failed(delivery, error, None)
        return error

    def _note(self, delivery: Delivery, error: str | None) -> None:
        if error is None:
            self._deliveries.delivered(delivery)
            return
        is_last = delivery.num_attempts >= MAX_ATTEMPTS
        pause = timedelta(seconds=pause_s(delivery.id, delivery.num_attempts))
        self._deliveries.failed(delivery, error, None if is_last else self._now() + pause)

    async def _send_all(self, deliveries: Sequence[Delivery]) -> list[str | None]:
        import httpx  # here, as it takes a tenth of the time that a service needs to start

        async with httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False) as client:
            sent = (self._send(client, delivery) for delivery in deliveries)
            ended = await asyncio.gather(*sent, return_exceptions=True)
        return [_words(one, delivery) for one, delivery in zip(ended, deliveries, strict=True)]

    async def _send(self, client: httpx.AsyncClient, delivery: Delivery) -> str | None:
        """Make one attempt; return in words why it failed. The words are shown to callers, the log has more."""
        import httpx  # as above

        target = self._targets.get(delivery.target)
        if target is None:
            return f"target {delivery.target!r} is not in the server's operator file; add it there"
        secret = target.secret(self._environment)
        if secret is None:
            return f"{target.secret_env}, the secret of target {delivery.target!r}, is not set; set it for the server"
        content = json.dumps(dict(delivery.body), allow_nan=False).encode()
        if len(content) > MAX_BODY_BYTES:
            return f"it has {len(content)} bytes, {MAX_BODY_BYTES} are sent at most"
        headers = signed_headers(delivery, content, secret=secret, timestamp=int(self._now().timestamp()))
        try:
            # The client's own limits are of each read: a target that answers a byte at a time would hold us for ever.
            async with (
                asyncio.timeout(TIMEOUT_S),
                client.stream("POST", target.url, content=content, headers=headers) as response,
            ):
                error = _refusal(response.status_code)
        except (TimeoutError, httpx.TimeoutException):
            error = f"no answer within {TIMEOUT_S:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as cause:
            error = f"no connection, or it broke ({type(cause).__name__}); the server's log has more"
            log.warning("delivery_broke", delivery=delivery.id, target=delivery.target, error=str(cause))
        log.info("delivery_tried", delivery=delivery.id, target=delivery.target, event_key=delivery.event_key,
                 attempt=delivery.num_attempts, error=error)  # fmt: skip
        return error


def keep_and_send(keep: Callable[[], datetime | None], webhooks: Webhooks) -> datetime | None:
    """Keep the nights, then send what there is to tell; return when there is something to do next."""
    dues = (keep(), webhooks.send_due())
    return min((due for due in dues if due is not None), default=None)


def signed_headers(delivery: Delivery, content: bytes, *, secret: bytes, timestamp: int) -> dict[str, str]:
    """Return the headers of an attempt at `timestamp` (seconds since 1970).

    The signature is HMAC-SHA256, under the target's secret, of the timestamp, a dot and the body as sent.
    """
    digest = hmac.new(secret, f"{timestamp}.".encode() + content, hashlib.sha256).hexdigest()
    return {
        "Content-Type": "application/json",
        "User-Agent": "wattfront",
        "X-Wattfront-Event": str(delivery.body["event"]),
        "X-Wattfront-Delivery": str(delivery.id),
        "X-Wattfront-Timestamp": str(timestamp),
        "X-Wattfront-Signature": f"sha256={digest}",
    }


def pause_s(delivery_id: int, attempt: int) -> float:
    """Return the seconds after a failed attempt, counted from 1, until the next: three times as long each time.

    Up to a quarter is added by what depends on nothing but the two numbers.
    """
    digest = hashlib.sha256(f"{delivery_id}/{attempt}".encode()).digest()
    share = int.from_bytes(digest[:4], "big") / 2**32
    longest_s = LONGEST_PAUSE_S / (1 + _JITTER)
    return min(FIRST_PAUSE_S * _GROWTH ** (attempt - 1), longest_s) * (1 + _JITTER * share)


def _words(ended: str | BaseException | None, delivery: Delivery) -> str | None:
    """Return why an attempt failed. An address that the client chokes on must not cost others their outcome."""
    if not isinstance(ended, BaseException):
        return ended
    if not isinstance(ended, Exception):
        raise ended
    log.error("delivery_broke", delivery=delivery.id, target=delivery.target, error=str(ended), exc_info=ended)
    return f"it cannot be sent ({type(ended).__name__}); the server's log has more"


def _refusal(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"it answered {status} and pointed elsewhere, which is not followed; correct the target's URL"
    return f"it answered {status}"
