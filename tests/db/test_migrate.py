"""Migrations: they agree with the tables, keep every row, and fail without harm (BUG-30)."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from db import migrate
from db.database import Database
from db.device import ControlState
from db.devices import DeviceStore
from db.errors import MigrationFailed, SchemaOutdated, SchemaTooNew, StoreError
from db.fronts import FrontStore
from db.jobs import JobStore
from db.tables import Base
from db.trials import TrialStore
from tests.db.factories import (
    REPOSITORY,
    START,
    make_capability,
    make_device,
    make_point,
    make_request,
    make_trial,
)
from tests.postgres import PostgresServer
from tuner.pareto import front_of
from tuner.trial import TrialRole

UPGRADE = "import sys; from db import migrate; from db.database import Database; migrate.upgrade(Database(sys.argv[1]))"
HEAD = migrate.head()

NEXT = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "9999", "{head}", None, None

def upgrade():
    with op.batch_alter_table("jobs", recreate="{recreate}") as batch:
        batch.add_column(sa.Column("urgency", sa.Integer(), nullable=False, server_default="0"))
        batch.create_check_constraint(op.f("ck_jobs_urgency"), "urgency >= 0")
    {then}

def downgrade():
    with op.batch_alter_table("jobs", recreate="{recreate}") as batch:
        batch.drop_constraint(op.f("ck_jobs_urgency"), type_="check")
        batch.drop_column("urgency")
"""


@pytest.fixture
def database_url(backend: str, request: pytest.FixtureRequest, migrated_file: Path, tmp_path: Path) -> Iterator[str]:
    """A database of the test's own, as its tables will change."""
    if backend == "sqlite":
        shutil.copy(migrated_file, tmp_path / "wattfront.db")
        yield f"sqlite:///{tmp_path}/wattfront.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
