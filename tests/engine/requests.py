"""Requests for tests, and running them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.embedded.loop import EmbeddedEngine
from engine.load import ClosedLoad
from engine.request import Request, RequestRecord


def make_request(prompt: str | Sequence[int] = "hello", **changes: Any) -> Request:
    """Build a greedy request; text is one token per byte, as the tiny model's tokenizer has it."""
    token_ids = tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt)
    fields: dict[str, Any] = {"request_id": "r", "prompt_token_ids": token_ids, "max_tokens": 8, "ignore_eos": True}
    return Request(**fields | changes)


def serve(
    opened: EmbeddedEngine, requests: Sequence[Request], *, concurrency: int | None = None
) -> list[RequestRecord]:
    """Run requests to their end and return their records in the order of the requests."""
    load = ClosedLoad(requests=iter(requests), concurrency=concurrency or len(requests))
    records = {record.request_id: record for record in opened.run(load, lambda progress: True)}
    return [records[request.request_id] for request in requests]


def tokens_of(records: Sequence[RequestRecord]) -> list[tuple[int, ...]]:
    """Return each record's output tokens."""
    return [record.token_ids for record in records]
