"""One database with all its stores."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from api.stores import open_stores
from db.errors import DatabaseBusy, DatabaseNotWritable, InvalidDatabaseUrl
from tests.db.factories import make_request


def test_the_folder_is_made_on_first_use(tmp_path: Path) -> None:
    """A SQLite file in folders that are not there yet is created with its tables."""
    stores = open_stores(f"sqlite:///{tmp_path}/a/b/wattfront.db")
    assert stores.jobs.list(limit=1) == []
    assert (tmp_path / "a" / "b" / "wattfront.db").is_file()


def test_a_file_by_uri_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own file: URIs are left to SQLite."""
    monkeypatch.chdir(tmp_path)
    open_stores(f"sqlite:///file:{tmp_path}/wattfront.db?uri=true")
    assert {path.stem for path in tmp_path.iterdir()} == {"wattfront"}


def test_a_read_only_store_can_be_looked_at(tmp_path: Path) -> None:
    """Jobs are listed from a file that nobody may write, and writing to it is refused by name."""
    job = open_stores(f"sqlite:///{tmp_path}/wattfront.db").jobs.create(make_request())
    stores = open_stores(f"sqlite:///file:{tmp_path}/wattfront.db?mode=ro&uri=true")
    assert [job] == stores.jobs.list(limit=5)
    with pytest.raises(DatabaseNotWritable, match="readonly database; make the file and its folder writable"):
        stores.jobs.create(make_request())


def test_looking_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    """While another process writes, jobs can be listed, and only writing waits for the time that was set."""
    open_stores(f"sqlite:///{tmp_path}/wattfront.db")
    writer = sqlite3.connect(tmp_path / "wattfront.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    stores = open_stores(f"sqlite:///{tmp_path}/wattfront.db", busy_timeout_s=0.05)
    assert stores.jobs.list(limit=5) == []
    with pytest.raises(DatabaseBusy, match=r"locked for 0\.05 s"):
        stores.jobs.create(make_request())
    writer.close()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("", InvalidDatabaseUrl),
        ("wattfront.db", InvalidDatabaseUrl),
        ("mysql://host/wattfront", InvalidDatabaseUrl),
        ("sqlite://", InvalidDatabaseUrl),
        ("sqlite:////dev/null/wattfront.db", DatabaseNotWritable),
        ("sqlite:////dev", DatabaseNotWritable),
    ],
)
def test_a_bad_url_is_refused(url: str, error: type[Exception]) -> None:
    """A URL that leads to no database of ours is refused with what to give instead."""
    with pytest.raises(error):
        open_stores(url)
