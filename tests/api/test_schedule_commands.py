"""`wattfront schedules`: from a job file to its nights, in a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.stores import Stores
from db.job import JobState
from db.service import NightState, ScheduleState
from tests.api.conftest import Main

JOB = """
model: llama-3.1-8b
device: simulated:h100-sxm
sla: {ttft_p99_ms: 500}
budget: {trials: 4}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


def test_a_schedule_is_made_shown_and_deleted(main_with: Main, stores: Stores, job_file: Path) -> None:
    """A job file and a window make a schedule whose next time is told with its offset; it can be paused and deleted."""
    assert "wattfront schedules create" in main_with("schedules", "list").out
    made = main_with("schedules", "create", "llama", job_file, "--nightly", "01:00-05:00", "--zone", "Asia/Kolkata",
                     "--keep-nights", "7")  # fmt: skip
    assert made.code == 0
    assert made.out.startswith("schedule 'llama' is made: nightly 01:00-05:00 Asia/Kolkata; due next 20")
    assert "T01:00+05:30" in made.out
    (schedule,) = stores.schedules.all()
    assert (schedule.spec.request.model, schedule.spec.keep_nights) == ("llama-3.1-8b", 7)
    assert "nightly 01:00-05:00 Asia/Kolkata" in main_with("schedules", "list").out
    shown = main_with("schedules", "show", schedule.id[:4]).out
    assert shown.count("due: ") == 5
    assert "grace_s: null\n" in shown
    main_with("schedules", "pause", "llama")
    assert stores.schedules.get("llama").state is ScheduleState.PAUSED
    items = json.loads(main_with("schedules", "list", "--format", "json").out)["items"]
    assert [(item["name"], item["state"], item["next_due"]) for item in items] == [("llama", "paused", None)]
    main_with("schedules", "resume", "llama")
    assert stores.schedules.get("llama").state is ScheduleState.ACTIVE
    assert main_with("schedules", "delete", "llama").out == "schedule 'llama' is deleted; its jobs stay\n"
    assert [entry.action for entry in stores.audit.list(limit=9)] == [
        "schedule.delete", "schedule.resume", "schedule.pause", "schedule.create"
    ]  # fmt: skip


def test_a_run_by_hand_shows_in_the_history(main_with: Main, stores: Stores, job_file: Path) -> None:
    """`run` starts a job once; the next says what is in its way, and `nights` lists both."""
    main_with("schedules", "create", "llama", job_file, "--cron", "0 2 * * 1-5", "--zone", "UTC")
    assert main_with("schedules", "nights", "llama").out == "no night of schedule 'llama' was due yet\n"
    assert main_with("schedules", "run", "llama").out.endswith("is queued; follow it with: wattfront jobs\n")
    (job,) = stores.jobs.list(limit=9)
    assert (job.state, job.submitted_by) == (JobState.QUEUED, "schedule llama")
    (night,) = stores.nights.list(stores.schedules.get("llama").id, limit=9)
    assert night.state is NightState.STARTED
    stores.nights.set_drift(night.id, {
        "compared_with": None, "is_simulated": True, "latency_metric": "tpot_p99_ms", "has_moved": False,
        "sentences": ["the first night with a front: 2 points"],
    })  # fmt: skip
    listed = main_with("schedules", "nights", "llama").out.splitlines()
    assert f"started job {job.id[:8]} queued" in listed[0]
    assert listed[1].strip() == "the first night with a front: 2 points"
    items = json.loads(main_with("schedules", "nights", "llama", "--format", "json").out)["items"]
    assert [item["job"] for item in items] == [job.id]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--zone", "UTC"], "give one of --nightly 01:00-05:00 and --cron '0 2 * * *'"),
        (["--zone", "UTC", "--nightly", "01:00", ], "--nightly is '01:00': give two local times, as in 01:00-05:00"),
        (["--zone", "Berlin", "--nightly", "01:00-05:00"], "timezone is 'Berlin': give an IANA name, as Europe/Berlin"),
        (["--zone", "UTC", "--cron", "0 2 * *"], "cron is '0 2 * *': give five fields"),
        (["--zone", "UTC", "--cron", "0 2 * * *", "--grace", "1"], "grace_s is 1.0: input should be greater than"),
        (["--zone", "UTC", "--cron", "0 2 * * *", "--notify", "ops"], "notify is 'ops': name targets of the operator"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_schedule_is_refused(
    main_with: Main, stores: Stores, job_file: Path, arguments: list[str], complaint: str
) -> None:
    """A bad time, zone, number or target is one sentence on standard error, and nothing is stored."""
    ended = main_with("schedules", "create", "llama", job_file, *arguments)
    assert (ended.code, stores.schedules.all()) == (2, [])
    assert ended.complaint.startswith(complaint)


def test_a_bad_name_is_refused(main_with: Main, stores: Stores, job_file: Path) -> None:
    """A name is what can stand in a URL."""
    ended = main_with("schedules", "create", "a b", job_file, "--cron", "0 2 * * *", "--zone", "UTC")
    assert (ended.code, stores.schedules.all()) == (2, [])
    assert ended.complaint.startswith("name is 'a b': ")
