"""`/v1/devices`: the devices that jobs ran on, what they can do, and whether they are set. Reading only."""

from __future__ import annotations

from fastapi import APIRouter

from api import schemas
from api.records import device_out
from api.routes.stores_of import StoresDep

router = APIRouter(prefix="/v1/devices", tags=["devices"])


@router.get("")
def list_devices(stores: StoresDep) -> schemas.DevicesOut:
    """List every device that a job ever ran on, last seen first."""
    return schemas.DevicesOut(items=[device_out(device) for device in stores.devices.list()])


@router.get("/{uuid}")
def get_device(uuid: str, stores: StoresDep) -> schemas.DeviceOut:
    """Show one device by its UUID."""
    return device_out(stores.devices.get(uuid))
