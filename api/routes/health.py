"""`/healthz`: the process answers. `/readyz`: the database does too."""

from __future__ import annotations

from fastapi import APIRouter

from api.routes.stores_of import StoresDep
from db import migrate

router = APIRouter(tags=["health"])


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Answer as long as the process lives."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(stores: StoresDep) -> dict[str, str]:
    """Answer when the database is there and of this version."""
    migrate.require_current(stores.database)
    return {"status": "ok"}
