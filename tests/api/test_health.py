"""Whether the service and its database are there."""

from __future__ import annotations

import pytest

from api.routes.health import BELIEVED_S, Readiness
from api.stores import Stores
from db import migrate
from db.database import Database
from db.errors import SchemaOutdated


def test_the_database_is_asked_once_a_second(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked, the same answer holds for a second, be it good or an error; then it is asked anew."""
    now_s, asked = [100.0], list[float]()
    require = migrate.require_current

    def require_noted(database: Database) -> None:
        asked.append(now_s[0])
        require(database)

    monkeypatch.setattr(migrate, "require_current", require_noted)
    readiness = Readiness(stores.database, clock=lambda: now_s[0])
    for _ in range(3):
        readiness.require()
    migrate.downgrade(stores.database, "base")
    readiness.require()
    now_s[0] += BELIEVED_S
    for _ in range(2):
        with pytest.raises(SchemaOutdated):
            readiness.require()
    migrate.upgrade(stores.database)
    now_s[0] += BELIEVED_S
    readiness.require()
    assert asked == [100.0, 100.0 + BELIEVED_S, 100.0 + 2 * BELIEVED_S]
