"""`/v1/workloads`: traces and prompt files that callers upload, for jobs to name."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.access import actor_of, needs
from api.bodies import require_own_origin
from api.routes.stores_of import StoresDep
from api.stores import Stores
from api.workload_files import BadRows, Media, TooManyUploads, UnknownMedia, Uploads, WorkloadFile, media_of
from api.workload_schemas import WorkloadOut, WorkloadsOut, workload_out
from db.service import Scope
from db.workloads import Workload

router = APIRouter(prefix="/v1/workloads", tags=["workloads"])

#: Read at a time: so much is held beside the compressed file.
_BLOCK_BYTES = 1_000_000
_TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.99,396,109\n"
_LINES = (
    '{"timestamp": 0, "input_length": 374, "output_length": 44}\n'
    '{"timestamp": 4315, "input_length": 396, "output_length": 109}\n'
)
_EXAMPLES = {Media.CSV: _TRACE, Media.JSON_LINES: _LINES, Media.TEXT: "Why is the sky blue?\nName three rivers.\n"}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {media.value: {"schema": {"type": "string"}, "example": text} for media, text in _EXAMPLES.items()},
    }
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": WorkloadOut, "description": "the same file was there already under this name"},
    409: {"description": "the name stands for another file, or no more files are kept"},
    415: {"description": UnknownMedia.title},
    422: {"description": BadRows.title},
    429: {"description": TooManyUploads.title},
}
_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
Name = Annotated[str, Path(pattern=_PATTERN, description="of the uploaded file")]


@router.post("", status_code=201, openapi_extra=_BODY, responses=_ANSWERS, dependencies=[needs(Scope.TUNE)])
async def upload_workload(
    request: Request,
    response: Response,
    stores: StoresDep,
    name: Annotated[str, Query(pattern=_PATTERN, description="what jobs call it: letters, digits, dots, dashes")],
) -> WorkloadOut:
    """Check a trace or a prompt file row by row and store it; jobs name it as `uploaded:NAME`."""
    require_own_origin(request)
    file = WorkloadFile(media_of(request.headers.get("content-type", "")))
    block = bytearray()
    with cast(Uploads, request.app.state.uploads).one():
        async for chunk in request.stream():
            block += chunk
            if len(block) >= _BLOCK_BYTES:
                await run_in_threadpool(file.feed, bytes(block))
                block.clear()
        workload, is_new = await run_in_threadpool(_store, stores, file, bytes(block), name, actor_of(request))
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/workloads/{workload.name}"
    return workload_out(workload)


@router.get("")
def list_workloads(
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=200, description="files at most")] = 50,
    before: Annotated[str | None, Query(pattern=_PATTERN, description="`next` of the page before")] = None,
) -> WorkloadsOut:
    """List the uploaded files, newest first."""
    found = stores.workloads.list(limit=limit + 1, before=before)
    return WorkloadsOut(
        items=[workload_out(workload) for workload in found[:limit]],
        next=found[limit - 1].name if len(found) > limit else None,
    )


@router.get("/{name}")
def get_workload(name: Name, stores: StoresDep) -> WorkloadOut:
    """Show what an uploaded file is: rows, duration, rates, lengths."""
    return workload_out(stores.workloads.get(name))


@router.delete("/{name}", status_code=204, dependencies=[needs(Scope.TUNE)])
def delete_workload(request: Request, name: Name, stores: StoresDep) -> None:
    """Delete an uploaded file that no schedule and no job that waits or runs needs; what was measured stays."""
    deleted = stores.workloads.delete(name)
    detail = {"sha256": deleted.sha256}
    stores.audit.add(actor=actor_of(request), action="workload.delete", subject=f"workload/{name}", detail=detail)


def _store(stores: Stores, file: WorkloadFile, last: bytes, name: str, actor: str) -> tuple[Workload, bool]:
    """Read the rest of a file and keep it. Raises what is wrong with it."""
    file.feed(last)
    new = file.finish()
    workload, is_new = stores.workloads.add(name, new, created_by=actor)
    if is_new:
        detail = {"form": new.form, "rows": new.num_rows, "bytes": new.num_bytes, "sha256": new.sha256}
        stores.audit.add(actor=actor, action="workload.create", subject=f"workload/{name}", detail=detail)
    return workload, is_new
