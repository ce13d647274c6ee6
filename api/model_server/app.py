"""The endpoint's routes and what goes around each: size, key, errors in OpenAI's shape."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from api.model_server.api_errors import (
    ApiError,
    BodyTooLarge,
    EngineFailed,
    KeyRefused,
    MethodNotAllowed,
    NothingThere,
    Overloaded,
)
from api.model_server.chat import chat
from api.model_server.completions import complete
from api.model_server.served_model import ServedModel
from api.model_server.streaming import CallerLeft
from api.model_server.tokens import detokenize, tokenize

#: A prompt of a million tokens as text takes about a third of it.
MAX_BODY_BYTES = 16 * 2**20
#: Seconds after which a caller may try again who was turned away.
_RETRY_AFTER_S = 1
_CLIENT_CLOSED_REQUEST = 499  # nginx's status for the log; nobody reads the answer
Handler = Callable[[Request, bytes], Awaitable[Response]]


def create_app(model: ServedModel, *, api_key: str | None = None, on_start: Callable[[], None]) -> Starlette:
    """Build the application; `on_start` is called in its event loop. With a key every path but /health needs it."""
    app = Starlette(
        routes=[
            Route("/v1/completions", _posted(complete, api_key), methods=["POST"]),
            Route("/v1/chat/completions", _posted(chat, api_key), methods=["POST"]),
            Route("/tokenize", _posted(tokenize, api_key), methods=["POST"]),
            Route("/detokenize", _posted(detokenize, api_key), methods=["POST"]),
            Route("/v1/models", _keyed(_models, api_key)),
            Route("/metrics", _keyed(_metrics, api_key)),
            Route("/version", _keyed(_version, api_key)),
            Route("/health", _health),
        ],
        exception_handlers={ApiError: _answer, CallerLeft: _no_answer, HTTPException: _answer_http, Exception: _fault},
        lifespan=_lifespan(on_start),
    )
    app.state.model = model
    return app


def _lifespan(on_start: Callable[[], None]) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        on_start()
        yield

    return lifespan


def _posted(handle: Handler, api_key: str | None) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        _require_key(request, api_key)
        return await handle(request, await _body(request))

    return answer


def _keyed(
    handle: Callable[[Request], Awaitable[Response]], api_key: str | None
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        _require_key(request, api_key)
        return await handle(request)

    return answer


def _require_key(request: Request, api_key: str | None) -> None:
    given = request.headers.get("authorization", "")
    if api_key is not None and not hmac.compare_digest(given.encode(), f"Bearer {api_key}".encode()):
        raise KeyRefused("this server needs `Authorization: Bearer KEY` with its key", code="invalid_api_key")


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body has more than {MAX_BODY_BYTES} bytes; send less")
    return bytes(body)


async def _models(request: Request) -> Response:
    model: ServedModel = request.app.state.model
    about = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "wattfront",
        "root": model.info.model,
        "parent": None,
        "max_model_len": model.info.max_context,
    }
    return JSONResponse({"object": "list", "data": [about]})


async def _health(request: Request) -> Response:
    """Answer 200 while the engine runs."""
    model: ServedModel = request.app.state.model
    if model.thread.death is not None:
        raise Overloaded(f"the engine has ended: {model.thread.death}", code="engine_died")
    return Response(status_code=200)


async def _metrics(request: Request) -> Response:
    model: ServedModel = request.app.state.model
    return Response(model.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _version(_: Request) -> Response:
    return JSONResponse({"version": version("wattfront")})


async def _answer(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = {"Retry-After": str(_RETRY_AFTER_S)} if error.status == 503 else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


async def _no_answer(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        return await _answer(request, NothingThere(f"there is nothing at {path}; see docs/serve_model.md"))
    allowed = (error.headers or {}).get("Allow", "another one")
    return await _answer(request, MethodNotAllowed(f"{request.method} is not possible at {path}; use {allowed}"))


async def _fault(request: Request, error: Exception) -> Response:
    """Answer what nobody expected; the log has the traceback."""
    return await _answer(request, EngineFailed("the server failed at this request; its log tells why"))
