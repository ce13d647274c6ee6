"""A problem as a page, with the next step to take: for people who follow a link that leads nowhere.

Knows nothing of what was asked for; asks the database nothing, which may be what is wrong.
"""

from __future__ import annotations

import json
from http import HTTPStatus

from fastapi import Request
from fastapi.responses import HTMLResponse, Response

from api.pages.rendering import templates

#: What to do about it, by status.
_STEPS = {
    404: "It may have been deleted, or the address is not complete. The list of jobs has everything that is stored.",
    405: "This address is for programs.",
    409: "Give more of the id, or choose from the list of jobs.",
    429: "Wait a moment, then load the page again.",
    500: "Load the page again; if that does not help, whoever runs the service finds the cause in its log.",
    503: "The database is busy or cannot be reached. Load the page again in a moment.",
}
_OTHER_STEP = "Go back and change what you asked for, or start from the overview."
_RETRIED = (429, 500, 503)
#: Of a problem's own headers: they tell of a body that is not sent.
_BODY_HEADERS = ("content-length", "content-type")


def problem_page(request: Request, problem: Response) -> HTMLResponse:
    """Return a problem (RFC 9457) as a page of the same status, with the same headers."""
    told = json.loads(bytes(problem.body))
    status = problem.status_code
    is_no_page = status == 404 and told["title"] == "not found"
    context = {
        "status": status,
        "title": "There is no such page" if is_no_page else _sentence(told["title"]),
        "detail": f"Nothing is at {request.url.path}." if is_no_page else f"{_sentence(told['detail'])}.",
        "step": _STEPS.get(status, _OTHER_STEP),
        "can_retry": status in _RETRIED,
        "reason": HTTPStatus(status).phrase,
    }
    headers = {name: value for name, value in problem.headers.items() if name not in _BODY_HEADERS}
    return templates.TemplateResponse(request, "error.html", context, status_code=status, headers=headers)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"
