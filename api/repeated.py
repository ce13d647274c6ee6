"""Query parameters that are given more than once to a route that takes one value.

Only the last would count, and nobody would be told that the others did not. Names that a route does not know are not
looked at. Knows nothing of what values mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from api.errors import Refusal


async def require_once(request: Request) -> None:
    """Let a request through whose parameters of one value have one. Raises Refusal naming the first that has more."""
    given = request.query_params.multi_items()
    route = request.scope.get("route")
    if len(given) == len(request.query_params) or not isinstance(route, APIRoute):
        return
    single = frozenset(_single(route.dependant))
    for name, count in Counter(name for name, _ in given).items():
        if count > 1 and name in single:
            raise Refusal(f"query parameter {name} is given {count} times; give it once")


def _single(dependant: Dependant) -> Iterator[str]:
    """Yield the names of a route's parameters that take one value, those of its dependencies included."""
    for field in dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (one.alias or name for name, one in kind.model_fields.items() if not _is_list(one.annotation))
        elif not _is_list(kind):
            yield field.alias
    for inner in dependant.dependencies:
        yield from _single(inner)


def _is_list(kind: object) -> bool:
    return get_origin(kind) is list
