"""What went wrong, as RFC 9457 problems: one form for routes, middleware and what FastAPI itself refuses.

Knows nothing of what was asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from api.browsers import wants_page
from api.complaints import cut, shown
from api.errors import BAD_INPUT, Refusal
from api.pages.error_page import problem_page
from db.errors import (
    AmbiguousJob,
    AmbiguousSchedule,
    DatabaseBusy,
    DeviceNotStored,
    ImportNotFound,
    JobNotFound,
    KeyNotFound,
    ScheduleChanged,
    ScheduleExists,
    ScheduleNotFound,
    StoreError,
    TooManyImports,
    TooManyWorkloads,
    WorkloadExists,
    WorkloadInUse,
    WorkloadNotFound,
)
from engine.errors import CheckpointError, InvalidSettings, UnknownModel
from probes.errors import UnknownDevice
from tuner.errors import InvalidRequest

Answer = Callable[[Request, Exception], Awaitable[Response]]

PROBLEM_MEDIA = "application/problem+json"
#: Store errors as HTTP; anything else from the store means the service cannot answer now.
_STATUS: dict[type[StoreError], tuple[int, str]] = {
    JobNotFound: (404, "no such job"),
    DeviceNotStored: (404, "no such device"),
    KeyNotFound: (404, "no such key"),
    AmbiguousJob: (409, "ambiguous job id"),
    ScheduleNotFound: (404, "no such schedule"),
    AmbiguousSchedule: (409, "ambiguous schedule id"),
    ScheduleExists: (409, "name in use"),
    ScheduleChanged: (412, "changed meanwhile"),
    WorkloadNotFound: (404, "no such workload"),
    WorkloadExists: (409, "name in use"),
    WorkloadInUse: (409, "workload in use"),
    TooManyWorkloads: (409, "too many workloads"),
    ImportNotFound: (404, "no such import"),
    TooManyImports: (409, "too many imports"),
    DatabaseBusy: (503, "database busy"),
}
#: What other packages refuse of a job, by the field that it is of.
_FIELDS: dict[type[Exception], str] = {
    UnknownDevice: "device",
    UnknownModel: "model",
    CheckpointError: "model",
    InvalidSettings: "knobs",
}
_TITLES = {400: "bad request", 404: "not found", 405: "method not allowed", 413: "body too large"}


def add_problem_handlers(app: FastAPI) -> None:
    """Let an application answer every error with a problem; somebody who looks for a page gets it as a page."""
    for kind in BAD_INPUT:
        app.add_exception_handler(kind, _as_asked(_answer))
    app.add_exception_handler(StoreError, _as_asked(_answer))
    app.add_exception_handler(RequestValidationError, _as_asked(_answer_parameters))
    app.add_exception_handler(HTTPException, _as_asked(_answer_http))
    app.add_exception_handler(Exception, _as_asked(_answer_fault))


def problem_of(error: Exception) -> Response:
    """Return the answer to an error that is expected: a refusal, what the store says, or what a package refuses."""
    if isinstance(error, StoreError):
        found = (_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS)
        status, title = next(found, (503, "store not available"))
        return problem(status, title, str(error))
    if isinstance(error, Refusal):
        return problem(error.status, error.title, str(error), error.headers(), error.members())
    return problem(Refusal.status, Refusal.title, str(error), members=_members_of(error))


def answer_to(request: Request, error: Exception) -> Response:
    """Return what `problem_of` does, as a page for somebody who looks for one."""
    found = problem_of(error)
    return problem_page(request, found) if wants_page(request) else found


def problem(
    status: int,
    title: str,
    words: str,
    headers: Mapping[str, str] | None = None,
    members: Mapping[str, Any] | None = None,
) -> Response:
    """Return an RFC 9457 problem, with members of its own where it has some; a long sentence is cut."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": cut(words), **(members or {})}
    return JSONResponse(body, status_code=status, media_type=PROBLEM_MEDIA, headers=headers)


def _members_of(error: Exception) -> dict[str, Any]:
    """Return which field of a job an error is of, where one can be named: for forms."""
    kinds = (field for kind, field in _FIELDS.items() if isinstance(error, kind))
    field = error.field if isinstance(error, InvalidRequest) else next(kinds, None)
    return {} if field is None else {"errors": [{"field": field, "detail": cut(str(error))}]}


def _as_asked(answer: Answer) -> Answer:
    async def answer_as_asked(request: Request, error: Exception) -> Response:
        found = await answer(request, error)
        return problem_page(request, found) if wants_page(request) else found

    return answer_as_asked


async def _answer(_: Request, error: Exception) -> Response:
    return problem_of(error)


async def _answer_parameters(_: Request, error: Exception) -> Response:
    """Answer a parameter outside its bounds; FastAPI lists all, we tell the first."""
    assert isinstance(error, RequestValidationError)
    return problem(Refusal.status, Refusal.title, _parameter_words(error.errors()[0]))


def _parameter_words(first: Mapping[str, Any]) -> str:
    place, name = (str(part) for part in [*first["loc"], "body"][:2])
    words = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    if first["type"] == "missing":
        return f"{place} parameter {name} is missing; give it"
    return f"{place} parameter {name} is {shown(first['input'])}: {words}"


async def _answer_http(request: Request, error: Exception) -> Response:
    """Answer a path that is not there, and a method that a path does not have."""
    assert isinstance(error, HTTPException)
    status, path = error.status_code, shown(request.url.path)
    headers = dict(error.headers or {})
    words = str(error.detail)
    if status == 404:
        words = f"there is nothing at {path}; /openapi.json lists what there is"
    if status == 405:
        headers["Allow"] = ", ".join(_methods_at(request) or {"GET"})
        words = f"{request.method} is not possible at {path}; use {headers['Allow']}"
    return problem(status, _TITLES.get(status, "not answered"), words, headers)


def _methods_at(request: Request) -> list[str]:
    """Return every method of a path: a router names those of its first route alone."""
    methods: set[str] = set()
    for router in getattr(request.app.state, "routers", ()):
        for route in router.routes:
            if route.path_regex.match(request.scope["path"]):
                methods |= route.methods
    return sorted(methods)


async def _answer_fault(request: Request, _: Exception) -> Response:
    """Answer what nobody expected without a word of it: the log has the traceback, under the request's id."""
    request_id = getattr(request.state, "request_id", "unknown")
    words = f"the service failed at this request; its log tells why, under request id {request_id}"
    return problem(500, "internal error", words, {"X-Request-Id": request_id})
