"""Which jobs a list shows."""

from __future__ import annotations

import pytest

from db.database import Database
from db.job_filter import JobFilter
from db.job_lists import JobListStore
from db.jobs import JobStore
from tests.db.factories import make_request


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("H200", ["on the h200", "other"]),
        ("smol", ["on the h200"]),
        ("100%", ["100% load"]),
        ("_", []),
        ("nowhere", []),
    ],
)
def test_text_is_looked_for_in_name_model_and_device(
    database: Database, jobs: JobStore, text: str, names: list[str]
) -> None:
    """Part of a name, model or device is found in any case, and no character of it is a wildcard."""
    jobs.create(make_request(name="other", model="llama", device="simulated:h200"))
    jobs.create(make_request(name="on the h200", model="SmolLM2", device="auto"))
    jobs.create(make_request(name="100% load", model="llama", device="auto"))
    found = JobListStore(database).page(limit=9, only=JobFilter(text=text))
    assert names == [listed.job.name for listed in found]


def test_a_job_is_found_by_the_start_of_its_id(database: Database, jobs: JobStore) -> None:
    """The first characters of an id find the job, as they do on the command line."""
    job_id = jobs.create(make_request(name="zz", model="zz", device="zz")).id
    found = JobListStore(database).page(limit=9, only=JobFilter(text=job_id[:8].upper()))
    assert [job_id] == [listed.job.id for listed in found]
