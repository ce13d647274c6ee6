"""One database with all its stores, opened once and passed down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic_core import from_json
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from db import migrate
from db.audit import AuditStore
from db.counts import CountStore
from db.database import BUSY_TIMEOUT_S, Database
from db.deliveries import DeliveryStore
from db.devices import DeviceStore
from db.errors import DatabaseNotWritable
from db.events import EventStore
from db.front_documents import FrontDocumentStore
from db.front_lists import FrontListStore
from db.fronts import FrontStore
from db.imports import ImportStore
from db.job import Job
from db.job_lists import JobListStore
from db.jobs import JobStore
from db.keys import KeyStore
from db.night_lists import NightListStore
from db.nights import NightStore
from db.qualities import QualityStore
from db.results import ResultStore
from db.reuse import ReuseStore
from db.schedules import ScheduleStore
from db.trial_figures import TrialFigureStore
from db.trials import TrialStore
from db.workers import WorkerStore
from db.workloads import WorkloadStore
from tuner.pareto import Front, front_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Everything that is kept."""

    database: Database
    jobs: JobStore
    job_lists: JobListStore
    trials: TrialStore
    trial_figures: TrialFigureStore
    fronts: FrontStore
    front_documents: FrontDocumentStore
    front_lists: FrontListStore
    devices: DeviceStore
    events: EventStore
    counts: CountStore
    qualities: QualityStore
    reuse: ReuseStore
    results: ResultStore
    keys: KeyStore
    audit: AuditStore
    schedules: ScheduleStore
    nights: NightStore
    night_lists: NightListStore
    workers: WorkerStore
    workloads: WorkloadStore
    imports: ImportStore
    deliveries: DeliveryStore

    def front(self, job: Job) -> Front:
        """Return a job's front as its trials are now; for a job that has ended, the stored one if it has them all."""
        stored = self.fronts.latest_whole(job.id) if job.has_ended else None
        if stored is not None:
            return stored
        trials = self.trials.history(job.id)
        return front_of(trials, job.request.latency_metric, created_at=utc_now(), request=job.request)


def utc_now() -> datetime:
    """Return the time for records."""
    return datetime.now(UTC)


def open_stores(url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Stores:
    """Open the database and bring its tables to this version. Raises the named errors of `db.errors`."""
    _make_folder(url)
    database = Database(url, busy_timeout_s=busy_timeout_s)
    if migrate.current(database) != migrate.head():  # a migration waits for writers; looking at jobs need not
        migrate.upgrade(database)
    return Stores(
        database=database,
        jobs=JobStore(database, utc_now),
        job_lists=JobListStore(database),
        trials=TrialStore(database, utc_now),
        trial_figures=TrialFigureStore(database, loads=from_json),
        fronts=FrontStore(database),
        front_documents=FrontDocumentStore(database),
        front_lists=FrontListStore(database),
        devices=DeviceStore(database, utc_now),
        events=EventStore(database),
        counts=CountStore(database, utc_now),
        qualities=QualityStore(database),
        reuse=ReuseStore(database),
        results=ResultStore(database),
        keys=KeyStore(database, utc_now),
        audit=AuditStore(database, utc_now),
        schedules=ScheduleStore(database, utc_now),
        nights=NightStore(database),
        night_lists=NightListStore(database),
        workers=WorkerStore(database, utc_now),
        workloads=WorkloadStore(database, utc_now),
        imports=ImportStore(database, utc_now),
        deliveries=DeliveryStore(database, utc_now),
    )


def _make_folder(url: str) -> None:
    """Create the folder of the default SQLite file on first use."""
    try:
        name = make_url(url).database if url.startswith("sqlite") else None
    except ArgumentError:
        return  # Database says what is wrong with it
    if name and name != ":memory:" and not name.startswith("file:"):
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseNotWritable(f"cannot create the folder of {url}: {error.strerror}; create it") from error
