"""A job submitted and followed in the terminal."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from api.job_run import run_job
from api.settings import Settings
from api.stores import Stores
from api.terminal import follow, print_total_time, submit_once
from db.job import Job, JobState
from tests.api.scripted import complete, use_script


@pytest.fixture
def job_file(tiny_folder: Path, tmp_path: Path) -> Path:
    """A job whose space has two points."""
    job = {
        "model": str(tiny_folder),
        "device": "cpu",
        "workload": {"prompt_tokens": "8-16", "output_tokens": "4-8"},
        "knobs": {"max_batch": [2, 4], "precision": ["fp32"]},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    return tmp_path / "job.yaml"


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def run_queued(stores: Stores, settings: Settings) -> Job:
    claim = stores.jobs.claim_next("host:1:1", 60.0)
    assert claim is not None
    return run_job(stores, claim, settings)


def test_a_job_file_is_submitted_once(
    stores: Stores, settings: Settings, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file again is the same job, and once that has ended it says when, and how to run it anew."""
    use_script(monkeypatch, complete)
    console = Console(file=io.StringIO())
    job = submit_once(stores, settings, console, job_file)
    assert job.id == submit_once(stores, settings, console, job_file).id
    assert "this job was run before" not in printed(console)
    run_queued(stores, settings)
    assert job.id == submit_once(stores, settings, console, job_file).id
    assert "this job was run before" in printed(console)
    assert f"To run it anew: wattfront tune {job_file}" in printed(console)


def test_a_changed_job_file_is_another_job(stores: Stores, settings: Settings, job_file: Path) -> None:
    """A file with another content is submitted again."""
    console = Console(file=io.StringIO())
    job = submit_once(stores, settings, console, job_file)
    job_file.write_text(job_file.read_text() + "seed: 1\n")
    assert job.id != submit_once(stores, settings, console, job_file).id


def test_a_followed_job_shows_each_trial_once(
    stores: Stores, settings: Settings, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking again and again at a job that a worker runs prints a line a trial, then the front and how it ended."""
    use_script(monkeypatch, complete)
    monkeypatch.setattr("api.terminal._FOLLOW_POLL_S", 0.0)
    console = Console(file=io.StringIO(), width=200)
    job = submit_once(stores, settings, console, job_file)
    looks: list[JobState] = []

    def watch() -> None:
        looks.append(stores.jobs.get(job.id).state)
        if len(looks) == 2:
            run_queued(stores, settings)

    code = follow(stores, console, job, watch, threading.Event())
    assert (code, looks) == (0, [JobState.QUEUED, JobState.QUEUED])
    lines = printed(console).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("trial ")] == ["0", "1"]
    assert "Energy: measured; scope gpu, method counter (total energy counter)." in lines
    assert lines[-1] == f"job {job.id[:8]} finished: exhausted"


def test_a_followed_job_that_failed_gives_one(
    stores: Stores, settings: Settings, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that failed ends the following with exit code 1 and its message, whatever characters that has."""
    console = Console(file=io.StringIO(), width=200)
    job = submit_once(stores, settings, console, job_file)
    claim = stores.jobs.claim(job.id, "host:1:1", 60.0)
    stores.jobs.finish(claim, JobState.FAILED, "error", "[bold]broken[/bold]")
    assert follow(stores, console, job, lambda: None, threading.Event()) == 1
    assert printed(console).splitlines()[-1] == f"job {job.id[:8]} failed: error; [bold]broken[/bold]"


def test_following_can_be_stopped(stores: Stores, settings: Settings, job_file: Path) -> None:
    """Ctrl-C ends the following of a job that has not ended, with exit code 130."""
    console = Console(file=io.StringIO())
    job = submit_once(stores, settings, console, job_file)
    stop = threading.Event()
    assert follow(stores, console, job, stop.set, stop) == 130


@pytest.mark.parametrize(("started", "has_total"), [("0", True), ("soon", False), ("", False)])
def test_the_total_time_counts_from_the_start(monkeypatch: pytest.MonkeyPatch, started: str, has_total: bool) -> None:
    """How long `make run` took is told when it noted its start, and left out otherwise."""
    monkeypatch.setenv("WATTFRONT_RUN_STARTED_AT", started)
    console = Console(file=io.StringIO())
    print_total_time(console)
    assert ("total time of make run" in printed(console)) == has_total
