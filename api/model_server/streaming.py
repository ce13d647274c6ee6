"""Pieces of an answer as server-sent events, and work that ends with its caller. Knows nothing of what is said."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse

from api.model_server.answering import Answers, Piece
from api.model_server.api_errors import ApiError

_Result = TypeVar("_Result")
#: What makes an answer's chunks of a piece.
ChunksOf = Callable[[Piece], list[dict[str, Any]]]


class CallerLeft(Exception):
    """Nobody is there to be answered."""


async def unless_gone(request: Request, work: Awaitable[_Result]) -> _Result:
    """Return what the work gives; cancel it and raise CallerLeft when the caller hangs up before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise CallerLeft
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await one


async def event_stream(
    request: Request, answers: Answers, chunks_of: ChunksOf, last: Callable[[], list[dict[str, Any]]]
) -> StreamingResponse:
    """Return the stream of all answers; it begins with the first piece, so that what fails before has its status.

    `last` gives the chunks after the end. Raises ApiError, CallerLeft before anything is sent.
    """
    pieces = answers.pieces()
    try:
        first: Piece = await unless_gone(request, anext(pieces))
    except BaseException:
        answers.close()
        raise
    return StreamingResponse(_events(answers, first, pieces, chunks_of, last), media_type="text/event-stream")


async def _events(
    answers: Answers,
    first: Piece,
    pieces: AsyncIterator[Piece],
    chunks_of: ChunksOf,
    last: Callable[[], list[dict[str, Any]]],
) -> AsyncIterator[bytes]:
    try:
        yield b"".join(map(_event, chunks_of(first)))
        async for piece in pieces:
            yield b"".join(map(_event, chunks_of(piece)))
        yield b"".join(map(_event, last())) + b"data: [DONE]\n\n"
    except ApiError as error:  # the status is sent already
        yield _event(error.body())
    finally:
        answers.close()


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
