"""Bring a database's tables to this version, or back. Works from any folder; leaves logging alone.

A migration runs in one exclusive transaction: processes that upgrade at the same time wait for each other, and one
that fails leaves the old version as it was.
"""

from __future__ import annotations

import threading

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from db.database import Database
from db.errors import SchemaOutdated, SchemaTooNew, StoreError

#: A package and a folder in it: found wherever the package is installed.
SCRIPTS = "db:migrations"

#: Alembic's `op` and `context` are globals of the process.
_one_at_a_time = threading.Lock()


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the tables to a revision; nothing happens when they are there. Raises SchemaTooNew."""
    with _one_at_a_time, database.migration() as connection:
        found = _revision_of(connection)
        if found is not None and not _is_known(found):
            raise SchemaTooNew(found=found, needed=head())
        command.upgrade(_config(connection), revision)


def downgrade(database: Database, revision: str) -> None:
    """Take the tables back to a revision, or to none with `base`. Raises StoreError for an unknown one."""
    with _one_at_a_time, database.migration() as connection:
        try:
            command.downgrade(_config(connection), revision)
        except CommandError as error:
            raise StoreError(f"cannot go back to schema version {revision!r}: {error}") from error


def current(database: Database) -> str | None:
    """Return the revision that the tables are at; None before the first."""
    with database.read() as session:
        return _revision_of(session.connection())


def head() -> str:
    """Return the revision that this program needs."""
    revision = _scripts().get_current_head()
    if revision is None:
        raise StoreError(f"there are no migrations in {SCRIPTS}; install wattfront again")
    return revision


def require_current(database: Database) -> None:
    """Raise SchemaOutdated or SchemaTooNew unless the tables are at `head()`."""
    found, needed = current(database), head()
    if found == needed:
        return
    if found is None or _is_known(found):
        raise SchemaOutdated(found=found, needed=needed)
    raise SchemaTooNew(found=found, needed=needed)


def _config(connection: Connection | None = None) -> Config:
    config = Config(attributes={} if connection is None else {"connection": connection})
    config.set_main_option("script_location", SCRIPTS)
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _is_known(revision: str) -> bool:
    try:
        return _scripts().get_revision(revision) is not None
    except CommandError:
        return False


def _revision_of(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()
