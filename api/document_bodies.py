"""How a body that is read by hand, in bounds, looks in the OpenAPI document. Knows no route."""

from __future__ import annotations

from typing import Any

from api.bodies import JSON_MEDIA


def body_of(schema: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """Return what a route adds to the document for its body, from pydantic's schema of it."""
    media = {"schema": _inlined(schema, schema["$defs"]), "example": example}
    return {"requestBody": {"required": True, "content": {JSON_MEDIA: media}}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with its blocks in their places: in the document, references would lead elsewhere."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {name: _inlined(inner, definitions) for name, inner in node.items() if name != "$defs"}
    return [_inlined(inner, definitions) for inner in node] if isinstance(node, list) else node
