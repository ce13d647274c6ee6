"""`/v1/imports`: results of other benchmark tools, kept beside what was measured here and never mixed with it."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.access import actor_of, needs
from api.bodies import read_body, require_own_origin
from api.complaints import shown
from api.import_schemas import ImportDetailOut, ImportsOut, import_detail_out, import_out
from api.routes.query_types import Word
from api.routes.stores_of import StoresDep
from api.stores import Stores
from api.workload_files import TooManyUploads, UnknownMedia, Uploads
from db.imports import MAX_ID
from db.service import Scope
from tuner.foreign.fields import printable
from tuner.foreign_results import read_results

router = APIRouter(prefix="/v1/imports", tags=["imports"])

#: Of a posted file: read as a whole, it takes some twenty times its size in memory for a moment.
MAX_BYTES = 20_000_000
_MEDIA = ("application/json", "application/x-ndjson", "text/plain")
_RESULT = (
    '{"date": "20260911-021503", "backend": "openai", "model_id": "tiny/llama", "num_prompts": 2, "request_rate": 4.0, '
    '"duration": 2.5, "completed": 2, "failed": 0, "total_output_tokens": 31, "output_throughput": 12.4, '
    '"mean_ttft_ms": 110.0, "median_ttft_ms": 110.0, "p99_ttft_ms": 119.8}\n'
)
_SUMMARY = (
    "MLPerf Results Summary\nSUT name : PySUT\nScenario : Server\nMode : PerformanceOnly\n"
    "Completed tokens per second: 3310.75\nResult is : VALID\n99.00 percentile first token latency (ns) : 612345678\n"
)
_EXAMPLES = {"application/json": _RESULT, "application/x-ndjson": _RESULT, "text/plain": _SUMMARY}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {media: {"schema": {"type": "string"}, "example": text} for media, text in _EXAMPLES.items()},
    }
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": ImportDetailOut, "description": "the same file was imported before"},
    409: {"description": "no more files are kept"},
    415: {"description": UnknownMedia.title},
    429: {"description": TooManyUploads.title},
}
ImportId = Annotated[int, Path(ge=1, le=MAX_ID, description="of the imported file")]


@router.post("", status_code=201, openapi_extra=_BODY, responses=_ANSWERS, dependencies=[needs(Scope.TUNE)])
async def create_import(
    request: Request,
    response: Response,
    stores: StoresDep,
    name: Annotated[Word, Query(description="what the file is called, as benchmarks.json")],
) -> ImportDetailOut:
    """Read a result file of another tool and keep its results; its format is recognised."""
    require_own_origin(request)
    _require_media(request.headers.get("content-type", ""))
    with cast(Uploads, request.app.state.uploads).one():
        content = await read_body(request, MAX_BYTES)
        found, is_new = await run_in_threadpool(_store, stores, content, name, actor_of(request))
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/imports/{found.id}"
    return found


@router.get("")
def list_imports(
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=200, description="files at most")] = 50,
    before: Annotated[int | None, Query(ge=1, le=MAX_ID, description="`next` of the page before")] = None,
) -> ImportsOut:
    """List the imported files, newest first."""
    found = stores.imports.list(limit=limit + 1, before=before)
    return ImportsOut(
        items=[import_out(one) for one in found[:limit]], next=found[limit - 1].id if len(found) > limit else None
    )


@router.get("/{import_id}")
def get_import(import_id: ImportId, stores: StoresDep) -> ImportDetailOut:
    """Show the results of an imported file, in its order."""
    return import_detail_out(stores.imports.get(import_id), stores.imports.results(import_id))


@router.delete("/{import_id}", status_code=204, dependencies=[needs(Scope.TUNE)])
def delete_import(request: Request, import_id: ImportId, stores: StoresDep) -> None:
    """Delete an imported file with its results."""
    deleted = stores.imports.delete(import_id)
    detail = {"name": deleted.name, "sha256": deleted.sha256}
    stores.audit.add(actor=actor_of(request), action="import.delete", subject=f"import/{import_id}", detail=detail)


def _require_media(content_type: str) -> None:
    """Refuse what does not say that it is one of the forms that results come in. Raises UnknownMedia."""
    if content_type.partition(";")[0].strip().lower() not in _MEDIA:
        remedy = "say application/json, application/x-ndjson for JSON lines, text/plain for LoadGen's summary"
        raise UnknownMedia(f"Content-Type is {shown(content_type)}: {remedy}")


def _store(stores: Stores, content: bytes, name: str, actor: str) -> tuple[ImportDetailOut, bool]:
    """Read a file and keep its results. Raises what is wrong with it."""
    name = printable(name) or "unnamed"
    results = read_results(content, name=name)
    imported, is_new = stores.imports.add(name, results, num_bytes=len(content), created_by=actor)
    if is_new:
        detail = {"name": name, "tool": imported.tool.value, "results": len(results), "sha256": imported.sha256}
        stores.audit.add(actor=actor, action="import.create", subject=f"import/{imported.id}", detail=detail)
    return import_detail_out(imported, results), is_new
