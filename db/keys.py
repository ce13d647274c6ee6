"""API keys: made, found again by what a caller shows, revoked. What is kept is a hash, never a key.

A key is `wf_PREFIX_SECRET`: the prefix finds its row, the secret proves it. The secret has 256 random bits, so a plain
hash is enough: there is nothing to guess. Knows nothing of HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, or_, select
from sqlalchemy.exc import IntegrityError

from db.database import Database
from db.errors import KeyExists, KeyNotFound
from db.service import Scope
from db.service_tables import ApiKeyRow

MAX_NAME = 100
#: Of what a caller shows; a key has 81 characters.
MAX_KEY_CHARACTERS = 200
#: A use is written down at most this often: reads must not become writes.
USE_RESOLUTION = timedelta(minutes=1)
_PREFIX_BYTES = 6
_SECRET_BYTES = 32
#: Compared with where no row is, so that a prefix that exists takes no longer than one that does not.
_NO_HASH = "0" * 64

Keys = list["ApiKey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as it is kept: everything but the secret."""

    name: str
    prefix: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    def is_valid(self, now: datetime) -> bool:
        """Tell whether the key opens anything at a time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class KeyStore:
    """The keys of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def create(self, name: str, scope: Scope, *, expires_at: datetime | None = None) -> tuple[ApiKey, str]:
        """Make a key; return it and what its holder must show, which is not kept. Raises KeyExists."""
        prefix, secret = secrets.token_hex(_PREFIX_BYTES), secrets.token_hex(_SECRET_BYTES)
        row = ApiKeyRow(
            prefix=prefix,
            name=name,
            sha256=_hash(secret),
            scope=scope.value,
            created_at=self._now(),
            expires_at=expires_at,
        )
        try:
            with self._database.transaction() as session:
                session.add(row)
        except IntegrityError as error:
            raise KeyExists(name) from error
        return _key_of(row), f"wf_{prefix}_{secret}"

    def list(self) -> Keys:
        """Return every key ever made, oldest first."""
        with self._database.read() as session:
            return [_key_of(row) for row in session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.id))]

    def revoke(self, name: str) -> ApiKey:
        """End a key for good; one that was revoked before keeps its time. Raises KeyNotFound."""
        with self._database.transaction() as session:
            row = session.scalar(select(ApiKeyRow).where(ApiKeyRow.name == name).with_for_update())
            if row is None:
                raise KeyNotFound(name)
            if row.revoked_at is None:
                row.revoked_at = self._now()
            return _key_of(row)

    def count(self) -> int:
        """Return how many keys were ever made, revoked ones included."""
        with self._database.read() as session:
            return session.scalar(select(func.count()).select_from(ApiKeyRow)) or 0

    def count_valid(self) -> int:
        """Return how many keys open something now."""
        is_valid = ApiKeyRow.revoked_at.is_(None) & or_(
            ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > self._now()
        )
        with self._database.read() as session:
            return session.scalar(select(func.count()).select_from(ApiKeyRow).where(is_valid)) or 0

    def find(self, shown: str) -> ApiKey | None:
        """Return the valid key that somebody shows; nothing for one that is wrong, revoked or expired."""
        prefix, secret = _parts(shown)
        with self._database.read() as session:
            row = session.scalar(select(ApiKeyRow).where(ApiKeyRow.prefix == prefix))
        is_right = hmac.compare_digest(_hash(secret), _NO_HASH if row is None else row.sha256)
        if row is None or not is_right:
            return None
        key = _key_of(row)
        return key if key.is_valid(self._now()) else None

    def note_use(self, key: ApiKey) -> None:
        """Write down that a key is used, unless that was done within the last minute."""
        now = self._now()
        if key.last_used_at is not None and now - key.last_used_at < USE_RESOLUTION:
            return
        with self._database.transaction() as session:
            row = session.scalar(select(ApiKeyRow).where(ApiKeyRow.prefix == key.prefix))
            if row is not None:
                row.last_used_at = now


def _parts(shown: str) -> tuple[str, str]:
    """Return prefix and secret of what may be a key; a prefix that no row has for what is none."""
    mark, _, rest = shown[:MAX_KEY_CHARACTERS].partition("_")
    prefix, _, secret = rest.partition("_")
    is_one = mark == "wf" and shown.isascii() and shown.isprintable() and len(prefix) == 2 * _PREFIX_BYTES
    return (prefix, secret) if is_one else ("", "")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _key_of(row: ApiKeyRow) -> ApiKey:
    return ApiKey(
        name=row.name,
        prefix=row.prefix,
        scope=Scope(row.scope),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
