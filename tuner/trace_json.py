"""Traces as JSON lines, Mooncake's.

They have `timestamp` in ms, `input_length`, `output_length`, and `hash_ids` where prompts share blocks of 512 tokens;
with `session_id` and `delay` they are conversations of several turns, as AIPerf has them.

Knows nothing of files, nor of prompts' text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tuner.sessions import Sessions
from tuner.traces import BLOCK_TOKENS, RowFault, Trace, TraceBuilder, require_tokens, wrong

MOONCAKE = "mooncake"
MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")
_MAX_MS = 1e15

Parsed = TypeVar("Parsed")


class MooncakeReader:
    """Reads the lines of one trace."""

    form = MOONCAKE

    def __init__(self) -> None:
        self._builder = TraceBuilder(MOONCAKE)
        self._sessions = Sessions(self._builder)

    @property
    def num_rows(self) -> int:
        """See RowReader."""
        return self._builder.num_rows

    def take(self, line: str) -> None:
        """See RowReader."""
        row = object_in(line)
        session = session_of(row)
        needed = MOONCAKE_FIELDS if session is None and self._builder.is_timed else MOONCAKE_FIELDS[1:]
        if self.num_rows == 0 and session is None:
            needed = MOONCAKE_FIELDS
        require_fields(row, needed)
        due_s = self._sessions.due_s(milliseconds_of(row, "timestamp"), milliseconds_of(row, "delay"), session)
        prompt, output = (read(row, name, count, "a whole number") for name in MOONCAKE_FIELDS[1:])
        ids = _block_ids(row)
        if session is not None and not ids:
            require_tokens("input_length", "prompt", prompt)
            prompt, ids = self._sessions.turn_tokens(session, prompt)
        require_tokens("input_length", "prompt", prompt)
        require_tokens("output_length", "output", output)
        if ids and len(ids) * BLOCK_TOKENS < prompt:
            self._builder.note("rows have fewer hash_ids than their prompt has blocks; the rest is shared with nobody")
        self._sessions.said(session, due_s, prompt, output)
        self._builder.add(due_s, prompt, output, block_ids=ids[: -(-prompt // BLOCK_TOKENS)])

    def finish(self, sha256: str) -> Trace:
        """See RowReader."""
        return self._builder.finish(sha256)


def object_in(line: str) -> Mapping[str, Any]:
    """Return the JSON object of a line; whatever else it is has no fields. Raises RowFault for what is no JSON."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        words = f"it is no JSON ({error}); correct or remove the line"
        raise RowFault("", line, "a JSON object", words) from error
    return found if isinstance(found, dict) else {}


def require_fields(row: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Refuse a row that lacks fields. Raises RowFault."""
    missing = [name for name in names if row.get(name) is None]
    if missing:
        words = f"it lacks {', '.join(missing)}; correct or remove the line"
        raise RowFault(missing[0], None, f"an object with {', '.join(names)}", words)


def read(row: Mapping[str, Any], name: str, convert: Callable[[Any], Parsed], expected: str) -> Parsed:
    """Return a field that is there. Raises RowFault for one that cannot be read."""
    try:
        return convert(row[name])
    except (ValueError, TypeError, OverflowError) as error:
        raise wrong(name, row[name], expected) from error


def milliseconds_of(row: Mapping[str, Any], name: str) -> float | None:
    """Return a field in milliseconds; None where it is not there. Raises RowFault."""
    return None if row.get(name) is None else read(row, name, _milliseconds, "a number of milliseconds")


def session_of(row: Mapping[str, Any]) -> str | None:
    """Return the name of a row's conversation; None where it is one of its own."""
    found = row.get("session_id")
    return None if found is None else str(found)


def count(value: Any) -> int:
    """Return a whole number as it is. Raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(value)
    return value


def _milliseconds(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not abs(number) < _MAX_MS:  # NaN, too
        raise ValueError(value)
    return number


def _block_ids(row: Mapping[str, Any]) -> list[int]:
    if row.get("hash_ids") is None:
        return []
    return read(row, "hash_ids", _ids, "a list of whole numbers from 0 to 2**63 - 1")


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError(value)
    ids = [count(one) for one in value]
    if any(not 0 <= one < 2**63 for one in ids):
        raise ValueError(value)
    return ids
