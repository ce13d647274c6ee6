"""Bring a database's tables to this version, or back. Works from any folder; leaves logging alone.

A migration runs in one exclusive transaction: processes that upgrade at the same time wait for each other, and one
that fails leaves the old version as it was.

Alembic is imported where tables change: every process looks at the version first, and nearly always it is right.
"""

from __future__ import annotations

import threading
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from db.database import Database
from db.errors import SchemaOutdated, SchemaTooNew, StoreError

if TYPE_CHECKING:
    from alembic.config import Config

#: A package and a folder in it, found wherever the package is installed; or a path.
SCRIPTS = "db:migrations"

#: Alembic's `op` and `context` are globals of the process.
_one_at_a_time = threading.Lock()


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the tables to a revision; nothing happens when they are there. Raises SchemaTooNew."""
    from alembic import command

    with _one_at_a_time, database.migration() as connection:
        found = _revision_of(connection)
        if found is not None and not _is_known(found):
            raise SchemaTooNew(found=found, needed=head())
        command.upgrade(_config(connection), revision)


def downgrade(database: Database, revision: str) -> None:
    """Take the tables back to a revision, or to none with `base`. Raises StoreError for an unknown one."""
    from alembic import command
    from alembic.util import CommandError

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
    """Return the revision that this program needs: that of the last file, as their names begin with their revisions."""
    revisions = [file.name.partition("_")[0] for file in _versions() if file.name[0].isdecimal()]
    if not revisions:
        raise StoreError(f"there are no migrations in {SCRIPTS}; install wattfront again")
    return max(revisions)


def require_current(database: Database) -> None:
    """Raise SchemaOutdated or SchemaTooNew unless the tables are at `head()`."""
    found, needed = current(database), head()
    if found == needed:
        return
    if found is None or _is_known(found):
        raise SchemaOutdated(found=found, needed=needed)
    raise SchemaTooNew(found=found, needed=needed)


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", SCRIPTS)
    return config


def _versions() -> list[Traversable]:
    package, colon, folder = SCRIPTS.partition(":")
    scripts: Traversable = resources.files(package) / folder if colon else Path(SCRIPTS)
    return [file for file in (scripts / "versions").iterdir() if file.name.endswith(".py")]


def _is_known(revision: str) -> bool:
    return any(file.name.startswith(f"{revision}_") for file in _versions())


def _revision_of(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision
