"""Schedules: create, find, list, change, pause, delete. Each change counts the version up.

Knows nothing of calendars, nor of what becomes of a due time; see `db.nights`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime

import structlog
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db.database import Database
from db.errors import AmbiguousSchedule, RecordUnreadable, ScheduleChanged, ScheduleExists, ScheduleNotFound
from db.records import request_from_json, request_to_json
from db.schedule import Schedule, ScheduleSpec
from db.service import Overlap, ScheduleState
from db.service_tables import ScheduleRow

MIN_PREFIX = 4
#: Names that an ambiguous id shows at most.
MAX_CANDIDATES = 5

Schedules = list[Schedule]

log = structlog.get_logger(__name__)


class ScheduleStore:
    """The schedules of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def create(
        self, spec: ScheduleSpec, *, created_by: str | None = None, idempotency_key: str | None = None
    ) -> Schedule:
        """Store a schedule; its first run is the first that is due from now on. Raises ScheduleExists.

        The same key again returns the schedule that it first made, whatever the spec now says; compare `spec` to
        notice.
        """
        try:
            with self._database.transaction() as session:
                known = _with_key(session, idempotency_key)
                if known is not None:
                    return schedule_of(known)
                now = self._now()
                row = ScheduleRow(
                    id=uuid.uuid4().hex,
                    idempotency_key=idempotency_key,
                    state=ScheduleState.ACTIVE,
                    created_by=created_by,
                    created_at=now,
                    changed_at=now,
                    version=1,
                    decided_until=now,
                )
                _fill(row, spec)
                session.add(row)
                session.flush()
                return schedule_of(row)
        except IntegrityError as error:
            with self._database.read() as session:
                known = _with_key(session, idempotency_key)  # on PostgreSQL another may insert it after we looked
                if known is None:
                    raise ScheduleExists(spec.name) from error
                return schedule_of(known)

    def with_key(self, idempotency_key: str) -> Schedule | None:
        """Return the schedule that a key made, if there is one."""
        with self._database.read() as session:
            row = _with_key(session, idempotency_key)
            return None if row is None else schedule_of(row)

    def get(self, name: str) -> Schedule:
        """Find a schedule by name, id, or the first 4 or more characters of its id.

        Raises ScheduleNotFound, AmbiguousSchedule.
        """
        with self._database.read() as session:
            return schedule_of(_find(session, name))

    def list(self, *, limit: int, before: str | None = None) -> Schedules:
        """Return at most `limit` schedules, newest first; those created before the schedule `before`, to go on."""
        query = select(ScheduleRow).order_by(ScheduleRow.seq.desc()).limit(limit)
        with self._database.read() as session:
            if before is not None:
                query = query.where(ScheduleRow.seq < _find(session, before).seq)
            return [schedule_of(row) for row in session.scalars(query)]

    def all(self) -> Schedules:
        """Return every schedule that this version can read, oldest first; of others the log tells."""
        found = []
        with self._database.read() as session:
            for row in session.scalars(select(ScheduleRow).order_by(ScheduleRow.seq)):
                try:
                    found.append(schedule_of(row))
                except RecordUnreadable as error:  # of a later version, or damaged: the others' nights go on
                    log.error("schedule_unreadable", schedule=row.name, id=row.id, error=str(error))
        return found

    def change(self, name: str, spec: ScheduleSpec, *, expected_version: int) -> Schedule:
        """Replace what a schedule says. Under other times nothing is due that lies before now.

        Raises ScheduleNotFound, AmbiguousSchedule, ScheduleExists; ScheduleChanged when it is of another version.
        """
        try:
            with self._database.transaction() as session:
                row = _locked(session, name)
                if row.version != expected_version:
                    raise ScheduleChanged(row.name, expected=expected_version, found=row.version)
                now = self._now()
                if schedule_of(row).spec.timing != spec.timing:
                    row.decided_until = max(row.decided_until, now)
                _fill(row, spec)
                return _changed(row, now)
        except IntegrityError as error:
            raise ScheduleExists(spec.name) from error

    def pause(self, name: str) -> Schedule:
        """Start nothing until it is resumed; nights meanwhile are recorded as skipped."""
        return self._set_state(name, ScheduleState.PAUSED)

    def resume(self, name: str) -> Schedule:
        """Start what is due from now on, and nothing that was due while it was paused."""
        return self._set_state(name, ScheduleState.ACTIVE)

    def delete(self, name: str) -> Schedule:
        """Delete a schedule and its nights, and return it; the jobs stay. Raises ScheduleNotFound."""
        with self._database.transaction() as session:
            row = _locked(session, name)
            schedule = schedule_of(row)
            session.delete(row)
            return schedule

    def _set_state(self, name: str, state: ScheduleState) -> Schedule:
        with self._database.transaction() as session:
            row = _locked(session, name)
            if row.state == state:
                return schedule_of(row)
            now = self._now()
            if state is ScheduleState.ACTIVE:
                row.decided_until = max(row.decided_until, now)
            row.state = state
            return _changed(row, now)


