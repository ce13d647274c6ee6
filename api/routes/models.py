"""`/v1/models`: the models that jobs may name. Reading only."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api import inventory
from api.device_schemas import ModelsOut

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("")
def list_models(request: Request) -> ModelsOut:
    """List the operator's models, then those of the catalogue, which simulated devices take."""
    return inventory.models(request.app.state.operator)
