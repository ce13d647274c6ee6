"""An uploaded trace or prompt file, read as it comes: recognised, checked row by row, summed up, compressed.

Traces are read by the same code that a search reads them with. Of the file itself only the compressed form is kept.
Knows nothing of HTTP, nor of where the file is stored.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from api.complaints import shown
from api.errors import BodyTooLarge, Refusal
from db.workloads import NewWorkload
from tuner.request_trace import Row, RowFault, TraceForm, form_of, parse_row, require_azure_columns

MAX_BYTES = 50_000_000
MAX_ROWS = 1_000_000
MAX_LINE_BYTES = 200_000
#: At once.
MAX_UPLOADS = 2
#: Rows that are told of, the first that are wrong.
MAX_ERRORS = 20
#: Length of the stretch in which arrivals are counted for the highest rate.
PEAK_S = 60
_BOM = b"\xef\xbb\xbf"
_PERCENTILES = (50, 90, 99)


class Media(StrEnum):
    """What an upload may say that it is."""

    CSV = "text/csv"
    JSON_LINES = "application/x-ndjson"
    TEXT = "text/plain"


class UnknownMedia(Refusal):
    """Say in `Content-Type` what the file is."""

    status = 415
    title = "wrong media type"


class TooManyUploads(Refusal):
    """Upload one file after the other."""

    status = 429
    title = "too many uploads"

    def headers(self) -> dict[str, str]:
        """Say when another attempt may help."""
        return {"Retry-After": "10"}


class Uploads:
    """How many files are on their way in: each takes memory and a core until it is read."""

    def __init__(self) -> None:
        self._num_open = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count an upload while it lasts; for one event loop. Raises TooManyUploads."""
        if self._num_open >= MAX_UPLOADS:
            raise TooManyUploads(f"{MAX_UPLOADS} files are being uploaded already; try again when one is done")
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1


class Form(StrEnum):
    """What a file was recognised as."""

    AZURE = "azure"
    MOONCAKE = "mooncake"
    PROMPTS = "prompts"


class RowErrorOut(BaseModel):
    """One row that cannot be read."""

    #: Of the file, from 1 on, header and empty lines included.
    row: int
    #: Null where the row as a whole is wrong.
    column: str | None
    #: As it was found, shortened; null where there is none.
    value: str | None
    expected: str


def media_of(content_type: str) -> Media:
    """Return what a `Content-Type` says that a file is. Raises UnknownMedia."""
    named = content_type.partition(";")[0].strip().lower()
    if named not in list(Media):
        remedy = f"say {Media.CSV} for CSV, {Media.JSON_LINES} for JSON lines, {Media.TEXT} for one prompt a line"
        raise UnknownMedia(f"Content-Type is {shown(content_type)}: {remedy}")
    return Media(named)


class BadRows(Refusal):
    """Correct or remove the rows that the answer lists."""

    title = "rows that cannot be read"

    def __init__(self, errors: Sequence[RowErrorOut], num_errors: int) -> None:
        first = errors[0]
        where = "" if first.column is None else f", {first.column}"
        found = "" if first.value is None else f" is {first.value}"
        super().__init__(
            f"{num_errors} row{'s' if num_errors > 1 else ''} cannot be read; row {first.row}{where}{found}: give "
            f"{first.expected}"
        )
        self.errors = tuple(errors)
        self.num_errors = num_errors

    def members(self) -> dict[str, Any]:
        """List the first rows that are wrong."""
        return {"num_errors": self.num_errors, "errors": [error.model_dump() for error in self.errors]}


