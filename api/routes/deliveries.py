"""`/v1/deliveries`: what was told to whom, and what did not arrive. Reading only, for administrators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.access import needs
from api.delivery_schemas import DeliveriesOut, delivery_out
from api.routes.stores_of import StoresDep
from db.service import DeliveryState, Scope

router = APIRouter(prefix="/v1/deliveries", tags=["deliveries"])

#: The largest number of a row.
_MAX_ID = 2**31 - 1


@router.get("", dependencies=[needs(Scope.ADMIN)])
def list_deliveries(
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=500, description="notifications at most")] = 50,
    before: Annotated[int | None, Query(ge=1, le=_MAX_ID, description="`next` of the page before")] = None,
    state: Annotated[DeliveryState | None, Query(description="only those of this state")] = None,
) -> DeliveriesOut:
    """List notifications, newest first."""
    found = stores.deliveries.list(limit=limit + 1, before=before, state=state)
    return DeliveriesOut(
        items=[delivery_out(delivery) for delivery in found[:limit]],
        next=found[limit - 1].id if len(found) > limit else None,
    )
