"""The tables of the service around jobs, as mapped classes: who may ask, what repeats, what was told to whom.

Only `db` sees these classes. Types and naming are those of `db.tables`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from db.service import DeliveryState, NightState, Overlap, ScheduleState, Scope
from db.tables import Base, PlainText


def _one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    listed = ", ".join(f"'{value.value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


class ScheduleRow(Base):
    """A job that repeats: at the times of a cron line, or once in every local night."""

    __tablename__ = "schedules"
    __table_args__ = (_one_of("state", ScheduleState), _one_of("overlap", Overlap))

    seq: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(200), unique=True)
    request: Mapped[dict[str, Any]]
    #: Either a cron line of five fields, or start and end of a nightly window as HH:MM.
    cron: Mapped[str | None] = mapped_column(String(100))
    window_start: Mapped[str | None] = mapped_column(String(5))
    window_end: Mapped[str | None] = mapped_column(String(5))
    #: IANA name.
    timezone: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(20))
    overlap: Mapped[str] = mapped_column(String(20))
    #: How late a run may still start; NULL: until the window's end.
    grace_s: Mapped[float | None]
    #: Nights whose trials are kept; NULL keeps all.
    keep_nights: Mapped[int | None]
    #: Names of targets that the operator configured.
    notify: Mapped[list[Any]]
    priority: Mapped[int] = mapped_column(server_default="0")
    created_by: Mapped[str | None] = mapped_column(PlainText)
    created_at: Mapped[datetime]
    changed_at: Mapped[datetime]
    #: Counts changes, for ETags.
    version: Mapped[int] = mapped_column(server_default="1")
    #: When the time that was decided last was due: nothing before it is looked at again.
    decided_until: Mapped[datetime]


class NightRow(Base):
    """One due time of a schedule and what became of it: the row that makes it run once."""

    __tablename__ = "nights"
    __table_args__ = (
        UniqueConstraint("schedule_id", "night"),
        _one_of("state", NightState),
        Index(None, "schedule_id", "due_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id", ondelete="CASCADE"))
    #: The local date for nights (2026-03-29), the local minute for cron lines (2026-03-29T02:00+01:00).
    night: Mapped[str] = mapped_column(String(40))
    due_at: Mapped[datetime]
    decided_at: Mapped[datetime]
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str | None] = mapped_column(PlainText)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    #: What moved since the night before; NULL until its job ended.
    drift: Mapped[dict[str, Any] | None]


class WorkloadRow(Base):
    """An uploaded trace or prompt file."""

    __tablename__ = "workloads"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    #: azure, mooncake, prompts, ...: as recognised.
    form: Mapped[str] = mapped_column(String(30))
    sha256: Mapped[str] = mapped_column(String(64))
    num_rows: Mapped[int]
    num_bytes: Mapped[int]
    summary: Mapped[dict[str, Any]]
    #: The file, zlib-compressed.
    content: Mapped[bytes] = mapped_column(LargeBinary)
    created_by: Mapped[str | None] = mapped_column(PlainText)
    created_at: Mapped[datetime]


class ImportRow(Base):
    """A result file of another benchmark tool, as it was read."""

    __tablename__ = "imports"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(PlainText)
    #: vllm, guidellm, aiperf, ...: as recognised.
    tool: Mapped[str] = mapped_column(String(30))
    #: Of the file, which is not kept.
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    num_bytes: Mapped[int]
    num_results: Mapped[int]
    results: Mapped[list[Any]]
    created_by: Mapped[str | None] = mapped_column(PlainText)
    created_at: Mapped[datetime]


class ApiKeyRow(Base):
    """A key that opens the service: its hash, never itself."""

    __tablename__ = "api_keys"
    __table_args__ = (_one_of("scope", Scope),)

    id: Mapped[int] = mapped_column(primary_key=True)
    #: The public part, by which the row is found.
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    #: Of the secret part, in hexadecimal digits.
    sha256: Mapped[str] = mapped_column(String(64))
    scope: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class AuditRow(Base):
    """Who did what, when."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "subject"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True)
    #: A key's name, `local` for the command line and for a service without keys, `schedule NAME`.
    actor: Mapped[str] = mapped_column(PlainText)
    #: job.create, job.cancel, schedule.change, key.revoke, ...
    action: Mapped[str] = mapped_column(String(50))
    #: KIND/ID of what it was done to.
    subject: Mapped[str] = mapped_column(String(200))
    detail: Mapped[dict[str, Any]]


