"""The tables as mapped classes, with a name for every constraint. Only `db` sees these classes.

JSON columns refuse NaN and Infinity; every time is stored and returned in UTC.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from db.device import ControlState
from db.errors import RecordNotStorable
from db.job import JobState
from tuner.trial import TrialRole, TrialState


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: aware datetimes in any zone go in, UTC ones come out, on every backend.

    SQLite has no zones: it would keep the local digits and drop the offset, so instants would move and sort wrongly.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn into UTC; refuse a time whose zone is not known."""
        if value is not None and value.tzinfo is None:
            raise RecordNotStorable(f"{value} has no time zone; give an aware datetime")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give SQLite's naive digits their zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class FiniteJson(TypeDecorator[Any]):
    """Plain data as JSON, without NaN and Infinity: they are not JSON, and one of them would blank a whole page.

    None is SQL's NULL, not JSON's null, which no query would find as missing.
    """

    impl = JSON
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(none_as_null=True)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Refuse what is not JSON; the drivers' own serializers let it pass."""
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise RecordNotStorable(f"{error}; store None and a reason in its place") from error
        return value


class PlainText(TypeDecorator[str]):
    """Text for people, as in the last lines of a dead engine's log.

    NUL and lone surrogates, which PostgreSQL and SQLite refuse, become U+FFFD: a strange log must not cost a trial.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace what no database stores."""
        if value is None:
            return None
        return value.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Base(DeclarativeBase):
    """Names every constraint: one without a name cannot be dropped by a later migration."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        float: Double,
        datetime: UtcDateTime,
        dict[str, Any]: FiniteJson,
        list[Any]: FiniteJson,
    }


def _one_of(column: str, values: type[ControlState | JobState | TrialRole | TrialState]) -> CheckConstraint:
    listed = ", ".join(f"'{value.value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


class DeviceRow(Base):
    """A device that a worker opened."""

    __tablename__ = "devices"
    __table_args__ = (_one_of("control_state", ControlState),)

    uuid: Mapped[str] = mapped_column(String(200), primary_key=True)
    name: Mapped[str] = mapped_column(PlainText)
    kind: Mapped[str] = mapped_column(String(20))
    driver: Mapped[str] = mapped_column(PlainText)
    details: Mapped[list[Any]]
    capabilities: Mapped[list[Any]]
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]
    control_state: Mapped[str] = mapped_column(String(20), server_default=ControlState.OBSERVED.value)
    control_detail: Mapped[str | None] = mapped_column(PlainText)


class JobRow(Base):
    """A request with its state and its lease."""

    __tablename__ = "jobs"
    __table_args__ = (
        _one_of("state", JobState),
        Index(None, "state", "priority", "seq"),
        Index(None, "model", "device", "seq"),
    )

    #: Order of creation; clocks may jump, this does not.
    seq: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(200), unique=True)
    name: Mapped[str] = mapped_column(PlainText)
    request: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    ended_because: Mapped[str | None] = mapped_column(String(100))
    message: Mapped[str | None] = mapped_column(PlainText)
    device_uuid: Mapped[str | None] = mapped_column(ForeignKey("devices.uuid"), index=True)
    owner: Mapped[str | None] = mapped_column(PlainText)
    #: The secret of the claim that holds the job; None when nobody does.
    token: Mapped[str | None] = mapped_column(String(32))
    lease_expires_at: Mapped[datetime | None]
    cancel_requested: Mapped[bool]
    resume_count: Mapped[int]
    #: Names and values of the knobs as they are searched on the device; NULL until a worker found out.
    space: Mapped[list[Any] | None]
    #: The job whose results this one begins with.
    previous_job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    #: Of the request, cut to what an index takes; for lists, and for workers that take only some devices.
    model: Mapped[str] = mapped_column(String(300))
    engine: Mapped[str] = mapped_column(String(50))
    device: Mapped[str] = mapped_column(String(300))
    #: Higher first.
    priority: Mapped[int] = mapped_column(server_default="0")
    #: Claims whose worker was lost in a row, without a trial that ended in between.
    num_lost: Mapped[int] = mapped_column(server_default="0")
    #: Who asked for it: a key's name, `local`, or `schedule NAME`.
    submitted_by: Mapped[str | None] = mapped_column(PlainText)


class TrialRow(Base):
    """One attempt at one point."""

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("job_id", "number", "attempt"),
        _one_of("state", TrialState),
        _one_of("role", TrialRole),
        # With the time: whether a front misses a trial that ended later is answered by the index alone.
        Index(None, "job_id", "state", "finished_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    number: Mapped[int]
    attempt: Mapped[int]
    point: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str | None] = mapped_column(PlainText)
    detail: Mapped[str | None] = mapped_column(PlainText)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    #: Of the claim that started it: only that claim may finish it.
    token: Mapped[str] = mapped_column(String(32))
    role: Mapped[str] = mapped_column(String(20), server_default=TrialRole.SCREENING.value)
    session: Mapped[str | None] = mapped_column(PlainText)
    device_s: Mapped[float | None]
    device_j: Mapped[float | None]
    #: JOB/NUMBER of the trial that was measured in its place.
    reused_from: Mapped[str | None] = mapped_column(String(60))

    measurement: Mapped[MeasurementRow | None] = relationship(lazy="raise")


class MeasurementRow(Base):
    """A trial's measurement: the figures people filter by as columns, the whole record beside them."""

    __tablename__ = "measurements"
    __table_args__ = (Index(None, "fingerprint", "settings"),)

    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True)
    window_s: Mapped[float]
    output_tok_s: Mapped[float]
    #: This and the next two are NULL unless the reading may be used.
    tok_per_j: Mapped[float | None] = mapped_column(index=True)
    mean_power_w: Mapped[float | None]
    energy_j: Mapped[float | None]
    scope: Mapped[str] = mapped_column(String(30))
    method: Mapped[str] = mapped_column(String(30))
    record: Mapped[dict[str, Any]]
    #: What tables and charts show of the record, see `db.figures`: a tenth of its bytes or less.
    figures: Mapped[list[Any] | None]
    #: What it was measured under, and at which settings, as hashes: what has the same two need not be measured again.
    #: NULL when it may not be taken over.
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    settings: Mapped[str | None] = mapped_column(String(64))


