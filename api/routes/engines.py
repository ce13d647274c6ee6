"""`/v1/engines`: the engines that workers can start, and their knobs. Reading only."""

from __future__ import annotations

from fastapi import APIRouter

from api import inventory
from api.device_schemas import EnginesOut
from api.routes.stores_of import StoresDep
from api.stores import utc_now

router = APIRouter(prefix="/v1/engines", tags=["engines"])


@router.get("")
def list_engines(stores: StoresDep) -> EnginesOut:
    """List the engines of this version, the live workers that can start each, and the knobs that it takes."""
    return inventory.engines(stores, utc_now())
