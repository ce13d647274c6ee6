"""`/v1/devices`: the devices that jobs ran on and those that jobs may name, and what runs there. Reading only."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api import inventory
from api.device_schemas import DevicesOut, SeenDeviceOut
from api.routes.stores_of import StoresDep
from api.stores import utc_now

router = APIRouter(prefix="/v1/devices", tags=["devices"])


@router.get("")
def list_devices(request: Request, stores: StoresDep) -> DevicesOut:
    """List every device that a job ever ran on, last seen first, and every one that a job may name."""
    return inventory.devices(stores, request.app.state.operator, utc_now())


@router.get("/{uuid}")
def get_device(uuid: str, stores: StoresDep) -> SeenDeviceOut:
    """Show one device by its UUID."""
    return inventory.device(stores, uuid, utc_now())