def later_version(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a further revision can be written; the program believes it is its own."""
    with as_file(files("db") / "migrations") as scripts:
        shutil.copytree(scripts, tmp_path / "migrations")
    monkeypatch.setattr(migrate, "SCRIPTS", str(tmp_path / "migrations"))
    return tmp_path / "migrations" / "versions" / "9999_urgency.py"


def next_revision(database: Database, then: str = "pass") -> str:
    """A revision that rebuilds a parent table where the backend needs that."""
    return NEXT.format(head=HEAD, recreate="always" if database.is_sqlite else "auto", then=then)


@pytest.fixture
def rows(jobs: JobStore, trials: TrialStore, fronts: FrontStore) -> dict[str, int]:
    """One job with five trials and a front."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    for number in range(5):
        trials.finish(
            trials.start(claim, number, make_point(number + 1)), make_trial(number=number, point=make_point(number + 1))
        )
    front = front_of(trials.history(claim.job_id), "tpot_p99_ms", created_at=START)
    fronts.save(claim.job_id, front)
    made = {"events": 12, "front_points": 5, "fronts": 1, "jobs": 1, "measurements": 5, "trials": 5}
    return dict.fromkeys(sorted(Base.metadata.tables), 0) | made


def count_rows(database: Database) -> dict[str, int]:
    with database.read() as session:
        return {
            table: session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            for table in sorted(Base.metadata.tables)
        }


def names_of_constraints(database: Database) -> set[str | None]:
    with database.read() as session:
        inspector = inspect(session.connection())
        return {
            found["name"]
            for table in inspector.get_table_names()
            if table != "alembic_version"
            for found in (
                *inspector.get_check_constraints(table),
                *inspector.get_foreign_keys(table),
                *inspector.get_unique_constraints(table),
                *inspector.get_indexes(table),
                inspector.get_pk_constraint(table),
            )
        }


def test_the_last_file_is_the_head_of_the_revisions() -> None:
    """The version that is needed is told from the files' names as Alembic tells it from what they say."""
    config = Config()
    config.set_main_option("script_location", migrate.SCRIPTS)
    assert migrate.head() == ScriptDirectory.from_config(config).get_current_head()


def test_migrations_and_tables_agree(database: Database) -> None:
    """A migrated database has exactly the tables, columns, indexes and constraints that the code maps."""
    with database.read() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    tables = Base.metadata.tables.values()
    mapped = {str(constraint.name) for table in tables for constraint in table.constraints}
    mapped |= {str(index.name) for table in tables for index in table.indexes}
    assert mapped == names_of_constraints(database) & mapped
    assert None not in names_of_constraints(database)


def test_upgrading_twice_changes_nothing(database: Database, rows: dict[str, int]) -> None:
    """A database at the current version is left as it is."""
    migrate.upgrade(database)
    migrate.require_current(database)
    assert migrate.head() == migrate.current(database)
    assert rows == count_rows(database)


def test_down_to_nothing_and_up_again(database: Database, rows: dict[str, int]) -> None:
    """The first migration can be undone with rows in the tables, and done again."""
    migrate.downgrade(database, "base")
    assert migrate.current(database) is None
    migrate.upgrade(database)
    assert dict.fromkeys(rows, 0) == count_rows(database)


def test_rebuilding_a_parent_table_keeps_its_children(
    database: Database, rows: dict[str, int], later_version: Path
) -> None:
    """Up, down and up again over a rebuilt jobs table, every row and constraint is there and foreign keys work."""
    constraints = names_of_constraints(database)
    later_version.write_text(next_revision(database))
    for _ in range(2):
        migrate.upgrade(database)
        assert rows == count_rows(database)
        assert constraints | {"ck_jobs_urgency"} == names_of_constraints(database)
        migrate.downgrade(database, HEAD)
        assert rows == count_rows(database)
        assert constraints == names_of_constraints(database)
    with database.transaction() as session:
        session.execute(text("DELETE FROM jobs"))
    assert dict.fromkeys(rows, 0) == count_rows(database)


def test_devices_seen_by_the_first_version_were_observed(
    database: Database, jobs: JobStore, devices: DeviceStore
) -> None:
    """Up from 0001 a device is observed; down and up again its rows and its jobs are there, and who set it is not."""
    devices.seen(make_device(), [make_capability()])
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 60)
    jobs.set_device(claim, "GPU-1")
    constraints = names_of_constraints(database)
    for _ in range(2):
        devices.set_control("GPU-1", "restore_failed", "the GPU has fallen off the bus")
        before = devices.get("GPU-1")
        migrate.downgrade(database, "0002")
        of_second = names_of_constraints(database)
        migrate.downgrade(database, "0001")
        assert of_second - {"ck_devices_control_state"} == names_of_constraints(database)
        migrate.upgrade(database)
        assert replace(before, control_state=ControlState.OBSERVED, control_detail=None) == devices.get("GPU-1")
        assert constraints == names_of_constraints(database)
        assert jobs.get(claim.job_id).device_uuid == "GPU-1"


def test_trials_of_the_second_version_were_screened_and_are_not_taken_over(
    database: Database, jobs: JobStore, trials: TrialStore, rows: dict[str, int]
) -> None:
    """Up from 0002 every trial was screened at unknown cost, and nothing tells under what it was measured."""
    (job,) = jobs.list(limit=1)
    before, constraints = trials.list(job.id), names_of_constraints(database)
    added = {
        "ck_trials_role",
        "fk_jobs_previous_job_id_jobs",
        "ix_jobs_previous_job_id",
        "ix_measurements_fingerprint_settings",
    }
    for _ in range(2):
        migrate.downgrade(database, "0002")
        assert constraints - added | {"ix_jobs_state_seq", "ix_trials_job_id_state"} >= names_of_constraints(database)
        migrate.upgrade(database)
        assert constraints == names_of_constraints(database)
        assert before == trials.list(job.id)
        assert rows["trials"] == len(before)
        assert {TrialRole.SCREENING} == {trial.role for trial in before}
        with database.read() as session:
            hashes = session.execute(text("SELECT fingerprint, settings FROM measurements")).all()
        assert {(None, None)} == {tuple(row) for row in hashes}


