"""MLPerf's scenarios at the edge: presets in jobs, and the command `loadgen`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from api.cli import cli
from api.errors import JobFileError
from api.job_fields import fields_of
from api.job_schemas import JobIn
from api.jobfile import read_job
from api.mlperf_command import RESULT
from tests.tiny_model import write_tiny_model

PRESET = "mlperf:server:llama3.1-8b"
JOB = f"model: llama-3.1-8b\ndevice: simulated:h100-sxm\nscenario: {PRESET}\nworkload:\n  rate_per_s: 4\n"


class TestJobs:
    """A preset in a job file or a posted job."""

    def test_it_is_expanded_when_the_job_is_read(self, tmp_path: Path) -> None:
        """The request has the preset's workload, limits, axis and name, and is made again by its own fields alone."""
        (tmp_path / "job.yaml").write_text(JOB)
        request = read_job(tmp_path / "job.yaml", {})
        assert (request.workload.scenario, request.workload.rate_per_s) == ("server", 4)
        assert {limit.metric: limit.bound_ms for limit in request.sla} == {"ttft_p99_ms": 2000, "tpot_p99_ms": 100}
        assert (request.latency_metric, request.name) == ("tpot_p99_ms", PRESET)
        assert "scenario" not in fields_of(request)
        assert JobIn.model_validate(fields_of(request)).to_request() == request

    def test_a_contradiction_is_told_with_its_line(self, tmp_path: Path) -> None:
        """A limit beside the preset that says otherwise is refused with file and line."""
        (tmp_path / "job.yaml").write_text(f"{JOB}sla:\n  ttft_p99_ms: 1000\n")
        with pytest.raises(JobFileError, match=r"job\.yaml:7: sla\.ttft_p99_ms is 1000: .*sets 2000"):
            read_job(tmp_path / "job.yaml", {})

    def test_an_unknown_preset_is_told_with_its_line(self, tmp_path: Path) -> None:
        """A preset that there is not is refused with file, line and what there is."""
        (tmp_path / "job.yaml").write_text(JOB.replace("llama3.1-8b", "llama3"))
        with pytest.raises(
            JobFileError, match=r"job\.yaml:3: scenario is 'mlperf:server:llama3': choose one of mlperf"
        ):
            read_job(tmp_path / "job.yaml", {})


def test_both_accounts_are_kept_and_labelled(tmp_path: Path) -> None:
    """The folder has LoadGen's files and ours; what is printed and what is kept begin with the label."""
    model = write_tiny_model(tmp_path / "tiny")
    options = ("--model", model, "--workload", "server:prompt=8-16,output=4-6", "--target-qps", "40", "--out", tmp_path)
    bounds = ("--queries", "20", "--min-duration", "0.3", "--settings", "max_batch=4")
    ended = CliRunner().invoke(cli, ["loadgen", "--scenario", PRESET, *map(str, options), *bounds])
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.startswith("NOT VALID FOR SUBMISSION: min duration 0.3 s of 600 s; 20 queries of 459; ")
    assert "tpot_p99_ms: not enough queries" in ended.stdout
    kept = json.loads((tmp_path / RESULT).read_text())
    assert kept["label"] == "not valid for submission"
    assert kept["num_failed"] == 0
    assert {both["loadgen"] is None for both in kept["latencies"].values()} == {False}
    assert {"mlperf_log_summary.txt", "mlperf_log_detail.txt"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scenario", PRESET, "--engine", "simulated"), "engine is 'simulated': LoadGen waits for real time"),
        (("--scenario", "mlperf:server:gpt-5"), "scenario is 'mlperf:server:gpt-5': choose one of"),
        (("--scenario", PRESET, "--workload", "server:rate=3"), "LoadGen's is --target-qps"),
        (("--scenario", PRESET, "--settings", "max_batch=1,2"), "--knob is '2'"),
    ],
)
def test_what_cannot_be_driven_is_refused(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    """An option that makes no run is refused with its name before an engine is opened."""
    ended = CliRunner().invoke(cli, ["loadgen", "--model", "smollm2-135m", "--out", str(tmp_path / "run"), *options])
    assert words in str(ended.exception)
    assert not (tmp_path / "run").exists()
