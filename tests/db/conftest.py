"""A database for every test: a SQLite file, and PostgreSQL too when WATTFRONT_TEST_POSTGRES_URL names an empty one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from db import migrate
from db.database import Database
from db.devices import DeviceStore
from db.fronts import FrontStore
from db.jobs import JobStore
from db.trials import TrialStore
from tests.db.factories import Clock

POSTGRES_URL = os.environ.get("WATTFRONT_TEST_POSTGRES_URL")
BACKENDS = ("sqlite", "postgresql") if POSTGRES_URL else ("sqlite",)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with tables and no rows, made once and copied for every test."""
    path = tmp_path_factory.mktemp("template") / "wattfront.db"
    database = Database(f"sqlite:///{path}")
    migrate.upgrade(database)
    database.dispose()
    return path


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return POSTGRES_URL if request.param == "postgresql" and POSTGRES_URL else f"sqlite:///{tmp_path}/wattfront.db"


@pytest.fixture
def empty_database(database_url: str) -> Iterator[Database]:
    """A database without tables."""
    database = Database(database_url)
    if not database.is_sqlite:
        with database.transaction() as session:
            session.execute(text("DROP SCHEMA public CASCADE"))
            session.execute(text("CREATE SCHEMA public"))
    yield database
    database.dispose()


@pytest.fixture
def database(empty_database: Database, migrated_file: Path, tmp_path: Path) -> Database:
    """A database at the current version, without rows."""
    if empty_database.is_sqlite:
        shutil.copy(migrated_file, tmp_path / "wattfront.db")
    else:
        migrate.upgrade(empty_database)
    return empty_database


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
