"""Devices that were seen, keyed by UUID. Knows nothing of drivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from db.database import Database
from db.records import capabilities_of, device_columns, device_info_of
from db.tables import DeviceRow
from probes.device import Capability, DeviceInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevice:
    """A device as it was when last seen."""

    info: DeviceInfo
    capabilities: tuple[Capability, ...]
    first_seen: datetime
    last_seen: datetime


SeenDevices = list[SeenDevice]


class DeviceStore:
    """The devices of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def seen(self, info: DeviceInfo, capabilities: Sequence[Capability]) -> None:
        """Note that a device is there and what it can do; what was known of it is replaced."""
        try:
            self._store(info, capabilities)
        except IntegrityError:  # on PostgreSQL another worker may insert the device after we looked
            self._store(info, capabilities)

    def list(self) -> SeenDevices:
        """Return every device ever seen, last seen first."""
        with self._database.read() as session:
            rows = session.scalars(select(DeviceRow).order_by(DeviceRow.last_seen.desc(), DeviceRow.uuid))
            return [
                SeenDevice(
                    info=device_info_of(row),
                    capabilities=capabilities_of(row),
                    first_seen=row.first_seen,
                    last_seen=row.last_seen,
                )
                for row in rows
            ]

    def _store(self, info: DeviceInfo, capabilities: Sequence[Capability]) -> None:
        with self._database.transaction() as session:
            now = self._now()
            row = session.get(DeviceRow, info.uuid)
            if row is None:
                row = DeviceRow(uuid=info.uuid, first_seen=now)
                session.add(row)
            row.last_seen = now
            for name, value in device_columns(info, capabilities).items():
                setattr(row, name, value)
