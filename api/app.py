"""The HTTP service: a factory. Imports neither torch nor optuna."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.middleware.trustedhost import TrustedHostMiddleware

from api import page
from api.errors import BAD_INPUT
from api.routes import devices, health, jobs
from api.stores import Stores
from api.submit import Refusal, Submissions
from db.errors import AmbiguousJob, DatabaseBusy, DeviceNotStored, JobNotFound, StoreError

#: Names this service answers to: a page elsewhere that resolves to loopback (DNS rebinding) gets 400.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
#: Store errors as HTTP; anything else from the store means the service cannot answer now.
_STATUS: dict[type[StoreError], tuple[int, str]] = {
    JobNotFound: (404, "no such job"),
    DeviceNotStored: (404, "no such device"),
    AmbiguousJob: (409, "ambiguous job id"),
    DatabaseBusy: (503, "database busy"),
}
#: Of a sentence about what somebody sent, which may have sent a megabyte.
_MAX_DETAIL_CHARACTERS = 1_000


def create_app(stores: Stores, *, allowed_hosts: Sequence[str] = LOOPBACK_NAMES) -> FastAPI:
    """Build the application on an opened database."""
    app = FastAPI(
        title="Wattfront",
        description="Pareto fronts of tokens per watt against latency.",
        # Its pages load scripts from elsewhere, which the content policy forbids.
        docs_url=None,
        redoc_url=None,
    )
    app.state.stores = stores
    app.state.submissions = Submissions(stores)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts))
    app.middleware("http")(_add_headers)
    for kind in BAD_INPUT:
        app.add_exception_handler(kind, _input_problem)
    app.add_exception_handler(StoreError, _store_problem)
    app.include_router(jobs.router)
    app.include_router(devices.router)
    app.include_router(health.router)
    app.include_router(page.router)
    app.mount("/static", StaticFiles(packages=[("api", "static")]), name="static")
    return app


async def _add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _store_problem(_: Request, error: Exception) -> Response:
    """Answer what the store says with a problem."""
    status, title = next((_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS), (503, "store not available"))
    return _problem(status, title, error)


async def _input_problem(_: Request, error: Exception) -> Response:
    """Answer what is the asker's to correct with a problem."""
    kind = error if isinstance(error, Refusal) else Refusal
    return _problem(kind.status, kind.title, error)


def _problem(status: int, title: str, error: Exception) -> Response:
    """Return an RFC 9457 problem."""
    words = str(error)
    is_long = len(words) > _MAX_DETAIL_CHARACTERS
    detail = f"{words[: _MAX_DETAIL_CHARACTERS - 3]}..." if is_long else words
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return JSONResponse(body, status_code=status, media_type="application/problem+json")
