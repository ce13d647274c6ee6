"""What precisions cost in quality, kept for later jobs. Knows nothing of how it is measured or what is enough.

The record is a Quality's fields by name under `"schema": 1`, as all records of `db.records` are. What can no longer be
read is as good as never measured: it is measured again.
"""

from __future__ import annotations

import dataclasses

import structlog
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db.codec import decode, encode_fields
from db.database import Database
from db.errors import RecordNotStorable, RecordUnreadable
from db.tables import QualityRow
from tuner.gauge import QualityKey
from tuner.measurement import Quality

SCHEMA = 1

log = structlog.get_logger()


class QualityStore:
    """The quality figures of one database; a `tuner.gauge.QualityStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, key: QualityKey) -> Quality | None:
        """Return what was measured under a key; None when nothing was."""
        with self._database.read() as session:
            row = _row_of(session, key)
            stored = None if row is None else row.record
        if stored is None or stored.get("schema") != SCHEMA:
            return None
        try:
            return decode(Quality, stored, "quality")
        except RecordUnreadable as error:
            log.warning("quality_unreadable", error=str(error))
            return None

    def put(self, key: QualityKey, quality: Quality) -> None:
        """Keep what was measured; of two workers that measured the same the first one's stays.

        Raises RecordNotStorable for a quality that does not say when it was measured, or holds what is no number.
        """
        if quality.measured_at is None:
            raise RecordNotStorable("quality.measured_at is None; say when it was measured")
        fields = {"schema": SCHEMA, **encode_fields(dataclasses.replace(quality, is_reused=False), "quality")}
        row = QualityRow(**dataclasses.asdict(key), measured_at=quality.measured_at, record=fields)
        try:
            with self._database.transaction() as session:
                if (old := _row_of(session, key)) is None:
                    session.add(row)
                elif old.record.get("schema") != SCHEMA:
                    old.measured_at, old.record = quality.measured_at, fields
        except IntegrityError:  # on PostgreSQL another worker may insert it after we looked
            log.info("quality_known_already", precision=key.precision)


def _row_of(session: Session, key: QualityKey) -> QualityRow | None:
    query = select(QualityRow)
    for name, value in dataclasses.asdict(key).items():
        query = query.where(getattr(QualityRow, name) == value)
    return session.scalars(query).one_or_none()
