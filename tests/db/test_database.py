"""Transactions, and what goes wrong with them."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from db.database import Database
from db.errors import (
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseNotWritable,
    DatabaseUnreachable,
    DiskFull,
    InvalidDatabaseUrl,
    RecordNotStorable,
    StoreError,
)
from db.jobs import JobStore
from db.tables import JobRow
from tests.db.factories import START, Clock, make_request


def test_an_error_inside_a_transaction_undoes_it(database: Database, jobs: JobStore) -> None:
    """What was changed before an error is not kept."""
    job = jobs.create(make_request())
    delete_then_break = text("DELETE FROM jobs"), text("SELECT nonsense")
    with pytest.raises(StoreError, match="nonsense"), database.transaction() as session:
        [session.execute(statement) for statement in delete_then_break]
    assert job == jobs.get(job.id)


def test_a_read_keeps_nothing(database: Database, jobs: JobStore) -> None:
    """Changes made while reading are dropped."""
    job = jobs.create(make_request())
    with database.read() as session:
        session.execute(text("DELETE FROM jobs"))
    assert job == jobs.get(job.id)


def test_a_locked_database_is_named(database: Database, database_url: str, jobs: JobStore) -> None:
    """A lock held for longer than the busy timeout gives DatabaseBusy with the remedy, and nothing is stored."""
    job = jobs.create(make_request())
    impatient = Database(database_url, busy_timeout_s=0.01)
    with database.transaction() as session:
        session.execute(text("UPDATE jobs SET name = 'held'"))
        with pytest.raises(DatabaseBusy, match=r"for 0\.01 s; another .* raise the busy timeout"):
            JobStore(impatient, Clock().now).request_cancel(job.id)
    impatient.dispose()
    assert not jobs.get(job.id).cancel_requested


def test_readers_do_not_wait_for_the_writer(database: Database, database_url: str, jobs: JobStore) -> None:
    """The page can be read while a worker is in the middle of a write, and shows the state before it."""
    job = jobs.create(make_request())
    impatient = Database(database_url, busy_timeout_s=0.01)
    with database.transaction() as session:
        session.execute(text("DELETE FROM jobs"))
        assert [job] == JobStore(impatient, Clock().now).list(limit=5)
    impatient.dispose()


def test_a_figure_that_is_not_finite_reaches_no_json_column(database: Database) -> None:
    """The column itself refuses NaN, whoever forgot to check."""
    row = JobRow(
        id="0" * 32,
        name="",
        request={"figure": float("nan")},
        state="queued",
        created_at=START,
        cancel_requested=False,
        resume_count=0,
    )
    with pytest.raises(RecordNotStorable, match="not JSON compliant"), database.transaction() as session:
        session.add(row)


def test_a_missing_table_is_a_store_error(empty_database: Database) -> None:
    """Without tables a store says which one is missing, as a StoreError."""
    with pytest.raises(StoreError, match="jobs"):
        JobStore(empty_database, Clock().now).list(limit=1)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("wattfront.db", "'wattfront.db' is not a database URL; .* sqlite:///"),
        ("", "'' is not a database URL"),
        ("mysql://localhost/wattfront", "'mysql' is not supported"),
        ("sqlite://", "lives in one process only; give a file"),
        ("sqlite:///:memory:", "lives in one process only; give a file"),
    ],
)
def test_a_bad_url_is_named(url: str, message: str) -> None:
    """A URL that cannot be used is shown with what to give instead."""
    with pytest.raises(InvalidDatabaseUrl, match=message):
        Database(url)


def test_a_password_is_never_shown() -> None:
    """Messages and logs name the database without its password, with or without a driver for it."""
    try:
        shown = str(Database("postgresql://tuner:secret@localhost/wattfront"))
    except InvalidDatabaseUrl as error:
        shown = str(error)
        assert "pip install 'psycopg[binary]'" in shown
    assert "tuner:***@localhost" in shown
    assert "secret" not in shown


def test_a_server_that_is_not_there_is_named() -> None:
    """No server at the URL gives DatabaseUnreachable with the remedy."""
    pytest.importorskip("psycopg")  # an extra: `pip install wattfront[postgres]`
    nowhere = Database("postgres://nobody@127.0.0.1:1/wattfront")
    with pytest.raises(DatabaseUnreachable, match="start the server"), nowhere.read() as session:
        session.execute(text("SELECT 1"))


class TestSqliteFile:
    """What only a file can suffer from."""

    @pytest.fixture(params=["sqlite"])
    def database_url(self, migrated_file: Path, tmp_path: Path) -> str:
        shutil.copy(migrated_file, tmp_path / "wattfront.db")
        return f"sqlite:///{tmp_path}/wattfront.db"

    def test_every_connection_is_prepared(self, database: Database) -> None:
        """Write-ahead log, foreign keys, full durability and the busy timeout are on for readers and writers."""
        for begin in (database.read, database.transaction):
            with begin() as session:
                pragmas = ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
                found = [session.execute(text(f"PRAGMA {pragma}")).scalar() for pragma in pragmas]
            assert found == ["wal", 1, 2, 10_000]

    def test_a_file_in_use_can_still_be_opened(self, tmp_path: Path) -> None:
        """A file that is locked while it would be switched to the write-ahead log is opened without it for now."""
        path = tmp_path / "old.db"
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("CREATE TABLE notes (note)")
        other.execute("BEGIN IMMEDIATE")
        database = Database(f"sqlite:///{path}", busy_timeout_s=0.01)
        with database.read() as session:
            assert session.execute(text("SELECT count(*) FROM notes")).scalar() == 0
        other.close()
        database.dispose()
        with database.read() as session:
            assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        database.dispose()

    def test_a_full_disk_is_named(self, database: Database, jobs: JobStore) -> None:
        """A full disk gives DiskFull; what was stored before stays and can be read, and room brings writing back."""
        job = jobs.create(make_request())
        with database.transaction() as session:
            num_pages = session.execute(text("PRAGMA page_count")).scalar()
            session.execute(text(f"PRAGMA max_page_count = {num_pages}"))
        with pytest.raises(DiskFull, match="free some space; nothing of this transaction was stored"):
            fill(jobs)
        stored = jobs.list(limit=200)
        assert stored[-1] == job
        with database.transaction() as session:
            session.execute(text("PRAGMA max_page_count = 100000"))
        assert jobs.list(limit=1)[0] == stored[0]
        assert jobs.create(make_request(device="x" * 4000)) in jobs.list(limit=1)

    def test_a_read_only_file_is_named(self, database: Database, jobs: JobStore, tmp_path: Path) -> None:
        """A file that may only be read can be read; writing gives DatabaseNotWritable with the remedy."""
        job = jobs.create(make_request())
        readonly = Database(f"sqlite:///file:{tmp_path}/wattfront.db?mode=ro&uri=true")
        store = JobStore(readonly, Clock().now)
        assert job == store.get(job.id)
        with pytest.raises(DatabaseNotWritable, match="make the file and its folder writable"):
            store.create(make_request())
        readonly.dispose()

    def test_a_read_only_file_without_the_log_is_named(self, tmp_path: Path) -> None:
        """A read-only file that was never switched to the write-ahead log can be read as well."""
        path = tmp_path / "old.db"
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE notes (note)")
        other.close()
        readonly = Database(f"sqlite:///file:{path}?mode=ro&uri=true")
        with readonly.read() as session:
            assert session.execute(text("SELECT count(*) FROM notes")).scalar() == 0
        readonly.dispose()

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        """A file in a folder that is not there gives DatabaseNotWritable with the remedy."""
        database = Database(f"sqlite:///{tmp_path}/missing/wattfront.db")
        with pytest.raises(DatabaseNotWritable, match="create its folder"), database.read() as session:
            session.execute(text("SELECT 1"))

    def test_a_file_that_is_no_database_is_named(self, tmp_path: Path) -> None:
        """A file of another kind gives DatabaseDamaged and is not touched."""
        path = tmp_path / "notes.txt"
        path.write_text("not a database, " * 100)
        database = Database(f"sqlite:///{path}")
        with pytest.raises(DatabaseDamaged, match="give another file"), database.transaction() as session:
            session.execute(text("SELECT 1"))
        assert path.read_text() == "not a database, " * 100
        database.dispose()


def fill(jobs: JobStore) -> None:
    """Store more than a disk of a few free pages takes."""
    for _ in range(100):
        jobs.create(make_request(device="x" * 4000))
