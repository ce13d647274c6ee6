"""Uploaded traces and prompt files, on both databases."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pytest

from db.database import Database
from db.errors import TooManyWorkloads, WorkloadExists, WorkloadInUse, WorkloadNotFound
from db.jobs import JobStore
from db.schedule import ScheduleSpec
from db.schedules import ScheduleStore
from db.workloads import UPLOADED, NewWorkload, WorkloadStore
from tests.db.factories import Clock, make_request
from tuner.request import TuneRequest, WorkloadSpec


@pytest.fixture
def workloads(database: Database, clock: Clock) -> WorkloadStore:
    return WorkloadStore(database, clock.now)


def make_new(content: bytes = b"a day", **changes: Any) -> NewWorkload:
    new = NewWorkload(
        form="azure",
        sha256="ab" * 32,
        num_rows=2,
        num_bytes=len(content),
        summary={"duration_s": 4.5, "longest_tokens": 700},
        compressed=zlib.compress(content),
    )
    return replace(new, **changes)


def asking_for(name: str) -> TuneRequest:
    return make_request(workload=WorkloadSpec(scenario="trace", trace_file=f"{UPLOADED}{name}"))


def test_a_file_comes_back_as_it_was(workloads: WorkloadStore, clock: Clock) -> None:
    """Name, form, figures and every byte of a stored file are what was given."""
    stored, is_new = workloads.add("monday", make_new(b"a day\x00\xff"), created_by="ops")
    assert is_new
    assert stored == workloads.get("monday")
    assert (
        stored.name, stored.form, stored.created_by, stored.summary,
    ) == ("monday", "azure", "ops", {"duration_s": 4.5, "longest_tokens": 700})  # fmt: skip
    assert workloads.content("monday") == b"a day\x00\xff"


def test_a_name_stands_for_one_content(workloads: WorkloadStore) -> None:
    """The same content again changes nothing; another one needs another name (BUG-28)."""
    first, _ = workloads.add("monday", make_new())
    assert (first, False) == workloads.add("monday", make_new(), created_by="another")
    with pytest.raises(WorkloadExists, match="name is 'monday': a workload of that name has another content"):
        workloads.add("monday", make_new(sha256="cd" * 32))


def test_lists_go_on_where_they_ended(workloads: WorkloadStore) -> None:
    """The newest come first, and `before` goes on behind the last one seen."""
    for name in ("one", "two", "three"):
        workloads.add(name, make_new())
    assert [one.name for one in workloads.list(limit=2)] == ["three", "two"]
    assert [one.name for one in workloads.list(limit=2, before="two")] == ["one"]
    with pytest.raises(WorkloadNotFound):
        workloads.list(limit=2, before="four")


def test_what_is_needed_is_not_deleted(
    workloads: WorkloadStore, jobs: JobStore, database: Database, clock: Clock
) -> None:
    """While a job waits or a schedule names it, a file stays; then it can go, and its name is free."""
    schedules = ScheduleStore(database, clock.now)
    workloads.add("monday", make_new())
    job = jobs.create(asking_for("monday"))
    jobs.create(asking_for("tuesday"))
    spec = ScheduleSpec(name="nightly", request=asking_for("monday"), cron="0 2 * * *", timezone="Europe/Berlin")
    schedules.create(spec)
    with pytest.raises(WorkloadInUse, match=rf"needed by job {job.id[:8]}, schedule nightly; end or change"):
        workloads.delete("monday")
    jobs.request_cancel(job.id)
    schedules.delete("nightly")
    assert workloads.delete("monday").name == "monday"
    with pytest.raises(WorkloadNotFound, match="there is no uploaded workload 'monday'"):
        workloads.delete("monday")
    assert workloads.add("monday", make_new(sha256="cd" * 32))[1]


def test_a_file_that_is_not_there_is_named(workloads: WorkloadStore) -> None:
    """Neither figures nor content of an unknown name are made up."""
    for ask in (workloads.get, workloads.content):
        with pytest.raises(WorkloadNotFound, match="'sunday'"):
            ask("sunday")


def test_no_more_than_can_be_kept_are_taken(workloads: WorkloadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a new name is refused, and what is there can still be named again."""
    monkeypatch.setattr("db.workloads.MAX_WORKLOADS", 1)
    workloads.add("monday", make_new())
    with pytest.raises(TooManyWorkloads, match="1 workloads are kept"):
        workloads.add("tuesday", make_new())
    assert not workloads.add("monday", make_new())[1]
