"""API keys: made once, found by what is shown, revoked for good; and the audit log."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

import pytest
from sqlalchemy import select

from db.database import Database
from db.errors import KeyExists, KeyNotFound
from db.keys import USE_RESOLUTION, ApiKey, KeyStore
from db.service import Scope
from db.service_tables import ApiKeyRow
from tests.db.factories import Clock


@pytest.fixture
def keys(database: Database, clock: Clock) -> KeyStore:
    return KeyStore(database, clock.now)


def test_a_key_is_found_by_what_its_holder_shows(keys: KeyStore) -> None:
    """The printed key opens with the scope that it was made for, and counts as one that is valid."""
    made, shown = keys.create("ci", Scope.TUNE)
    assert keys.find(shown) == made
    assert (made.name, made.scope, keys.count(), keys.count_valid()) == ("ci", Scope.TUNE, 1, 1)


def test_only_a_hash_is_kept(keys: KeyStore, database: Database) -> None:
    """No column holds the secret, which has 256 bits of its own."""
    _, shown = keys.create("ci", Scope.TUNE)
    secret = shown.split("_")[2]
    with database.read() as session:
        row = session.scalar(select(ApiKeyRow))
        assert row is not None
        stored = [str(getattr(row, column.name)) for column in ApiKeyRow.__table__.columns]
    assert len(bytes.fromhex(secret)) == 32
    assert not any(secret in value for value in stored)
    assert {field.name for field in fields(ApiKey)}.isdisjoint({"secret", "sha256"})


@pytest.mark.parametrize("change", ["", "x", "_x", "\0", "é", " "])
def test_what_is_not_quite_a_key_opens_nothing(keys: KeyStore, change: str) -> None:
    """A key cut short, with more behind it or with another's prefix is none, and neither is anything else."""
    _, shown = keys.create("ci", Scope.TUNE)
    _, other = keys.create("other", Scope.READ)
    wrong = shown[:-1] + change if change == "" else shown + change
    mixed = "_".join(["wf", shown.split("_")[1], other.split("_")[2]])
    for text in (wrong, mixed, change, "wf_", "wf__", shown.upper(), "x" * 10_000):
        assert keys.find(text) is None, text


def test_a_revoked_key_opens_nothing(keys: KeyStore, clock: Clock) -> None:
    """A revoked key stays in the list with the time of its end, which a second revocation does not move."""
    _, shown = keys.create("ci", Scope.TUNE)
    revoked_at = keys.revoke("ci").revoked_at
    clock.advance(60)
    assert keys.find(shown) is None
    assert revoked_at == keys.revoke("ci").revoked_at == keys.list()[0].revoked_at
    assert (keys.count(), keys.count_valid()) == (1, 0)


def test_a_key_ends_at_its_time(keys: KeyStore, clock: Clock) -> None:
    """A key opens until the very moment that it expires."""
    _, shown = keys.create("ci", Scope.READ, expires_at=clock.now() + timedelta(seconds=60))
    clock.advance(59)
    assert keys.find(shown) is not None
    clock.advance(1)
    assert (keys.find(shown), keys.count_valid()) == (None, 0)


def test_a_name_is_given_once(keys: KeyStore) -> None:
    """The name of a revoked key stays taken, as the audit log tells of it."""
    keys.create("ci", Scope.TUNE)
    keys.revoke("ci")
    with pytest.raises(KeyExists, match="name is 'ci'"):
        keys.create("ci", Scope.READ)


def test_an_unknown_name_is_named(keys: KeyStore) -> None:
    """Revoking what is not there changes nothing and says so."""
    with pytest.raises(KeyNotFound, match="there is no key 'ci'"):
        keys.revoke("ci")


def test_uses_are_noted_by_the_minute(keys: KeyStore, clock: Clock) -> None:
    """The last use is written down, and again only a minute later."""
    made, shown = keys.create("ci", Scope.READ)
    keys.note_use(made)
    used = keys.find(shown)
    assert used is not None
    first = used.last_used_at
    clock.advance(USE_RESOLUTION.total_seconds() - 1)
    keys.note_use(used)
    assert first == keys.list()[0].last_used_at
    clock.advance(1)
    keys.note_use(used)
    assert clock.now() == keys.list()[0].last_used_at
