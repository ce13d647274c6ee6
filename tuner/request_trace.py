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
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from tuner.errors import InvalidRequest
from tuner.request import MAX_TOKENS

MAX_BYTES = 256 * 2**20
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")

#: One row: seconds on the trace's own clock, prompt tokens, output tokens.
Row = tuple[float, int, int]

Parsed = TypeVar("Parsed")


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


class TraceForm(StrEnum):
    """Which of the public formats a file has."""

    AZURE = "azure"
    MOONCAKE = "mooncake"


class RowFault(Exception):
    """Correct or remove the row; column is empty where the row as a whole is wrong, value where there is none."""

    def __init__(self, column: str, value: object, expected: str, words: str) -> None:
        super().__init__(words)
        self.column = column
        self.value = value
        self.expected = expected


def form_of(first_line: str) -> TraceForm:
    """Tell a trace's format from the first line that is not empty."""
    return TraceForm.MOONCAKE if first_line.lstrip().startswith("{") else TraceForm.AZURE


def parse_row(form: TraceForm, line: str) -> Row:
    """Read one line of a format; of Azure's, one after the header. Raises RowFault."""
    return azure_row(line) if form is TraceForm.AZURE else mooncake_row(line)


def require_azure_columns(line: str) -> None:
    """Refuse another header than that of Azure's traces. Raises RowFault."""
    header = tuple(_fields(line))
    if header != AZURE_COLUMNS:
        expected = f"CSV with {','.join(AZURE_COLUMNS)}, or JSON lines with {', '.join(MOONCAKE_FIELDS)}"
        raise RowFault("", line, expected, f"its columns are {', '.join(header) or 'none'}; give {expected}")


def azure_row(line: str) -> Row:
    """Read one line of CSV. Raises RowFault."""
    fields = _fields(line)
    if len(fields) != len(AZURE_COLUMNS):
        expected = f"{len(AZURE_COLUMNS)} fields"
        raise RowFault("", line, expected, f"it has {len(fields)} fields, not {len(AZURE_COLUMNS)}; correct or remove "
                       "the row")  # fmt: skip
    moment = _read(AZURE_COLUMNS[0], fields[0], datetime.fromisoformat, "a date and time")
    tokens = [_read(name, field, int, "a whole number")
              for name, field in zip(AZURE_COLUMNS[1:], fields[1:], strict=True)]  # fmt: skip
    # Naive times are taken as UTC: only their differences count.
    return _row(AZURE_COLUMNS, (moment - datetime.fromtimestamp(0, moment.tzinfo)).total_seconds(), *tokens)


def mooncake_row(line: str) -> Row:
    """Read one JSON line. Raises RowFault."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowFault("", line, "a JSON object", f"it is no JSON ({error}); correct or remove the line") from error
    missing = [name for name in MOONCAKE_FIELDS if not (isinstance(fields, dict) and name in fields)]
    if missing:
        words = f"it lacks {', '.join(missing)}; correct or remove the line"
        raise RowFault(missing[0], None, f"an object with {', '.join(MOONCAKE_FIELDS)}", words)
    return _row(
        MOONCAKE_FIELDS,
        _read("timestamp", fields["timestamp"], _milliseconds, "a number of milliseconds") / 1e3,
        *(_read(name, fields[name], _count, "a whole number") for name in MOONCAKE_FIELDS[1:]),
    )


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error as error:
        raise RowFault(
            "", line, "comma-separated fields", f"it is no CSV ({error}); correct or remove the row"
        ) from error


def _row(columns: tuple[str, ...], time_s: float, prompt: int, output: int) -> Row:
    for column, name, count in zip(columns[1:], ("prompt", "output"), (prompt, output), strict=True):
        if not 1 <= count <= MAX_TOKENS:
            words = f"its {name} has {count} tokens; give 1 to {MAX_TOKENS}, or remove the row"
            raise RowFault(column, count, f"1 to {MAX_TOKENS}", words)
    return time_s, prompt, output


def _read(name: str, value: Any, convert: Callable[[Any], Any], expected: str) -> Any:
    try:
        return convert(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise RowFault(name, value, expected, f"{name} is {str(value)[:80]!r}; give {expected}") from error


def _milliseconds(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not abs(number) < 1e15:  # NaN, too
        raise ValueError(value)
    return number


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(value)
    return value


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
    rows = sorted(_rows(path, text), key=lambda row: row[0])
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


def _rows(path: str, text: str) -> Iterator[Row]:
    form: TraceForm | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if form is None:
            form = form_of(line)
            if form is TraceForm.AZURE:
                _check(path, number, require_azure_columns, line)
                continue
        yield _check(path, number, partial(parse_row, form), line)
    if form is None:
        _check(path, 1, require_azure_columns, "")


def _check(path: str, number: int, parse: Callable[[str], Parsed], line: str) -> Parsed:
    try:
        return parse(line)
    except RowFault as fault:
        raise _refused(f"{path}:{number}", str(fault)) from fault


def _refused(place: str, remedy: str) -> InvalidRequest:
    return InvalidRequest("workload.trace_file", place, remedy)
