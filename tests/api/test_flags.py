"""Command-line options as job-file fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.errors import UsageError
from api.flags import job_fields


def options(**changes: Any) -> dict[str, Any]:
    """Return the options of `wattfront tune` as click gives them."""
    return {"sla": (), "knob": (), "task": (), "workload": None} | changes


def test_tasks_are_a_list() -> None:
    """Each --task adds one entry, and none leaves the job file's; share and limit stand beside them."""
    given = options(task=("piqa", "./facts"), task_limit=20, min_task_share=0.999)
    assert job_fields(given) == {
        "quality.tasks": ["piqa", "./facts"], "quality.task_limit": 20, "quality.min_task_share": 0.999,
    }  # fmt: skip


def test_options_not_given_say_nothing() -> None:
    """Without options there are no fields, so that the job file decides."""
    assert job_fields(options(model=None, trials=None, name=None)) == {}


def test_plain_options_are_fields() -> None:
    """Each option stands for one field of a job file, zero included."""
    given = options(
        model="m", engine="e", device="d", name="n", seed=0, trials=3, minutes=0.5, latency="l", window=2.0, warmup=1.0
    )
    assert job_fields(given) == {
        "model": "m",
        "engine": "e",
        "device": "d",
        "name": "n",
        "seed": 0,
        "budget.trials": 3,
        "budget.minutes": 0.5,
        "latency_metric": "l",
        "window.window_s": 2.0,
        "window.warmup_s": 1.0,
    }


@pytest.mark.parametrize(
    "texts",
    [
        ("ttft_p99_ms<=500,tpot_p50_ms<=20.5",),
        ("ttft_p99_ms=500", "tpot_p50_ms<=20.5"),
        (" ttft_p99_ms <= 500 , , tpot_p50_ms = 20.5",),
    ],
)
def test_limits_come_by_comma_or_repetition(texts: tuple[str, ...]) -> None:
    """Latency limits are read however they are listed."""
    assert job_fields(options(sla=texts)) == {"sla.ttft_p99_ms": 500.0, "sla.tpot_p50_ms": 20.5}


def test_knob_values_have_their_types() -> None:
    """A knob's values are whole numbers, fractions or words, as they are written."""
    knobs = ("max_batch=1, 4", "precision=fp32,int8", "rate=0.5", "none=")
    assert job_fields(options(knob=knobs)) == {
        "knobs.max_batch": [1, 4],
        "knobs.precision": ["fp32", "int8"],
        "knobs.rate": [0.5],
        "knobs.none": [],
    }


def test_a_workload_is_one_option() -> None:
    """The workload option sets the parts it names and no other."""
    assert job_fields(options(workload="closed")) == {"workload.scenario": "closed"}
    assert job_fields(options(workload="closed:prompt=8-16, output=4,concurrency = 3,seed=7")) == {
        "workload.scenario": "closed",
        "workload.prompt_tokens": "8-16",
        "workload.output_tokens": "4",
        "workload.concurrency": 3,
        "workload.seed": 7,
    }


def test_arrivals_are_parts_of_the_workload() -> None:
    """Rate, trace and time scale are parts like the others; a path stays a word, whatever it looks like."""
    assert job_fields(options(workload="server:rate=2.5,seed=1")) == {
        "workload.scenario": "server",
        "workload.rate_per_s": 2.5,
        "workload.seed": 1,
    }
    assert job_fields(options(workload="trace:trace=2023,time_scale=0.5")) == {
        "workload.scenario": "trace",
        "workload.trace_file": "2023",
        "workload.time_scale": 0.5,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sla": ("ttft_p99_ms<=soon",)}, "--sla ttft_p99_ms is 'soon': give a number of milliseconds"),
        ({"sla": ("ttft_p99_ms",)}, "--sla ttft_p99_ms is ''"),
        ({"sla": ("ttft_p99_ms<=5,ttft_p99_ms<=7",)}, "sla.ttft_p99_ms is given twice, as 5.0 and as 7.0"),
        ({"sla": ("ttft_p99_ms<=5", "ttft_p99_ms=7")}, "sla.ttft_p99_ms is given twice, as 5.0 and as 7.0"),
        ({"knob": ("max_batch",)}, "--knob is 'max_batch': write NAME=V1,V2"),
        ({"knob": ("max_batch=1", "max_batch=2")}, "knobs.max_batch is given twice, as [1] and as [2]"),
        ({"workload": "closed:users=3"}, "--workload has 'users=3': its parts are prompt=..., output=..."),
        ({"workload": "closed:prompt=3,prompt=4"}, "workload.prompt_tokens is given twice, as '3' and as '4'"),
    ],
)
def test_a_bad_option_is_named(changes: dict[str, Any], words: str) -> None:
    """An option that cannot be read, or that says two things at once, is refused by its name and value."""
    with pytest.raises(UsageError) as refused:
        job_fields(options(**changes))
    assert str(refused.value).startswith(words)


def test_a_file_alone_is_recognised(tmp_path: Path) -> None:
    """`--workload FILE` replays the times of a trace, and takes the prompts of a file without times in flight."""
    trace, prompts = tmp_path / "trace.csv", tmp_path / "prompts.jsonl"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:50,396,109\n"
    )
    prompts.write_text('{"prompt": "Name three rivers."}\n')
    assert job_fields(options(workload=f"{trace},time_scale=0.1,repeat=no")) == {
        "workload.scenario": "trace", "workload.trace_file": str(trace), "workload.time_scale": 0.1,
        "workload.repeat": False,
    }  # fmt: skip
    assert job_fields(options(workload=str(prompts))) == {
        "workload.scenario": "closed", "workload.trace_file": str(prompts),
    }  # fmt: skip
