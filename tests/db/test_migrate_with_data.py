"""Migrations down to every version and up again, with rows in every table, on both backends."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import func, select

from db import migrate
from db.audit import AuditStore
from db.database import Database
from db.deliveries import DeliveryStore
from db.devices import DeviceStore
from db.front_documents import FrontDocument, FrontDocumentStore
from db.fronts import FrontStore
from db.jobs import JobStore
from db.keys import KeyStore
from db.nights import NightStore
from db.results import ResultStore
from db.schedules import ScheduleStore
from db.service import Scope
from db.service_tables import ImportRow, WorkerRow, WorkloadRow
from db.tables import Base, FrontRow, JobRow, QualityRow
from db.trials import TrialStore
from tests.db.factories import (
    START,
    Clock,
    make_capability,
    make_device,
    make_point,
    make_request,
    make_trial,
)
from tests.db.test_nights import make_due, make_spec
from tuner.pareto import front_of

#: Tables by the version that made them; those of the first are there at every other.
TABLES_OF = {
    "0001": ("devices", "front_points", "fronts", "jobs", "measurements", "trials"),
    "0004": ("qualities",),
    "0005": ("api_keys", "audit", "deliveries", "events", "nights", "results", "schedules", "workers", "workloads"),
    "0008": ("imports",),
}
VERSIONS = ("base", "0001", "0002", "0003", "0004", "0005", "0006", "0007")


def counts_of(database: Database) -> dict[str, int]:
    with database.read() as session:
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Base.metadata.tables.items()
        }


def fill(database: Database, clock: Clock) -> None:
    """Store at least one row in every table, by the stores where they make it."""
    jobs, trials = JobStore(database, clock.now), TrialStore(database, clock.now)
    DeviceStore(database, clock.now).seen(make_device(), [make_capability()])
    schedule = ScheduleStore(database, clock.now).create(make_spec(notify=("ops",)))
    night = NightStore(database).decide(schedule, make_due(), now=make_due().due_at)
    assert night is not None
    claim = jobs.claim(str(night.job_id), "host:1", 1e9)
    jobs.set_device(claim, "GPU-1")
    trial = make_trial(point=make_point(16))
    assert trials.finish(trials.start(claim, 0, trial.point), trial)
    front = front_of([trial], "tpot_p99_ms", created_at=START)
    FrontStore(database).save(claim.job_id, front)
    ResultStore(database).save(claim.job_id, [trial], front)
    KeyStore(database, clock.now).create("ci", Scope.TUNE)
    AuditStore(database, clock.now).add(actor="ci", action="job.create", subject="job/1")
    DeliveryStore(database, clock.now).add("ops", f"night/{night.id}/started", {"event": "night.started"})
    with database.transaction() as session:
        session.add_all([_quality(), _worker(), _workload(), _import()])


def _quality() -> QualityRow:
    words = ("model_hash", "engine", "version", "isa", "precision", "kv_precision", "reference", "sample_hash")
    return QualityRow(**{name: name for name in words}, measured_at=START, record={"perplexity": 17.5})


def _worker() -> WorkerRow:
    seen: dict[str, Any] = {"started_at": START, "last_seen": START}
    return WorkerRow(owner="host:1", host="host", version="0.6", devices=["GPU-1"], engines=["embedded"], **seen)


def _import() -> ImportRow:
    read: dict[str, Any] = {"num_bytes": 2, "num_results": 1, "results": [{"tool": "vllm", "sha256": "0" * 64}]}
    return ImportRow(name="bench.json", tool="vllm", sha256="0" * 64, created_at=START, **read)


def _workload() -> WorkloadRow:
    return WorkloadRow(
        name="chat",
        form="prompts",
        sha256="0" * 64,
        num_rows=1,
        num_bytes=2,
        summary={"rows": 1},
        content=b"\x00\xff",
        created_at=START,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_down_and_up_again_with_rows_in_every_table(empty_database: Database, clock: Clock, version: str) -> None:
    """Down to any version and up again keeps the rows of every table that version has, and nothing differs after it."""
    migrate.upgrade(empty_database)
    fill(empty_database, clock)
    before = counts_of(empty_database)
    assert [name for name, count in before.items() if count == 0] == []
    assert sorted(before) == sorted(name for names in TABLES_OF.values() for name in names)
    migrate.downgrade(empty_database, version)
    migrate.upgrade(empty_database)
    kept = {name for made_in, names in TABLES_OF.items() if version != "base" and made_in <= version for name in names}
    assert counts_of(empty_database) == {name: count if name in kept else 0 for name, count in before.items()}
    with empty_database.read() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        jobs = session.scalars(select(JobRow)).all()
    asked = make_spec().request
    assert [(job.model, job.engine, job.device) for job in jobs] == [
        (asked.model, asked.engine, asked.device) for _ in range(0 if version == "base" else 1)
    ]
    assert JobStore(empty_database, clock.now).create(make_request()).request == make_request()


def test_documents_are_packed_and_unpacked(empty_database: Database, clock: Clock) -> None:
    """What a front shows is the same after a way down to the version that kept it as JSON and up again."""
    migrate.upgrade(empty_database)
    fill(empty_database, clock)
    shown = {"points": [{"tok_per_j": 1.5, "note": "naïve"}], "is_final": True}
    packed = FrontDocument(body=gzip.compress(json.dumps(shown).encode()), version=3)
    FrontDocumentStore(empty_database).put(1, packed)
    migrate.downgrade(empty_database, "0005")
    migrate.upgrade(empty_database)
    with empty_database.read() as session:
        (body,) = session.scalars(select(FrontRow.document)).all()
    assert shown == json.loads(gzip.decompress(body or b""))
