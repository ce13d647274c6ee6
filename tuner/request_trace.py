"""A recorded trace of requests: when each came, how long its prompt was, how long its output.

Two public formats: CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens (the LLM inference traces that Azure
published in 2023), and JSON lines with `timestamp` in milliseconds, `input_length` and `output_length` (Mooncake's).
A row that cannot be read is refused with file and line, never skipped. Knows nothing of prompts' text.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from tuner.errors import InvalidRequest
from tuner.request import MAX_TOKENS

MAX_BYTES = 256 * 2**20
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")

#: One row: seconds on the trace's own clock, prompt tokens, output tokens.
Row = tuple[float, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of time."""

    #: Seconds from the first request.
    offsets_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    #: Of the file, so that a workload's fingerprint knows its content.
    sha256: str
    #: Largest prompt plus output of one request.
    longest_tokens: int

    @property
    def period_s(self) -> float:
        """Seconds after which it may begin anew: from the first request to the last, and one mean gap."""
        span_s = self.offsets_s[-1]
        return span_s + span_s / (len(self.offsets_s) - 1)


def load_trace(path: str) -> Trace:
    """Read a trace, or return what was read of the same file before.

    Raises InvalidRequest naming the file, and the line where one is bad.
    """
    try:
        status = Path(path).stat()
    except OSError as error:
        raise _refused(path, f"{error.strerror}; give the path of a CSV or JSONL trace") from error
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _load(path: str, _modified_ns: int, size: int) -> Trace:
    """Read a trace; asked at every point of a job, so kept while the file is the same."""
    if size > MAX_BYTES:
        raise _refused(path, f"it is larger than {MAX_BYTES // 2**20} MiB; cut out the stretch you mean")
    try:
        content = Path(path).read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise _refused(path, f"{error.strerror}; give the path of a CSV or JSONL trace") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refused(f"{path}:{line}", "it is not UTF-8 text; save it as UTF-8") from error
    read = _mooncake_rows if text.lstrip().startswith("{") else _azure_rows
    rows = sorted(read(path, text), key=lambda row: row[0])
    if len(rows) < 2 or rows[0][0] == rows[-1][0]:
        raise _refused(path, "it needs two requests at different times at least")
    times_s, prompts, outputs = zip(*rows, strict=True)
    return Trace(
        offsets_s=tuple(time_s - times_s[0] for time_s in times_s),
        prompt_tokens=prompts,
        output_tokens=outputs,
        sha256=hashlib.sha256(content).hexdigest(),
        longest_tokens=max(prompt + output for _, prompt, output in rows),
    )


def _azure_rows(path: str, text: str) -> Iterator[Row]:
    reader = csv.reader(text.splitlines())
    header = tuple(next(reader, ()))
    if header != AZURE_COLUMNS:
        remedy = (
            f"its columns are {', '.join(header) or 'none'}; give CSV with {','.join(AZURE_COLUMNS)}, or JSON lines"
        )
        raise _refused(f"{path}:1", f"{remedy} with {', '.join(MOONCAKE_FIELDS)}")
    for fields in reader:
        place = f"{path}:{reader.line_num}"
        if not fields:
            continue
        if len(fields) != len(AZURE_COLUMNS):
            raise _refused(place, f"it has {len(fields)} fields, not {len(AZURE_COLUMNS)}; correct or remove the row")
        moment = _read(place, AZURE_COLUMNS[0], fields[0], datetime.fromisoformat, "a date and time")
        tokens = [_read(place, name, field, int, "a whole number")
                  for name, field in zip(AZURE_COLUMNS[1:], fields[1:], strict=True)]  # fmt: skip
        # Naive times are taken as UTC: only their differences count.
        yield _row(place, (moment - datetime.fromtimestamp(0, moment.tzinfo)).total_seconds(), *tokens)


def _mooncake_rows(path: str, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise _refused(place, f"it is no JSON ({error}); correct or remove the line") from error
        missing = [name for name in MOONCAKE_FIELDS if not (isinstance(fields, dict) and name in fields)]
        if missing:
            raise _refused(place, f"it lacks {', '.join(missing)}; correct or remove the line")
        yield _row(
            place,
            _read(place, "timestamp", fields["timestamp"], _milliseconds, "a number of milliseconds") / 1e3,
            *(_read(place, name, fields[name], _count, "a whole number") for name in MOONCAKE_FIELDS[1:]),
        )


def _row(place: str, time_s: float, prompt: int, output: int) -> Row:
    for name, count in (("prompt", prompt), ("output", output)):
        if not 1 <= count <= MAX_TOKENS:
            raise _refused(place, f"its {name} has {count} tokens; give 1 to {MAX_TOKENS}, or remove the row")
    return time_s, prompt, output


def _read(place: str, name: str, value: Any, convert: Callable[[Any], Any], expected: str) -> Any:
    try:
        return convert(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise _refused(place, f"{name} is {str(value)[:80]!r}; give {expected}") from error


def _milliseconds(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not abs(number) < 1e15:  # NaN, too
        raise ValueError(value)
    return number


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(value)
    return value


def _refused(place: str, remedy: str) -> InvalidRequest:
    return InvalidRequest("workload.trace_file", place, remedy)