class WorkloadFile:
    """A file on its way in: give it blocks of bytes, then ask for the whole."""

    def __init__(self, media: Media) -> None:
        self._media = media
        self._sha256 = hashlib.sha256()
        self._compressor = zlib.compressobj(6)
        self._compressed = bytearray()
        self._num_bytes = 0
        self._rest = b""
        self._line_number = 0
        self._read: Callable[[str], None] | None = None
        self._form = Form.PROMPTS
        self._rows = TraceRows()
        self._prompts = PromptRows()
        self._errors: list[RowErrorOut] = []
        self._num_errors = 0

    def feed(self, block: bytes) -> None:
        """Take in the next bytes. Raises BodyTooLarge, and Refusal for a line or a number of rows beyond all."""
        self._num_bytes += len(block)
        if self._num_bytes > MAX_BYTES:
            raise BodyTooLarge(f"the file is larger than {MAX_BYTES} bytes; cut out the stretch you mean")
        self._sha256.update(block)
        self._compressed += self._compressor.compress(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > MAX_LINE_BYTES:
            self._refuse_long(self._line_number + 1)

    def finish(self) -> NewWorkload:
        """Return the file as it is to be stored. Raises BadRows with the rows that are wrong, Refusal."""
        if self._rest:
            self._take(self._rest)
        self._compressed += self._compressor.flush()
        if self._num_errors:
            raise BadRows(self._errors, self._num_errors)
        is_trace = self._form is not Form.PROMPTS
        found = self._rows.summary() if is_trace else self._prompts.summary()
        return NewWorkload(
            form=self._form.value,
            sha256=self._sha256.hexdigest(),
            num_rows=len(self._rows.times_s) if is_trace else len(self._prompts.num_characters),
            num_bytes=self._num_bytes,
            summary=found,
            compressed=bytes(self._compressed),
        )

    def _take(self, line: bytes) -> None:
        self._line_number += 1
        if len(line) > MAX_LINE_BYTES:
            self._refuse_long(self._line_number)
        if self._line_number == 1:
            line = line.removeprefix(_BOM)
        if not line.strip():
            return
        try:
            self._take_text(line.decode("utf-8"))
        except UnicodeDecodeError:
            self._note(None, None, "UTF-8 text")
        except RowFault as fault:
            value = None if fault.value is None else shown(fault.value)
            self._note(fault.column or None, value, fault.expected)

    def _take_text(self, line: str) -> None:
        if self._read is None:
            self._form, self._read = self._recognise(line)
            if self._form is Form.AZURE:
                require_azure_columns(line)
                return
        if max(len(self._rows.times_s), len(self._prompts.num_characters)) >= MAX_ROWS:
            raise Refusal(f"the file has more than {MAX_ROWS} rows; cut out the stretch you mean")
        self._read(line)

    def _recognise(self, line: str) -> tuple[Form, Callable[[str], None]]:
        """Tell what the file is by its first line that is not empty, and what reads the others."""
        if self._media is Media.CSV or line.startswith("TIMESTAMP,"):
            return Form.AZURE, lambda row: self._rows.add(parse_row(TraceForm.AZURE, row))
        if self._media is Media.TEXT and form_of(line) is not TraceForm.MOONCAKE:
            return Form.PROMPTS, self._prompts.add
        if _has_prompt(line):
            return Form.PROMPTS, lambda row: self._prompts.add(_prompt_in(row))
        return Form.MOONCAKE, lambda row: self._rows.add(parse_row(TraceForm.MOONCAKE, row))

    def _note(self, column: str | None, value: str | None, expected: str) -> None:
        self._num_errors += 1
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(RowErrorOut(row=self._line_number, column=column, value=value, expected=expected))

    def _refuse_long(self, number: int) -> None:
        raise Refusal(f"row {number} is longer than {MAX_LINE_BYTES} bytes; is it a trace or a prompt file?")


class TraceRows:
    """The rows of a trace, as numbers in little room."""

    def __init__(self) -> None:
        self.times_s = array("d")
        self._prompt_tokens = array("l")
        self._output_tokens = array("l")

    def add(self, row: Row) -> None:
        """Take in one row."""
        time_s, prompt, output = row
        self.times_s.append(time_s)
        self._prompt_tokens.append(prompt)
        self._output_tokens.append(output)

    def summary(self) -> dict[str, Any]:
        """Return duration, rates and lengths. Raises Refusal for less than two requests at different times."""
        first_s = min(self.times_s, default=0.0)
        duration_s = max(self.times_s, default=0.0) - first_s
        if duration_s <= 0:
            raise Refusal("the trace needs two requests at different times at least; add some")
        num_rows = len(self.times_s)
        arrivals = Counter(int((time_s - first_s) // PEAK_S) for time_s in self.times_s)
        sums = map(sum, zip(self._prompt_tokens, self._output_tokens, strict=True))
        return {
            "duration_s": duration_s,
            # As it is replayed: a mean gap after the last request, then the first again.
            "mean_rate_per_s": (num_rows - 1) / duration_s,
            "peak_rate_per_s": max(arrivals.values()) / min(PEAK_S, duration_s),
            "prompt_tokens": lengths(self._prompt_tokens),
            "output_tokens": lengths(self._output_tokens),
            # Prompt and output of one request together: what a model's context is compared with.
            "longest_tokens": max(sums),
        }


class PromptRows:
    """The prompts of a file, by their lengths."""

    def __init__(self) -> None:
        self.num_characters = array("l")

    def add(self, prompt: str) -> None:
        """Take in one prompt."""
        self.num_characters.append(len(prompt.strip()))

    def summary(self) -> dict[str, Any]:
        """Return the prompts' lengths. Raises Refusal without a prompt."""
        if not self.num_characters:
            raise Refusal("the file has no rows; give one prompt a line, JSON lines with `prompt`, or a trace")
        return {"prompt_characters": lengths(self.num_characters)}


def lengths(values: Sequence[int]) -> dict[str, float]:
    """Return mean, extremes and percentiles (nearest rank) of lengths."""
    ordered = sorted(values)
    ranks = {f"p{percent}": ordered[-(-percent * len(ordered) // 100) - 1] for percent in _PERCENTILES}
    return {"mean": sum(ordered) / len(ordered), "min": ordered[0], **ranks, "max": ordered[-1]}


def _has_prompt(line: str) -> bool:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and "prompt" in fields


def _prompt_in(line: str) -> str:
    """Return the prompt of a JSON line. Raises RowFault."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowFault("", line, "a JSON object with `prompt`", str(error)) from error
    prompt = fields.get("prompt") if isinstance(fields, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise RowFault("prompt", prompt, "a text that is not empty", "it has no prompt")
    return prompt
