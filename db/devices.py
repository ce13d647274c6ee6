"""Devices that were seen, keyed by UUID, and whether they are set. Knows nothing of drivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from db.database import Database
from db.device import ControlState, SeenDevice
from db.errors import DeviceNotStored
from db.records import device_columns, seen_device_of
from db.tables import DeviceRow
from probes.device import Capability, DeviceInfo

SeenDevices = list[SeenDevice]


class DeviceStore:
    """The devices of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def seen(self, info: DeviceInfo, capabilities: Sequence[Capability]) -> None:
        """Note that a device is there and what it can do; what was known of it is replaced, but not who sets it."""
        try:
            self._store(info, capabilities)
        except IntegrityError:  # on PostgreSQL another worker may insert the device after we looked
            self._store(info, capabilities)

    def set_control(self, uuid: str, state: ControlState | str, detail: str | None) -> None:
        """Note whether a device is set, and who sets it or what went wrong. Raises DeviceNotStored."""
        with self._database.transaction() as session:
            row = _row_of(session, uuid)
            row.control_state = ControlState(state).value
            row.control_detail = detail

    def get(self, uuid: str) -> SeenDevice:
        """Return one device. Raises DeviceNotStored."""
        with self._database.read() as session:
            return seen_device_of(_row_of(session, uuid))

    def list(self) -> SeenDevices:
        """Return every device ever seen, last seen first."""
        with self._database.read() as session:
            rows = session.scalars(select(DeviceRow).order_by(DeviceRow.last_seen.desc(), DeviceRow.uuid))
            return [seen_device_of(row) for row in rows]

    def _store(self, info: DeviceInfo, capabilities: Sequence[Capability]) -> None:
        with self._database.transaction() as session:
            now = self._now()
            row = session.get(DeviceRow, info.uuid)
            if row is None:
                row = DeviceRow(uuid=info.uuid, first_seen=now, control_state=ControlState.OBSERVED.value)
                session.add(row)
            row.last_seen = now
            for name, value in device_columns(info, capabilities).items():
                setattr(row, name, value)


def _row_of(session: Session, uuid: str) -> DeviceRow:
    row = session.get(DeviceRow, uuid)
    if row is None:
        raise DeviceNotStored(uuid)
    return row
