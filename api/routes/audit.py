"""`/v1/audit`: who started, cancelled or changed what. Reading only, for administrators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.access import needs
from api.audit_schemas import AuditOut, entry_out
from api.routes.stores_of import StoresDep
from db.audit import MAX_SUBJECT
from db.service import Scope

router = APIRouter(prefix="/v1/audit", tags=["audit"])

#: The largest number of a row that PostgreSQL can compare with.
_MAX_ID = 2**31 - 1


@router.get("", dependencies=[needs(Scope.ADMIN)])
def list_audit(
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=500, description="entries at most")] = 50,
    before: Annotated[int | None, Query(ge=1, le=_MAX_ID, description="`next` of the page before")] = None,
    subject: Annotated[
        str | None, Query(max_length=MAX_SUBJECT, description="only what was done to this, as in job/4f2a")
    ] = None,
) -> AuditOut:
    """List what was done, newest first."""
    entries = stores.audit.list(limit=limit + 1, before=before, subject=subject)
    return AuditOut(
        items=[entry_out(entry) for entry in entries[:limit]],
        next=entries[limit - 1].id if len(entries) > limit else None,
    )
