"""Who asks, and whether they may: keys, scopes, and the service without keys on loopback.

A key comes as `Authorization: Bearer KEY`, or from a browser in the cookie that the form at /login sets. Plain ASGI,
so that streams pass through unbuffered. Knows nothing of what a request does.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import structlog
from anyio.to_thread import run_sync
from fastapi import Depends, Request
from fastapi.responses import RedirectResponse
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from api.bodies import require_own_origin
from api.browsers import wants_page
from api.errors import KeyNeeded, ScopeTooSmall, UsageError
from api.limits import HEALTH_PATHS, SAFE_METHODS, RateLimits
from api.settings import Settings
from db.errors import StoreError
from db.keys import ApiKey, KeyStore
from db.service import Scope

log = structlog.get_logger()

#: Who asks where no keys are needed.
LOCAL = "local"
COOKIE = "wattfront_key"
LOGIN_PATH = "/login"
#: What can be had without a key: whether the service is there, and what the form at /login is made of.
_OPEN_PATHS = (*HEALTH_PATHS, LOGIN_PATH, "/logout")
_OPEN_FOLDER = "/static/"
_METRICS_PATH = "/metrics"
#: How long what the database said of a key is believed: so long may a revoked key still be used.
BELIEVED_S = 3.0
#: Keys that are remembered, wrong ones included; of more, wrong ones are forgotten.
MAX_REMEMBERED = 1_000


def require_keys(keys: KeyStore, settings: Settings) -> None:
    """Refuse to serve others than this machine without keys and a name to be asked for. Raises UsageError."""
    if settings.is_loopback:
        return
    if keys.count_valid() == 0:
        raise UsageError(
            f"host is {settings.host!r}: beyond loopback the service needs API keys, and none is valid; make one with "
            "`wattfront keys create NAME --scope admin`, or use 127.0.0.1"
        )
    if not settings.allowed_host_names:
        raise UsageError(
            f"WATTFRONT_ALLOWED_HOSTS is {settings.allowed_hosts!r}: beyond loopback, here on {settings.host}, it must "
            "say what the service is called, as in tuning.example.org,10.0.0.7"
        )


class KeyRing:
    """What the database said of keys in the last seconds, so that a read costs no further query."""

    def __init__(self, keys: KeyStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._found: dict[bytes, tuple[float, ApiKey | None]] = {}
        self._are_there = (-BELIEVED_S, False)

    async def are_there(self) -> bool:
        """Tell whether any key was ever made: from then on one is needed, also on loopback."""
        asked_s, answer = self._are_there
        now_s = self._clock()
        if not answer and now_s - asked_s >= BELIEVED_S:
            answer = await run_sync(self._keys.count) > 0
            self._are_there = (now_s, answer)
        return answer

    def has_found(self, shown: str) -> bool:
        """Tell whether this was a valid key when the database was last asked, however long ago."""
        return self._found.get(_mark(shown), (0.0, None))[1] is not None

    async def find(self, shown: str) -> ApiKey | None:
        """Return the valid key that somebody shows, if it is one."""
        mark, now_s = _mark(shown), self._clock()
        asked_s, key = self._found.get(mark, (-BELIEVED_S, None))
        if now_s - asked_s >= BELIEVED_S:
            key = await run_sync(self._ask, shown)
            if len(self._found) >= MAX_REMEMBERED:  # of valid ones there are no more than somebody made
                self._found = {one: found for one, found in self._found.items() if found[1] is not None}
            self._found[mark] = (now_s, key)
        return key

    def _ask(self, shown: str) -> ApiKey | None:
        key = self._keys.find(shown)
        if key is not None:
            try:
                self._keys.note_use(key)
            except StoreError as error:  # a database that is busy for a moment must not lock everybody out
                log.warning("key_use_not_noted", key=key.name, error=str(error))
        return key


def _mark(shown: str) -> bytes:
    """Return what a key is remembered by, instead of itself."""
    return hashlib.sha256(shown.encode()).digest()


class Access:
    """Finds out who asks, counts it against their rate, and lets nobody without a key in where one is needed."""

    def __init__(
        self, app: ASGIApp, *, ring: KeyRing, limits: RateLimits, is_loopback: bool, are_metrics_open: bool
    ) -> None:
        self._app = app
        self._ring = ring
        self._limits = limits
        self._is_loopback = is_loopback
        self._open_paths = (*_OPEN_PATHS, _METRICS_PATH) if are_metrics_open else _OPEN_PATHS

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Pass a request on with `state.actor` and `state.scope`. Raises KeyNeeded, ForeignOrigin, TooManyRequests."""
        if scope["type"] != "http" or scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        method: str = scope["method"]
        address = asked.client.host if asked.client else "unknown"
        key, is_needed = None, self._is_needed_at(scope["path"])
        if is_needed and (not self._is_loopback or await self._ring.are_there()):
            shown = _shown_by(asked)
            is_new = not self._ring.has_found(shown)
            if is_new:  # before the database is asked: wrong keys without end must not keep it busy
                self._limits.take(address, method)
            key = await self._ring.find(shown) if shown else None
            if key is None:
                if not is_new:
                    self._limits.take(address, method)
                await self._refuse(asked)(scope, receive, send)
                return
        self._limits.take(address if key is None else f"key {key.name!r}", method)
        if method not in SAFE_METHODS:
            require_own_origin(asked)
        asked.state.actor = LOCAL if key is None else key.name
        asked.state.scope = key.scope if key is not None else Scope.ADMIN if is_needed else Scope.READ
        await self._app(scope, receive, send)

    def _is_needed_at(self, path: str) -> bool:
        return path not in self._open_paths and not path.startswith(_OPEN_FOLDER)

    def _refuse(self, asked: HTTPConnection) -> RedirectResponse:
        """Send a browser to the form. Raises KeyNeeded for everybody else."""
        if wants_page(asked):
            goal = asked.url.path + (f"?{asked.url.query}" if asked.url.query else "")
            return RedirectResponse(f"{LOGIN_PATH}?next={quote(goal)}", status_code=303)
        is_shown = "authorization" in asked.headers or COOKIE in asked.cookies
        problem = "the key is wrong, revoked or expired" if is_shown else "no key was sent"
        raise KeyNeeded(
            f"{problem}; send `Authorization: Bearer KEY` with a key of `wattfront keys create NAME --scope read`"
        )


def _shown_by(asked: HTTPConnection) -> str:
    """Return what a caller shows as a key: in the header, else in the cookie; empty for nothing."""
    kind, _, shown = asked.headers.get("authorization", "").partition(" ")
    if not kind:
        shown = asked.cookies.get(COOKIE, "")
    elif kind.lower() != "bearer":
        shown = ""
    return shown.strip()


def actor_of(request: Request) -> str:
    """Return who asks: a key's name, or `local`."""
    return str(getattr(request.state, "actor", LOCAL))


def needs(scope: Scope) -> Any:
    """Return the dependency of a route that only keys of a scope may call, as in `dependencies=[needs(Scope.TUNE)]`.

    Reading needs no declaration: without a key of scope read no route is reached. The call raises ScopeTooSmall.
    """

    async def require(request: Request) -> None:
        held: Scope = getattr(request.state, "scope", Scope.ADMIN)
        if not held.covers(scope):
            raise ScopeTooSmall(
                f"the key {actor_of(request)!r} has scope {held.value}, and this needs {scope.value}; use a key of "
                f"`wattfront keys create NAME --scope {scope.value}`"
            )

    return Depends(require)
