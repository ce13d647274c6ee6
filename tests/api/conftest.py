"""For every test a store and a cache of its own; for all of them one tiny model and one finished job."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from api.cli import main
from api.settings import Settings, load_settings
from api.stores import Stores, open_stores
from engine.embedded.models import default_cache_dir
from tests.api.commands import Ended, FinishedJob, has_run_to_its_end, run, tiny_flags
from tests.tiny_model import write_tiny_model

Main = Callable[..., Ended]


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the locks of devices apart from those of whatever else is being measured on this machine."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def finished_job(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedJob:
    """A job that `wattfront tune` ran to its end in a process of its own; for reading only."""
    url = f"sqlite:///{tmp_path_factory.mktemp('finished')}/wattfront.db"
    ended = run("tune", *tiny_flags(tiny_folder), "--name", "the first", "--trials", "2", "--database", url)
    stores = open_stores(url)
    job = stores.jobs.list(limit=1)[0]
    assert has_run_to_its_end(ended.code, job), ended
    return FinishedJob(url=url, id=job.id, out=ended.out, stores=stores)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the user's settings out, and the tests' files in a folder that goes away."""
    for name in [name for name in os.environ if name.startswith("WATTFRONT_")]:
        monkeypatch.delenv(name)
    # Compiled once for all tests, as they are for all jobs of a user.
    monkeypatch.setenv("WATTFRONT_KERNELS_DIR", str(default_cache_dir() / "native"))
    monkeypatch.setenv("WATTFRONT_DATABASE_URL", f"sqlite:///{tmp_path}/store/wattfront.db")
    monkeypatch.setenv("WATTFRONT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WATTFRONT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("WATTFRONT_GUARD_SOCKET", str(tmp_path / "guard.sock"))


@pytest.fixture
def settings() -> Settings:
    return load_settings()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with tables and no rows, made once: every migration again takes a third of a second."""
    path = tmp_path_factory.mktemp("template") / "wattfront.db"
    open_stores(f"sqlite:///{path}").database.dispose()
    return path


@pytest.fixture
def own_database(migrated_file: Path, settings: Settings) -> None:
    """A database without rows where a command started now looks for one; test_stores shows that none is needed."""
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    path.parent.mkdir()
    shutil.copy(migrated_file, path)


@pytest.fixture
def stores(settings: Settings, own_database: None) -> Iterator[Stores]:
    """The store that a command started now would open."""
    opened = open_stores(settings.database_url)
    yield opened
    opened.database.dispose()


@pytest.fixture
def logs_as_before() -> Iterator[None]:
    """Undo what the command line does to logging, whose standard error capfd takes away."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def main_with(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], own_database: None, logs_as_before: None
) -> Main:
    """Run the command line in this process, which takes no seconds of start-up."""

    def run_main(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["wattfront", *map(str, arguments)])
        code: int | str | None = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        out, err = capfd.readouterr()
        return Ended(code=code, out=out, err=err)

    return run_main