class EventRow(Base):
    """Something that happened to a job, in order, for those who follow it."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "job_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    at: Mapped[datetime] = mapped_column(index=True)
    #: job, trial_started, trial.
    kind: Mapped[str] = mapped_column(String(20))
    data: Mapped[dict[str, Any]]


class DeliveryRow(Base):
    """A notification on its way to a target of the operator's."""

    __tablename__ = "deliveries"
    __table_args__ = (
        UniqueConstraint("target", "event_key"),
        _one_of("state", DeliveryState),
        Index(None, "state", "next_attempt_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    target: Mapped[str] = mapped_column(String(100))
    #: What it tells of, so that nothing is told twice: night/ID/finished, ...
    event_key: Mapped[str] = mapped_column(String(200))
    body: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20))
    num_attempts: Mapped[int]
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[datetime]
    delivered_at: Mapped[datetime | None]
    last_error: Mapped[str | None] = mapped_column(PlainText)


class WorkerRow(Base):
    """A worker that is or was there, and what it can run."""

    __tablename__ = "workers"

    #: Host and process, as in jobs.owner.
    owner: Mapped[str] = mapped_column(String(200), primary_key=True)
    host: Mapped[str] = mapped_column(PlainText)
    version: Mapped[str] = mapped_column(String(50))
    #: Names of devices that it takes jobs for, and engines that it can start.
    devices: Mapped[list[Any]]
    engines: Mapped[list[Any]]
    started_at: Mapped[datetime]
    last_seen: Mapped[datetime]
    #: The job that it runs.
    job_id: Mapped[str | None] = mapped_column(String(32))


class ResultRow(Base):
    """A point that a finished job found, with the figures people ask for: what recommendations choose from."""

    __tablename__ = "results"
    __table_args__ = (
        UniqueConstraint("job_id", "number"),
        Index("ix_results_asked", "model", "device", "is_current", "tok_per_j"),
        Index("ix_results_on", "model", "device_uuid", "is_current", "tok_per_j"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    #: Of the trial that stands for the point.
    number: Mapped[int]
    model: Mapped[str] = mapped_column(String(300))
    engine: Mapped[str] = mapped_column(String(50))
    device: Mapped[str] = mapped_column(String(300))
    #: The device that it was measured on; a job may have asked for `auto`.
    device_uuid: Mapped[str | None] = mapped_column(String(200))
    #: Of the workload's description: figures under another load are other figures.
    workload: Mapped[str] = mapped_column(String(64))
    #: Whether no later job of the same model, engine, device and workload has finished.
    is_current: Mapped[bool]
    is_front: Mapped[bool]
    is_default: Mapped[bool]
    is_simulated: Mapped[bool]
    is_estimate: Mapped[bool]
    point: Mapped[dict[str, Any]]
    tok_per_j: Mapped[float]
    output_tok_s: Mapped[float]
    mean_power_w: Mapped[float]
    #: Latency figures in milliseconds by name (ttft_p99_ms, ...), as far as they are known.
    latencies: Mapped[dict[str, Any]]
    #: Share of the widest precision's quality that it keeps, up to 1; NULL where it was not measured.
    quality: Mapped[float | None]
    #: Intervals, number of windows, scope and method of the reading, quality, driver and versions.
    evidence: Mapped[dict[str, Any]]
    measured_at: Mapped[datetime]
