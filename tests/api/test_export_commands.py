"""`wattfront recommend`, `export` and `index`: what they print, write and refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.stores import Stores
from db.job import JobState
from tests.api.conftest import Main
from tests.db.factories import START, make_point, make_request, make_trial
from tuner.pareto import front_of

ASK = ("recommend", "--model", "smollm2-135m", "--device", "auto")


@pytest.fixture
def job_id(stores: Stores) -> str:
    """A finished job of an earlier version: it has trials and a front, and no results."""
    claim = stores.jobs.create_claimed(make_request(), "host:1", 600)
    trial = make_trial(point=make_point(16))
    stores.trials.finish(stores.trials.start(claim, 0, trial.point), trial)
    stores.fronts.save(claim.job_id, front_of([trial], "tpot_p99_ms", created_at=START))
    stores.jobs.finish(claim, JobState.FINISHED, "trials")
    return claim.job_id


def test_index_makes_old_jobs_known(main_with: Main, job_id: str) -> None:
    """A finished job without results answers nothing until `index` has stored them, which it does once."""
    assert "no finished job has results" in main_with(*ASK).complaint
    assert main_with("index").out == "1 points of 1 jobs stored\n"
    assert main_with("index").out == "every finished job is known already\n"
    told = main_with(*ASK, "--tpot-p99-ms", 100).out
    assert f"job {job_id[:8]}, trial 0: max_batch=16 precision=fp32" in told
    assert "vllm serve HuggingFaceTB/SmolLM2-135M-Instruct" in told


def test_a_limit_that_cannot_be_is_refused_by_its_flag(main_with: Main) -> None:
    """A bad limit ends with exit code 2 and names the flag and the value."""
    ended = main_with(*ASK, "--ttft-p99-ms", -5)
    assert (ended.code, ended.complaint.startswith("--ttft-p99-ms is -5.0:")) == (2, True)


def test_export_prints_or_writes(main_with: Main, job_id: str, tmp_path: Path) -> None:
    """An export goes to standard output, or as the same bytes to the file that is named."""
    shown = main_with("export", job_id[:8], "--form", "vllm", "--point", 0).out
    assert "--max-num-seqs 16" in shown
    file = tmp_path / "run.sh"
    assert main_with("export", job_id[:8], "--form", "vllm", "--output", file).out == f"written: {file}\n"
    assert file.read_text(encoding="utf-8") == shown


def test_a_file_that_cannot_be_written_is_named(main_with: Main, job_id: str, tmp_path: Path) -> None:
    """A folder that is not there is said in one sentence."""
    ended = main_with("export", job_id[:8], "--form", "json", "--output", tmp_path / "no" / "x.json")
    assert (ended.code, "name a file that can be written" in ended.complaint) == (2, True)


def test_a_terminal_gets_no_zip(main_with: Main, job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ZIP file is not written to a screen: the message names the option that takes it."""
    monkeypatch.setattr("api.export_commands.is_terminal", lambda: True)
    ended = main_with("export", job_id[:8], "--form", "mlperf")
    assert (ended.code, "name a file with --output" in ended.complaint) == (2, True)


def test_a_trial_that_is_no_point_is_refused(main_with: Main, job_id: str) -> None:
    """The message names the trials that can be exported."""
    complaint = main_with("export", job_id[:8], "--form", "vllm", "--point", 9).complaint
    assert complaint == f"number is 9: job {job_id[:8]} has points inside its limits at the trials 0"