class QualityRow(Base):
    """What a precision costs in quality, by everything that decides it."""

    __tablename__ = "qualities"
    #: Named here: PostgreSQL would cut the columns' names short.
    __table_args__ = (
        UniqueConstraint(
            "model_hash", "engine", "version", "isa", "precision", "kv_precision", "reference", "sample_hash",
            name="uq_qualities_key",
        ),
    )  # fmt: skip

    id: Mapped[int] = mapped_column(primary_key=True)
    model_hash: Mapped[str] = mapped_column(String(64))
    engine: Mapped[str] = mapped_column(String(50))
    version: Mapped[str] = mapped_column(String(200))
    isa: Mapped[str] = mapped_column(String(100))
    precision: Mapped[str] = mapped_column(String(20))
    kv_precision: Mapped[str] = mapped_column(String(20))
    reference: Mapped[str] = mapped_column(String(20))
    sample_hash: Mapped[str] = mapped_column(String(64))
    measured_at: Mapped[datetime]
    record: Mapped[dict[str, Any]]


class FrontRow(Base):
    """A job's front at one moment; old ones stay."""

    __tablename__ = "fronts"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    latency_metric: Mapped[str] = mapped_column(String(50))
    hypervolume: Mapped[float]
    latency_reference_ms: Mapped[float | None]
    num_points: Mapped[int]
    #: The public form as it was saved, as gzip, and of which version that form is: reading it needs no trial.
    document: Mapped[bytes | None]
    document_version: Mapped[int | None]


class FrontPointRow(Base):
    """A trial's place on a front, 0 is the fastest."""

    __tablename__ = "front_points"
    __table_args__ = (UniqueConstraint("front_id", "trial_id"),)

    front_id: Mapped[int] = mapped_column(ForeignKey("fronts.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), index=True)