def schedule_of(row: ScheduleRow) -> Schedule:
    """Return a row as a schedule."""
    spec = ScheduleSpec(
        name=row.name,
        request=request_from_json(row.request),
        cron=row.cron,
        window_start=row.window_start,
        window_end=row.window_end,
        timezone=row.timezone,
        overlap=Overlap(row.overlap),
        grace_s=row.grace_s,
        keep_nights=row.keep_nights,
        notify=tuple(row.notify),
        priority=row.priority,
    )
    return Schedule(
        id=row.id,
        spec=spec,
        state=ScheduleState(row.state),
        created_by=row.created_by,
        created_at=row.created_at,
        changed_at=row.changed_at,
        version=row.version,
        decided_until=row.decided_until,
    )


def _fill(row: ScheduleRow, spec: ScheduleSpec) -> None:
    row.name = spec.name
    row.request = request_to_json(spec.request)
    row.cron = spec.cron
    row.window_start = spec.window_start
    row.window_end = spec.window_end
    row.timezone = spec.timezone
    row.overlap = spec.overlap
    row.grace_s = spec.grace_s
    row.keep_nights = spec.keep_nights
    row.notify = list(spec.notify)
    row.priority = spec.priority


def _changed(row: ScheduleRow, now: datetime) -> Schedule:
    row.version += 1
    row.changed_at = now
    return schedule_of(row)


def _with_key(session: Session, idempotency_key: str | None) -> ScheduleRow | None:
    if idempotency_key is None:
        return None
    return session.scalar(select(ScheduleRow).where(ScheduleRow.idempotency_key == idempotency_key))


def _find(session: Session, name: str) -> ScheduleRow:
    if not name.isprintable():  # bytes of another encoding, NUL: databases refuse to look for them
        raise ScheduleNotFound(name)
    named = session.scalars(select(ScheduleRow).where((ScheduleRow.name == name) | (ScheduleRow.id == name))).all()
    if named:  # an id is given by us, a name by anybody: one that repeats another's id must not stand in for it
        return next((row for row in named if row.id == name), named[0])
    if len(name) < MIN_PREFIX:
        raise ScheduleNotFound(name)
    fits = select(ScheduleRow).where(ScheduleRow.id.startswith(name.lower(), autoescape=True)).order_by(ScheduleRow.id)
    rows = session.scalars(fits.limit(MAX_CANDIDATES)).all()
    if not rows:
        raise ScheduleNotFound(name)
    if len(rows) > 1:
        raise AmbiguousSchedule(name, [row.name for row in rows])
    return rows[0]


def _locked(session: Session, name: str) -> ScheduleRow:
    row_id = _find(session, name).id
    locked = (
        select(ScheduleRow).where(ScheduleRow.id == row_id).with_for_update().execution_options(populate_existing=True)
    )
    row = session.scalar(locked)
    if row is None:
        raise ScheduleNotFound(name)
    return row
