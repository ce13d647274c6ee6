"""`/v1/jobs/{job_id}/export`: a job's point as another program takes it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from api.export.forms import FORMS
from api.export.point import exported
from api.routes.query_types import JobId
from api.routes.stores_of import StoresDep

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

FormName = Literal["vllm", "sglang", "trtllm", "dynamo", "systemd", "json", "csv", "mlperf"]
_CONTENT: dict[str, dict[str, str]] = {form.media_type.partition(";")[0]: {} for form in FORMS.values()}


@router.get("/{job_id}/export", response_class=Response, responses={200: {"content": _CONTENT}})
def export_point(
    job_id: JobId,
    stores: StoresDep,
    form: Annotated[FormName, Query(description="what it is for")],
    number: Annotated[
        int | None, Query(ge=0, le=2**31 - 1, description="of the point's trial; by default the recommended point")
    ] = None,
) -> Response:
    """Write a job's point as a command, a manifest, a unit or data for another program."""
    made = exported(stores, job_id, form, number=number)
    disposition = f'inline; filename="{made.file_name}"'
    return Response(made.content, media_type=made.media_type, headers={"Content-Disposition": disposition})
