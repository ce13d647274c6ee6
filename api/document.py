"""The OpenAPI document: what FastAPI finds in the routes, and what holds for all of them: keys and problems.

Knows the form of problems, and of no route but by its method and path.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.errors import (
    BodyTooLarge,
    ForeignOrigin,
    HeadersTooLarge,
    KeyNeeded,
    NotJson,
    NotJsonMedia,
    QueryTooLong,
    Refusal,
    TooManyRequests,
)
from api.limits import HEALTH_PATHS, SAFE_METHODS
from api.problems import PROBLEM_MEDIA

#: What any request may be answered with, and what one that changes something may be besides.
_ANY: tuple[type[Refusal], ...] = (NotJson, KeyNeeded, QueryTooLong, Refusal, TooManyRequests, HeadersTooLarge)
_WRITES: tuple[type[Refusal], ...] = (ForeignOrigin, BodyTooLarge, NotJsonMedia)
_TITLES = {
    **{kind.status: kind.title for kind in (*_ANY, *_WRITES)},
    400: "the request cannot be read, or names a host that is not ours",
    403: "the key's scope is too small, or a page of another site posted",
    404: "no such thing, by the id or name that was given",
    409: "in conflict with what is there, or the id fits more than one",
    429: "too many requests or open jobs",
    503: "the database does not answer now",
}
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457: what went wrong; the detail names field, value and remedy.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "const": "about:blank"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "which fields of the body are wrong, each with its sentence, where that is known",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}
#: What no path and no query may hold; see `api.limits`.
_NO_CONTROLS = "^[^\\u0000-\\u001f\\u007f]*$"
#: What fields that are stored say of themselves; paths and queries keep to more.
_NO_NUL = r"^[^\x00]+$"
#: One event of a stream, as clients take it apart.
_EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "id": {"type": "string", "description": "send it as Last-Event-ID to go on after this one"},
        "event": {"type": "string"},
        "data": {"type": "string", "description": "JSON"},
        "retry": {"type": "integer"},
    },
}
_EXAMPLES = {
    400: "Host is 'evil.example': this service answers to localhost; ask for one of them",
    401: "no key was sent; send `Authorization: Bearer KEY`",
    404: "there is no job '0000'; give an id from the list of jobs, or its first 4 characters",
    422: "query parameter limit is '0': input should be greater than or equal to 1",
}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application, made once."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _complete(schema)
        app.openapi_schema = schema
    return app.openapi_schema


def _complete(schema: dict[str, Any]) -> None:
    """Add what holds for every operation; FastAPI's own form of a refused parameter is not ours."""
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    components["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "A key of `wattfront keys create`; on loopback none is needed until the first is made.",
        }
    }
    _add_links(schema["paths"])
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            operation["security"] = [] if path in HEALTH_PATHS else [{"key": []}]
            _add_bounds(operation)
            _add_problems(operation, path, method)
            _describe_streams(operation)


def _add_links(paths: dict[str, Any]) -> None:
    """Say what can be asked of a thing that was just made: every path below its collection's takes its id or name."""
    for path, methods in paths.items():
        made = methods.get("post", {}).get("responses", {}).get("201")
        below = [inner for inner in paths if inner.startswith(f"{path}/{{")]
        if made is None or not below:
            continue
        links = made.setdefault("links", {})
        for inner in below:
            name = inner.removeprefix(f"{path}/{{").partition("}")[0]
            field = "id" if name.endswith("_id") else name
            for operation in paths[inner].values():
                links[operation["operationId"]] = {
                    "operationId": operation["operationId"],
                    "parameters": {name: f"$response.body#/{field}"},
                }


def _add_bounds(operation: dict[str, Any]) -> None:
    """Say what holds for parameters of every route: no control characters, and a header whose lack is refused."""
    is_version_needed = "428" in operation["responses"]
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "header":
            parameter["required"] = parameter["required"] or (is_version_needed and parameter["name"] == "if-match")
            continue
        for schema in [parameter["schema"], *parameter["schema"].get("anyOf", [])]:
            is_free = schema.get("type") == "string" and not {"enum", "format", "const"} & schema.keys()
            if is_free and schema.get("pattern", _NO_NUL) == _NO_NUL:
                schema["pattern"] = _NO_CONTROLS


def _describe_streams(operation: dict[str, Any]) -> None:
    """Describe events one by one: FastAPI knows a stream as text."""
    for answer in operation["responses"].values():
        if "text/event-stream" in answer.get("content", {}):
            answer["content"]["text/event-stream"] = {"schema": _EVENT}


def _add_problems(operation: dict[str, Any], path: str, method: str) -> None:
    kinds = _ANY if method.upper() in SAFE_METHODS else (*_ANY, *_WRITES)
    statuses = {kind.status for kind in kinds} | {403, 503}
    if "{" in path or any(parameter["in"] == "query" for parameter in operation.get("parameters", [])):
        statuses |= {404, 409}
    answers = operation["responses"]
    told = {int(status) for status in answers if status.isdecimal() and int(status) >= 400}
    for status in sorted(statuses | told):
        words = answers.get(str(status), {}).get("description")
        is_ours = words is not None and status != 422
        answers[str(status)] = _problem_answer(status, words if is_ours else _TITLES[status])
    operation["responses"] = dict(sorted(answers.items()))


def _problem_answer(status: int, words: str) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/Problem"}}
    if status in _EXAMPLES:
        title = {400: "unknown host", 404: "no such job"}.get(status, _TITLES[status])
        content["example"] = {
            "type": "about:blank",
            "title": title,
            "status": status,
            "detail": _EXAMPLES[status],
        }
    return {"description": words, "content": {PROBLEM_MEDIA: content}}
