"""Devices that were seen."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from db.database import Database
from db.device import ControlState, SeenDevice
from db.devices import DeviceStore
from db.errors import DeviceNotStored
from db.tables import DeviceRow
from tests.db.factories import START, Clock, make_capability, make_device


def test_a_device_is_stored_once(devices: DeviceStore, clock: Clock) -> None:
    """A device seen again is the same row with what it says now, first seen when it was."""
    devices.seen(make_device(), [make_capability()])
    clock.advance(60)
    lost = make_capability(is_available=False, reason="not permitted")
    devices.seen(make_device(driver="590.1"), [lost])
    seen = SeenDevice(info=make_device(driver="590.1"), capabilities=(lost,), first_seen=START, last_seen=clock.now())
    assert [seen] == devices.list()


def test_devices_are_listed_last_seen_first(devices: DeviceStore, clock: Clock) -> None:
    """The device seen last comes first."""
    for uuid in ("GPU-1", "GPU-2", "GPU-3"):
        devices.seen(make_device(uuid=uuid), [])
        clock.advance(1)
    assert [device.info.uuid for device in devices.list()] == ["GPU-3", "GPU-2", "GPU-1"]


def test_a_device_is_observed_until_somebody_sets_it(devices: DeviceStore) -> None:
    """A device that was only seen is observed, and there is nothing more to say."""
    devices.seen(make_device(), [])
    assert (devices.get("GPU-1").control_state, devices.get("GPU-1").control_detail) == (ControlState.OBSERVED, None)


@pytest.mark.parametrize("state", ControlState)
def test_who_sets_a_device_outlives_its_being_seen(devices: DeviceStore, clock: Clock, state: ControlState) -> None:
    """State and detail are kept as they were told, also when the device is seen again, and by no other device."""
    devices.seen(make_device(), [])
    devices.seen(make_device(uuid="GPU-2"), [])
    devices.set_control("GPU-1", state, "power limit: not permitted")
    clock.advance(60)
    devices.seen(make_device(driver="590.1"), [make_capability()])
    found = devices.get("GPU-1")
    assert (found.control_state, found.control_detail) == (state, "power limit: not permitted")
    assert (found.info.driver, found.last_seen) == ("590.1", clock.now())
    assert devices.get("GPU-2").control_state is ControlState.OBSERVED


def test_a_restored_device_is_observed_again(devices: DeviceStore) -> None:
    """A later state replaces the earlier one, detail included."""
    devices.seen(make_device(), [])
    devices.set_control("GPU-1", "restore_failed", "the GPU has fallen off the bus")
    devices.set_control("GPU-1", "observed", None)
    assert (devices.get("GPU-1").control_state, devices.get("GPU-1").control_detail) == (ControlState.OBSERVED, None)


def test_a_device_never_seen_has_no_control(devices: DeviceStore) -> None:
    """Neither asking for a device that was never seen nor telling who sets it makes one."""
    with pytest.raises(DeviceNotStored, match="GPU-9"):
        devices.set_control("GPU-9", ControlState.CONTROLLED, None)
    with pytest.raises(DeviceNotStored, match="GPU-9"):
        devices.get("GPU-9")
    assert devices.list() == []


def test_an_unknown_state_is_refused(database: Database, devices: DeviceStore) -> None:
    """A state that no code knows is refused before it is stored, and by the database itself."""
    devices.seen(make_device(), [])
    with pytest.raises(ValueError, match="asleep"):
        devices.set_control("GPU-1", "asleep", None)
    with pytest.raises(IntegrityError, match="ck_devices_control_state"), database.transaction() as session:
        session.scalars(select(DeviceRow)).one().control_state = "asleep"