def test_a_failed_upgrade_leaves_the_old_version(
    database: Database, rows: dict[str, int], later_version: Path, jobs: JobStore
) -> None:
    """An upgrade that breaks half way changes nothing: version, rows and tables are usable as before."""
    tables = table_names(database)
    later_version.write_text(next_revision(database, then="raise RuntimeError('power cut')"))
    with pytest.raises(RuntimeError, match="power cut"):
        migrate.upgrade(database)
    assert migrate.current(database) == HEAD
    assert (rows, tables) == (count_rows(database), table_names(database))
    jobs.create(make_request())
    later_version.write_text(next_revision(database))
    migrate.upgrade(database)
    assert rows | {"events": 13, "jobs": 2} == count_rows(database)


def test_rows_that_would_point_nowhere_stop_an_upgrade(
    database: Database, rows: dict[str, int], later_version: Path
) -> None:
    """A migration that loses the parents of rows is undone and says which rows they were."""
    if not database.is_sqlite:
        pytest.skip("PostgreSQL keeps foreign keys on during migrations")
    later_version.write_text(next_revision(database, then="op.execute('DELETE FROM jobs')"))
    with pytest.raises(
        MigrationFailed, match=r"18 rows would point nowhere \(events -> jobs, fronts -> jobs, trials -> jobs\)"
    ):
        migrate.upgrade(database)
    assert rows == count_rows(database)
    with database.transaction() as session:
        assert session.execute(text("PRAGMA foreign_keys")).scalar() == 1


def test_a_database_without_tables_is_outdated(empty_database: Database) -> None:
    """A new database is refused with the command that prepares it."""
    with pytest.raises(
        SchemaOutdated, match=rf"has no tables yet, this program needs {HEAD}; `wattfront jobs` upgrades it"
    ):
        migrate.require_current(empty_database)


def test_an_older_database_is_outdated(database: Database, later_version: Path) -> None:
    """A database of an older version is refused with both versions and the remedy."""
    later_version.write_text(next_revision(database))
    with pytest.raises(
        SchemaOutdated, match=rf"is at schema version {HEAD}, this program needs 9999; `wattfront jobs` upgrades it"
    ):
        migrate.require_current(database)


def test_a_newer_database_is_too_new(database: Database, later_version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of a newer version is refused with both versions, and is not touched."""
    later_version.write_text(next_revision(database))
    migrate.upgrade(database)
    monkeypatch.undo()
    for use in (migrate.require_current, migrate.upgrade):
        with pytest.raises(SchemaTooNew, match=rf"at schema version 9999, .* \(it needs {HEAD}\); install the newer"):
            use(database)
    assert migrate.current(database) == "9999"


def test_going_back_to_an_unknown_version_is_refused(database: Database) -> None:
    """A downgrade to a version that does not exist says so and changes nothing."""
    with pytest.raises(StoreError, match="cannot go back to schema version '0000'"):
        migrate.downgrade(database, "0000")
    assert migrate.head() == migrate.current(database)


def test_processes_may_upgrade_at_the_same_time(empty_database: Database, empty_database_url: str) -> None:
    """Server and worker that both prepare a new database wait for each other; both succeed."""
    workers = [subprocess.Popen([sys.executable, "-c", UPGRADE, empty_database_url], cwd=REPOSITORY) for _ in range(2)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    migrate.require_current(empty_database)


def test_threads_may_upgrade_at_the_same_time(empty_database: Database, tmp_path: Path) -> None:
    """Threads of one process that prepare databases, the same one or several, all succeed."""
    others = [Database(f"sqlite:///{tmp_path}/other-{i}.db") for i in range(4)]
    databases = [empty_database, empty_database, *others]
    threads = [threading.Thread(target=migrate.upgrade, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for database in databases:
        migrate.require_current(database)
        database.dispose()


def test_the_working_directory_does_not_matter(
    empty_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Migrations are found from any folder, as they are from an installed package."""
    monkeypatch.chdir(tmp_path)
    migrate.upgrade(empty_database)
    migrate.require_current(empty_database)


def test_logging_is_left_alone(empty_database: Database) -> None:
    """A migration neither adds handlers nor silences loggers that exist."""
    logger, root = logging.getLogger("tests.of.logging"), logging.getLogger()
    before = (logger.disabled, root.level, list(root.handlers))
    migrate.upgrade(empty_database)
    assert before == (logger.disabled, root.level, list(root.handlers))


def table_names(database: Database) -> list[str]:
    with database.read() as session:
        return sorted(inspect(session.connection()).get_table_names())
