"""`wattfront backup` and `wattfront prune`: a whole copy while somebody writes; pages that still answer afterwards."""

from __future__ import annotations

import re
import sqlite3
import stat
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from api.app import create_app
from api.job_run import run_job
from api.settings import Settings
from api.store_commands import pg_dump_line
from api.stores import Stores, open_stores
from db.job import JobState
from tests.api.conftest import Main
from tests.api.test_reuse import asked

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def test_a_backup_is_whole_while_somebody_writes(main_with: Main, stores: Stores, tmp_path: Path) -> None:
    """A copy that is made while jobs are stored is one state of the database, which opens and passes every check."""
    copy, stop = tmp_path / "copy.db", threading.Event()
    request = asked()
    stores.jobs.create(request)

    def write() -> None:
        while not stop.is_set():
            stores.jobs.create(request)

    writer = threading.Thread(target=write)
    writer.start()
    ended = main_with("backup", copy)
    stop.set()
    writer.join()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{copy}: ")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as opened:
        counts = opened.execute("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM events)").fetchone()
        assert opened.execute("PRAGMA foreign_key_check").fetchall() == []
    assert 1 <= counts[0] == counts[1] <= len(stores.jobs.list(limit=100_000))
    restored = open_stores(f"sqlite:///{copy}")
    assert restored.jobs.list(limit=1)[0].request == request
    restored.database.dispose()
    assert [path.name for path in tmp_path.glob(".copy.db*")] == []


def test_a_backup_replaces_nothing_unasked(main_with: Main, stores: Stores, settings: Settings, tmp_path: Path) -> None:
    """A file that is there stays unless --force is given, and the database itself stays even then."""
    copy = tmp_path / "copy.db"
    copy.write_text("mine")
    assert "is there already; give another name, or --force to replace it" in main_with("backup", copy).complaint
    assert copy.read_text() == "mine"
    assert main_with("backup", "--force", copy).code == 0
    assert copy.read_bytes().startswith(b"SQLite format 3")
    itself = settings.database_url.removeprefix("sqlite:///")
    assert "that is the database itself" in main_with("backup", "--force", itself).complaint
    assert "cannot write" in main_with("backup", tmp_path / "none" / "copy.db").complaint


def test_no_database_is_made_to_be_backed_up(main_with: Main, tmp_path: Path) -> None:
    """A wrong path is told, instead of a copy of an empty database that was just made."""
    wrong = tmp_path / "wrong.db"
    ended = main_with("backup", "--database", f"sqlite:///{wrong}", tmp_path / "copy.db")
    assert (ended.code, wrong.exists(), (tmp_path / "copy.db").exists()) == (2, False, False)
    assert f"there is no database {wrong}" in ended.complaint


@pytest.mark.parametrize(
    ("url", "line"),
    [
        (
            "postgresql://me:s3cret@db.example.org:5433/watt",
            "pg_dump --format=custom --file=/b/x.dump --host=db.example.org --port=5433 --username=me --dbname=watt",
        ),
        (
            "postgresql+psycopg://me@/watt?host=/run/postgresql",
            "pg_dump --format=custom --file=/b/x.dump --host=/run/postgresql --username=me --dbname=watt",
        ),
    ],
)
def test_postgresql_has_its_own_program(main_with: Main, url: str, line: str) -> None:
    """For PostgreSQL the command line of pg_dump is told, without the password, and nothing is recorded as done."""
    assert pg_dump_line(url, Path("/b/x.dump")) == line
    ended = main_with("backup", "--database", url, "/b/x.dump")
    assert ended.code == 2
    assert ended.complaint.endswith(line)
    assert "s3cret" not in ended.err


def aged(stores: Stores) -> None:
    """Let every job have ended long ago, and a later one have taken the place of its results."""
    with stores.database.transaction() as session:
        for statement in ("UPDATE events SET at = :then", "UPDATE jobs SET finished_at = :then"):
            session.execute(text(statement), {"then": LONG_AGO.strftime("%Y-%m-%d %H:%M:%S.%f")})
        session.execute(text("UPDATE results SET is_current = 0"))


def test_everything_answers_after_pruning(main_with: Main, stores: Stores, settings: Settings) -> None:
    """What is removed is counted the same by a dry run and told of; fronts are as before, pages and routes answer."""
    claim = stores.jobs.create_claimed(asked(), "host:1:1", 600.0)
    run_job(stores, claim, settings)
    assert stores.jobs.get(claim.job_id).state is JobState.FINISHED
    aged(stores)
    client = TestClient(create_app(stores, settings), base_url="http://127.0.0.1")
    front = client.get(f"/v1/jobs/{claim.job_id}/front").json()
    dry = main_with("prune", "--dry-run").out
    done = main_with("prune", "--older-than", "30").out
    counted = re.search(r"(\d+) events, (\d+) measurements, 0 delivered notifications", dry)
    assert counted is not None
    assert counted[0] in done
    num_events, num_measurements = int(counted[1]), int(counted[2])
    assert min(num_events, num_measurements) > 0, (dry, front)
    assert client.get(f"/v1/jobs/{claim.job_id}/front").json() == front
    trials = client.get(f"/v1/jobs/{claim.job_id}/trials").json()["items"]
    gone = [trial for trial in trials if trial["state"] == "complete" and trial["measurement"] is None]
    assert len(gone) == num_measurements > 0
    told = client.get(f"/v1/jobs/{claim.job_id}/explanation").json()["sentences"]
    assert any(f"The figures of {num_measurements} complete trial" in sentence for sentence in told)
    fresh = TestClient(create_app(open_stores(settings.database_url), settings), base_url="http://127.0.0.1")
    paths = ("", "/front", "/trials", "/explanation", "/events")
    assert [fresh.get(f"/v1/jobs/{claim.job_id}{path}").status_code for path in paths] == [200] * len(paths)
    for path in ("/", f"/jobs/{claim.job_id}", "/v1/jobs", "/v1/fronts", "/metrics"):
        assert (path, fresh.get(path).status_code) == (path, 200)
    assert "would remove, of more than 90 days ago: 0 events, 0 measurements" in main_with("prune", "--dry-run").out
    (entry,) = stores.audit.list(limit=9)
    assert (entry.action, entry.detail["measurements"]) == ("store.prune", num_measurements)


def test_what_was_told_lately_stays(main_with: Main) -> None:
    """Fewer days than news is looked for are refused: it would be told again."""
    ended = main_with("prune", "--older-than", "1")
    assert ended.code == 2
    assert "1 is not in the range" in ended.err
