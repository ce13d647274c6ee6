"""Tells a browser that asks for a page from a program. Knows nothing of what is answered."""

from __future__ import annotations

from starlette.requests import HTTPConnection

#: For programs: they get a problem where a browser gets a page.
_PROGRAM_PATHS = ("/v1/", "/openapi.json", "/metrics")


def wants_page(asked: HTTPConnection) -> bool:
    """Tell whether somebody looks at the answer: a browser says that it takes HTML, programs take anything."""
    is_for_programs = asked.url.path.startswith(_PROGRAM_PATHS)
    is_read = asked.scope["method"] in ("GET", "HEAD")
    return is_read and not is_for_programs and "text/html" in asked.headers.get("accept", "")
