"""A request back as fields: nothing is lost, and nothing is said that is as usual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.job_fields import fields_of, yaml_of
from api.job_schemas import JobIn
from api.jobfile import read_job

FULL: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "engine": "embedded",
    "device": "cpu",
    "allow_device_control": True,
    "name": "off: <b>no</b> # yes",
    "latency_metric": "ttft_p90_ms",
    "sampler": "gp",
    "seed": 7,
    "workload": {"prompt_tokens": "8-16", "output_tokens": 32, "concurrency": 2, "seed": 3},
    "sla": {"ttft_p99_ms": 500, "tpot_p99_ms": 30.5},
    "knobs": {"max_batch": [1, 4], "precision": ["fp32", "bf16"]},
    "budget": {"trials": 5, "minutes": 1.5, "device_hours": 2, "joules": 9e5, "plateau_trials": 4},
    "repeats": {"windows": 3, "finalists": 2},
    "reuse": {"max_age_hours": 1e-06},
    "window": {"warmup_s": 130.0, "window_s": 5.0, "max_window_s": 40.0, "idle_s": 0.0, "stops_early": False},
    "quality": {"max_kl": 0.1, "tasks": ["arc_easy"], "task_limit": 20},
}
TRACE = {"model": "m", "workload": {"scenario": "trace", "trace_file": "uploaded:t", "time_scale": 0.5}}


@pytest.mark.parametrize("given", [{"model": "m"}, {"model": "m", "device": "simulated:h100-sxm:8"}, FULL, TRACE])
def test_fields_make_the_request_that_they_are_of(given: dict[str, Any]) -> None:
    """The fields of a request make an equal one; what is as usual is not among them."""
    request = JobIn.model_validate(given).to_request()
    fields = fields_of(request)
    assert request == JobIn.model_validate(fields).to_request()
    usual = {"engine"} if given is FULL else set()  # a device that is no simulated one has it anyway
    assert set(given) - usual == set(fields)


def test_a_window_keeps_the_longest_times_that_do_not_follow() -> None:
    """A longest time that its shorter ones imply is left out, another one is said."""
    fields = fields_of(JobIn.model_validate(FULL).to_request())
    expected = {"warmup_s": 130.0, "window_s": 5.0, "max_window_s": 40.0, "idle_s": 0.0, "stops_early": False}
    assert expected == fields["window"]


def test_yaml_is_a_job_file_of_the_same_job(tmp_path: Path) -> None:
    """The YAML of any fields is read as a job file with the same values, however odd its texts."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml_of(FULL), encoding="utf-8")
    assert JobIn.model_validate(FULL | {"quality": {"max_kl": 0.1}}).to_request() == read_job(
        path, {"quality.tasks": [], "quality.task_limit": 200}
    )
