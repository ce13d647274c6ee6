"""The engine's records as JSON lines between a host and its child process. Nothing is pickled.

Floats survive exactly: Python writes the shortest text that reads back as the same number.
"""

from __future__ import annotations

import dataclasses
import json
from typing import IO, Any

from engine.load import LoadReport, Progress
from engine.request import FinishReason, Request, RequestRecord
from engine.serving import TokenScores
from engine.settings import EngineInfo, EngineSettings

Message = dict[str, Any]


def write(stream: IO[str], message: Message) -> None:
    """Send one message; a record inside it becomes an object of its fields."""
    stream.write(json.dumps(message, default=fields_of, separators=(",", ":")) + "\n")
    stream.flush()


def read(line: str) -> Message:
    """Parse one line."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"not a message: {line[:80]!r}")
    return message


def request_from(fields: Message) -> Request:
    """Rebuild a Request."""
    return Request(**fields | {"prompt_token_ids": tuple(fields["prompt_token_ids"]), "stop": tuple(fields["stop"])})


def timed_from(fields: Message) -> tuple[float, Request]:
    """Rebuild a request and when it is due."""
    return fields["due_s"], request_from(fields["request"])


def record_from(fields: Message) -> RequestRecord:
    """Rebuild a RequestRecord."""
    chunk_times_s = fields["chunk_times_s"]
    return RequestRecord(
        **fields
        | {
            "token_ids": tuple(fields["token_ids"]),
            "token_times_s": tuple(fields["token_times_s"]),
            "chunk_times_s": None if chunk_times_s is None else tuple(chunk_times_s),
            "notes": tuple(fields["notes"]),
            "finish_reason": FinishReason(fields["finish_reason"]),
        }
    )


def progress_from(fields: Message) -> Progress:
    """Rebuild a Progress."""
    return Progress(
        **fields
        | {
            "first_tokens": tuple(fields["first_tokens"]),
            "finished": tuple(record_from(record) for record in fields["finished"]),
            "token_ids": tuple((request_id, token_id) for request_id, token_id in fields["token_ids"]),
        }
    )


def scores_from(fields: Message) -> TokenScores:
    """Rebuild TokenScores."""
    divergences = fields["divergences"]
    return TokenScores(
        top_token_ids=tuple(fields["top_token_ids"]),
        logprobs=tuple(fields["logprobs"]),
        divergences=None if divergences is None else tuple(divergences),
    )


def report_from(fields: Message) -> LoadReport:
    """Rebuild a LoadReport."""
    return LoadReport(**fields | {"client_limits": tuple(fields["client_limits"])})


def settings_from(fields: Message) -> EngineSettings:
    """Rebuild EngineSettings; they check themselves again."""
    return EngineSettings(**fields)


def info_from(fields: Message) -> EngineInfo:
    """Rebuild an EngineInfo."""
    return EngineInfo(**fields | {"pids": tuple(fields["pids"])})


def fields_of(record: object) -> Message:
    """Return a record's fields by name, for JSON; raise TypeError for anything else."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    raise TypeError(f"cannot send {type(record).__name__}")
