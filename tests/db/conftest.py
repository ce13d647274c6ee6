"""A database for every test, once as a SQLite file and once on PostgreSQL; see tests/postgres.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from db import migrate
from db.database import Database
from db.devices import DeviceStore
from db.fronts import FrontStore
from db.jobs import JobStore
from db.trials import TrialStore
from tests.db.factories import Clock
from tests.postgres import PostgresServer


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with tables and no rows, made once and copied for every test."""
    path = tmp_path_factory.mktemp("template") / "wattfront.db"
    database = Database(f"sqlite:///{path}")
    migrate.upgrade(database)
    database.dispose()
    return path


@pytest.fixture(params=("sqlite", "postgresql"))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_database_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path}/wattfront.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database(is_migrated=False) as url:
        yield url


@pytest.fixture
def database_url(backend: str, request: pytest.FixtureRequest, migrated_file: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a database at the current version, without rows."""
    if backend == "sqlite":
        shutil.copy(migrated_file, tmp_path / "wattfront.db")
        yield f"sqlite:///{tmp_path}/wattfront.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    yield server.shared_database()


@pytest.fixture
def empty_database(empty_database_url: str) -> Iterator[Database]:
    """A database without tables."""
    database = Database(empty_database_url)
    yield database
    database.dispose()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database at the current version, without rows."""
    database = Database(database_url)
    yield database
    database.dispose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def jobs(database: Database, clock: Clock) -> JobStore:
    return JobStore(database, clock.now)


@pytest.fixture
def trials(database: Database, clock: Clock) -> TrialStore:
    return TrialStore(database, clock.now)


@pytest.fixture
def fronts(database: Database) -> FrontStore:
    return FrontStore(database)


@pytest.fixture
def devices(database: Database, clock: Clock) -> DeviceStore:
    return DeviceStore(database, clock.now)
