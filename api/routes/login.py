"""`/login`: the form where a browser's user gives a key, which a cookie then carries; `/logout` takes it away.

The cookie holds the key itself, out of reach of scripts and never sent by pages of other sites; so every server on the
database knows it, and a key that is revoked ends its sessions. Nothing of a session is stored here.
"""

from __future__ import annotations

import re
from typing import Annotated, cast
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from api.access import COOKIE, LOGIN_PATH, KeyRing
from api.bodies import read_body
from api.errors import NotFormMedia, Refusal
from api.pages.rendering import templates

router = APIRouter(include_in_schema=False)

FORM_MEDIA = "application/x-www-form-urlencoded"
_MAX_FORM_BYTES = 4_000
_MAX_FIELDS = 10
#: A path of this service, with a query: a second slash or a backslash would lead to another host.
_OWN_PATH = re.compile(r"/(?![/\\])[\w./~%-]*(\?[\w=&%.~:+-]*)?", re.ASCII)


@router.get(LOGIN_PATH, response_class=HTMLResponse)
async def login_form(request: Request, goal: Annotated[str, Query(alias="next", max_length=500)] = "/") -> Response:
    """Show the form; whoever is logged in goes on."""
    if await _ring(request).find(request.cookies.get(COOKIE, "")) is not None:
        return RedirectResponse(_own(goal), status_code=303)
    return _form(request, goal, status=200)


@router.post(LOGIN_PATH, response_class=HTMLResponse)
async def login(request: Request) -> Response:
    """Take a key and go on to the page that was asked for. Raises NotFormMedia, BodyTooLarge, Refusal."""
    media = request.headers.get("content-type", "")
    if media.partition(";")[0].strip().lower() != FORM_MEDIA:
        raise NotFormMedia(f"Content-Type is {media!r}: the form is sent as {FORM_MEDIA}; say so in the header")
    body = (await read_body(request, _MAX_FORM_BYTES)).decode("utf-8", errors="replace")
    fields = _fields(body)
    key, goal = fields.get("key", [""])[0].strip(), fields.get("next", ["/"])[0]
    if await _ring(request).find(key) is None:
        return _form(request, goal, status=401)
    answer = RedirectResponse(_own(goal), status_code=303)
    answer.set_cookie(COOKIE, key, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer


@router.post("/logout")
async def logout() -> Response:
    """Forget the key that the browser has."""
    answer = RedirectResponse(LOGIN_PATH, status_code=303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _fields(body: str) -> dict[str, list[str]]:
    try:
        return parse_qs(body, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise Refusal(f"the form has more than {_MAX_FIELDS} fields; send key and next") from error


def _form(request: Request, goal: str, *, status: int) -> HTMLResponse:
    context = {"goal": _own(goal), "is_refused": status != 200}
    return templates.TemplateResponse(request, "login.html", context, status_code=status)


def _own(goal: str) -> str:
    """Return a path of ours to go on to: nobody is sent elsewhere by a link to this form."""
    return goal if _OWN_PATH.fullmatch(goal) else "/"


def _ring(request: Request) -> KeyRing:
    return cast(KeyRing, request.app.state.ring)
