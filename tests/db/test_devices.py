"""Devices that were seen."""

from __future__ import annotations

from db.devices import DeviceStore, SeenDevice
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
