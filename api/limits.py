"""What every request must keep to before anybody looks at it: host names, sizes, rates; and what every answer carries.

Plain ASGI, so that streams pass through unbuffered. Knows nothing of keys or routes.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.complaints import shown
from api.errors import (
    BodyTooLarge,
    HeadersTooLarge,
    QueryTooLong,
    Refusal,
    TooManyRequests,
    UnknownHost,
    UnreadableUrl,
)
from api.problems import answer_to
from db.errors import StoreError

MAX_HEADER_BYTES = 32_000
MAX_URL_BYTES = 8_000
#: Of any route; most have smaller bounds of their own.
MAX_ANY_BODY_BYTES = 64_000_000
#: A caller who was still for this long may send as many requests at once as otherwise in that time.
BURST_S = 5.0
#: Callers that are kept apart; of more, those whose allowance is whole again are forgotten.
MAX_CALLERS = 10_000
#: Whether the process and its database are there: for probes, which name no host of ours and have no key.
HEALTH_PATHS = ("/healthz", "/readyz")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: In a URL as it was sent: no name or id of ours has one, and PostgreSQL takes no NUL.
_CONTROL = re.compile(rb"%(?:[01][0-9a-f]|7f)", re.IGNORECASE)


class Envelope:
    """Gives every request an id and every answer its headers; answers what the middleware inside it refuses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except (Refusal, StoreError) as error:  # of middleware, before anything was answered
            await answer_to(Request(scope), error)(scope, receive, send_with_headers)


class Bounds:
    """Refuses what is too large, and names that the service does not answer to (DNS rebinding)."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], open_paths: Iterable[str] = HEALTH_PATHS) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or raise what is wrong with it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _require_small(scope)
        headers = Headers(scope=scope)
        if scope["path"] not in self._open_paths:
            self._require_known(headers.get("host", ""))
        _require_length(headers.get("content-length"))
        await self._app(scope, _counted(receive), send)

    def _require_known(self, host: str) -> None:
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        if name.lower() not in self._hosts:
            raise UnknownHost(
                f"Host is {shown(host)}: this service answers to {', '.join(sorted(self._hosts))}; ask for one of "
                "them, or let the operator add the name to WATTFRONT_ALLOWED_HOSTS"
            )


@dataclass(slots=True)
class _Bucket:
    """What is left of a caller's allowance."""

    tokens: float
    filled_at_s: float


class RateLimits:
    """How often each caller may ask: reads and writes apart, evened out over some seconds; 0 lifts a limit."""

    def __init__(self, *, reads_per_s: float, writes_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = {True: writes_per_s, False: reads_per_s}
        self._clock = clock
        self._buckets: dict[tuple[bool, str], _Bucket] = {}

    def take(self, caller: str, method: str) -> None:
        """Count one request of a caller. Raises TooManyRequests."""
        is_write = method not in SAFE_METHODS
        per_s = self._per_s[is_write]
        if per_s == 0:
            return
        now_s, most = self._clock(), max(1.0, per_s * BURST_S)
        bucket = self._buckets.get((is_write, caller))
        if bucket is None:
            self._forget_still(now_s)
            bucket = self._buckets[is_write, caller] = _Bucket(most, now_s)
        bucket.tokens = min(most, bucket.tokens + (now_s - bucket.filled_at_s) * per_s)
        bucket.filled_at_s = now_s
        if bucket.tokens < 1:
            kind, wait_s = ("writes" if is_write else "reads"), math.ceil((1 - bucket.tokens) / per_s)
            raise TooManyRequests(
                f"{caller} sent more than {per_s:g} {kind} per second; ask again in {wait_s} s", retry_after_s=wait_s
            )
        bucket.tokens -= 1

    def _forget_still(self, now_s: float) -> None:
        """Make room where there are too many callers: for those of the last seconds, else for anybody."""
        if len(self._buckets) < MAX_CALLERS:
            return
        self._buckets = {who: one for who, one in self._buckets.items() if now_s - one.filled_at_s < BURST_S}
        if len(self._buckets) >= MAX_CALLERS:
            self._buckets = {}


def _request_id(given: str | None) -> str:
    """Return the caller's id if it is one that may stand in a log, else a new one."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _require_small(scope: Scope) -> None:
    num_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
    if num_bytes > MAX_HEADER_BYTES:
        raise HeadersTooLarge(f"the header fields have {num_bytes} bytes; send at most {MAX_HEADER_BYTES}")
    path = scope.get("raw_path") or scope["path"].encode()
    query = scope.get("query_string", b"")
    if len(path) + len(query) > MAX_URL_BYTES:
        raise QueryTooLong(f"path and query have {len(path) + len(query)} bytes; send at most {MAX_URL_BYTES}")
    if _CONTROL.search(path) or _CONTROL.search(query):
        raise UnreadableUrl("path or query holds a control character; remove it")


def _require_length(told: str | None) -> None:
    """Refuse a body whose length is told and too large, before any of it is read."""
    if told is not None and told.isdecimal() and int(told[:20]) > MAX_ANY_BODY_BYTES:
        raise BodyTooLarge(f"the body is larger than {MAX_ANY_BODY_BYTES} bytes; send less")


def _counted(receive: Receive) -> Receive:
    """Return `receive` with an end: whatever reads the body gets no more than any route takes."""
    num_bytes = 0

    async def receive_counted() -> Message:
        nonlocal num_bytes
        message = await receive()
        if message["type"] == "http.request":
            num_bytes += len(message.get("body", b""))
            if num_bytes > MAX_ANY_BODY_BYTES:
                raise BodyTooLarge(f"the body is larger than {MAX_ANY_BODY_BYTES} bytes; send less")
        return message

    return receive_counted
