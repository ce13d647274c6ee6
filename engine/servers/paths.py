"""Where a server answers what beside requests. Free of any HTTP library: an export needs none."""

from __future__ import annotations

from dataclasses import dataclass

from engine.servers.dialect import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize:
    """How a server is asked for the tokens of a text; the answer has them as `tokens`."""

    path: str
    #: The field that takes the text.
    field: str
    more: tuple[tuple[str, JSON], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where a server of one kind answers what; None where it does not."""

    health: str | None = "/health"
    models: str = "/v1/models"
    metrics: str | None = "/metrics"
    #: Path, and the field of the answer that has the version.
    version: tuple[str, str] | None = None
    #: Takes a POST that empties the prefix cache.
    reset: str | None = None
    tokenize: Tokenize | None = None
