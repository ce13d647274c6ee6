"""Bodies of posts: read in bounds, and only as JSON that is what it seems to be.

Knows nothing of what a body asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, HTTPConnection

from api.complaints import shown
from api.errors import BodyTooLarge, ForeignOrigin, NotJson, NotJsonMedia, Refusal

JSON_MEDIA = "application/json"
#: Of a posted job; a route that takes files has its own bound.
MAX_BODY_BYTES = 1_000_000
#: Of a whole number: more do not fit into 64 bits, and no field has a use for them.
_MAX_DIGITS = 18
#: Unicode's categories Cc and Cs. Looked for by the megabyte while every other request waits.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


async def read_json(request: Request, max_bytes: int = MAX_BODY_BYTES) -> Any:
    """Return what the body of a post says in JSON: plain data without NaN, repeated fields or control characters.

    Raises ForeignOrigin and NotJsonMedia, so that no page of another site can post here, not even by a plain form;
    BodyTooLarge, NotJson; Refusal for what is JSON but ambiguous or not storable.
    """
    require_own_origin(request)
    media = request.headers.get("content-type", "")
    if media.partition(";")[0].strip().lower() != JSON_MEDIA:
        raise NotJsonMedia(f"Content-Type is {media!r}: the body must be {JSON_MEDIA}; say so in the header")
    return await run_in_threadpool(parse_json, await read_body(request, max_bytes))


def require_own_origin(request: HTTPConnection) -> None:
    """Refuse what a page of another site sends: browsers name the page's origin. Raises ForeignOrigin."""
    origin, host = request.headers.get("origin"), request.headers.get("host")
    remedy = "pages of other sites may not post here; use a program, as curl"
    if origin is not None and origin.partition("://")[2] != host:
        raise ForeignOrigin(f"Origin is {shown(origin)}: {remedy}")
    if request.headers.get("sec-fetch-site") == "cross-site":
        raise ForeignOrigin(f"Sec-Fetch-Site is 'cross-site': {remedy}")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return a body, read no further than it may be long. Raises BodyTooLarge, NotJson for half a body."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise BodyTooLarge(f"the body is larger than {max_bytes} bytes; send less")
    except ClientDisconnect as error:  # as a page does that asks anew while somebody types: nothing is wrong here
        raise NotJson("the connection ended before the body did; send it again") from error
    return bytes(body)


def parse_json(body: bytes) -> Any:
    """Return what a body says in JSON. Raises NotJson or Refusal, naming what to correct."""
    try:
        data = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unrepeated, parse_int=_whole, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise NotJson(f"the body is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise NotJson(f"the body is not JSON: {error.msg}, line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise NotJson("the body is nested too deeply; no field is deeper than four levels") from error
    for text in _texts(data):
        if _UNPRINTABLE.search(text) is not None:
            raise Refusal(f"{shown(text)} holds a control character or half of a surrogate pair; remove it")
    return data


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise Refusal(f"{shown(name)} is given twice; keep one")
        fields[name] = value
    return fields


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _MAX_DIGITS:
        raise Refusal(f"{digits[:_MAX_DIGITS]}... has more than {_MAX_DIGITS} digits; give a smaller number")
    return int(digits)


def _refuse_constant(name: str) -> None:
    raise NotJson(f"{name} is not JSON; give a number")


def _texts(value: object) -> Iterator[str]:
    """Yield every text in plain data of any depth, names of fields included."""
    left = [value]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case dict() as fields:
                left += [*fields.keys(), *fields.values()]
            case list() as items:
                left += items
