"""An uploaded trace or prompt file, read as it comes: recognised, checked row by row, summed up, compressed.

Traces are read by the same code that a search reads them with. Of the file itself only the compressed form is kept.
Knows nothing of HTTP, nor of where the file is stored.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from api.complaints import shown
from api.errors import BodyTooLarge, Refusal
from db.workloads import NewWorkload
from tuner.request_trace import recognised
from tuner.trace_csv import CsvReader
from tuner.trace_json import MooncakeReader
from tuner.traces import FileFault, RowFault, RowReader, Trace

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


class RowErrorOut(BaseModel):
    """One row that cannot be read."""

    #: Of the file, from 1 on, header and empty lines included; of an array, the entry.
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
        self._reader: RowReader | None = None
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
        sha256 = self._sha256.hexdigest()
        trace = None if self._num_errors else self._whole(sha256)
        if trace is None:
            raise BadRows(self._errors, self._num_errors)
        return NewWorkload(
            form=trace.form,
            sha256=sha256,
            num_rows=trace.num_requests,
            num_bytes=self._num_bytes,
            summary=summary_of(trace),
            compressed=bytes(self._compressed),
        )

    def _whole(self, sha256: str) -> Trace | None:
        """Return everything that was read; None where only the end shows that something is wrong. Raises Refusal."""
        if self._reader is None:
            raise Refusal("the file has no rows; give one prompt a line, JSON lines with `prompt`, or a trace")
        try:
            return self._reader.finish(sha256)
        except RowFault as fault:
            self._note_fault(fault)
            return None
        except FileFault as fault:
            raise Refusal(f"the file cannot be used: {fault}") from fault

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
            self._note_fault(fault)
        except FileFault as fault:
            raise Refusal(f"the file cannot be used: {fault}") from fault

    def _take_text(self, line: str) -> None:
        if self._reader is None:
            self._reader, is_row = self._recognise(line)
            if not is_row:
                return
        if self._reader.num_rows >= MAX_ROWS:
            raise Refusal(f"the file has more than {MAX_ROWS} rows; cut out the stretch you mean")
        self._reader.take(line)

    def _recognise(self, line: str) -> tuple[RowReader, bool]:
        """Return what reads the file, by its first line that is not empty, and whether that line is a row."""
        if self._media is Media.CSV:
            return CsvReader(line), False
        if self._media is Media.JSON_LINES and not line.lstrip().startswith(("{", "[", "TIMESTAMP,", "Timestamp,")):
            return MooncakeReader(), True  # says what is wrong with the line
        return recognised(line, is_plain=self._media is Media.TEXT)

    def _note_fault(self, fault: RowFault) -> None:
        value = None if fault.value is None else shown(fault.value)
        self._note(fault.column or None, value, fault.expected, row=fault.entry)

    def _note(self, column: str | None, value: str | None, expected: str, *, row: int | None = None) -> None:
        """Count a fault, and keep the first ones; in an array the row is the entry, since lines say nothing there."""
        self._num_errors += 1
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(
                RowErrorOut(row=row or self._line_number, column=column, value=value, expected=expected)
            )

    def _refuse_long(self, number: int) -> None:
        raise Refusal(f"row {number} is longer than {MAX_LINE_BYTES} bytes; is it a trace or a prompt file?")


def summary_of(trace: Trace) -> dict[str, Any]:
    """Return what a file's requests are like: duration and rates where they have times, lengths in what is known."""
    found: dict[str, Any] = {}
    if trace.has_times:
        duration_s = trace.offsets_s[-1]
        arrivals = Counter(int(offset_s // PEAK_S) for offset_s in trace.offsets_s)
        found |= {
            "duration_s": duration_s,
            # As it is replayed: a mean gap after the last request, then the first again.
            "mean_rate_per_s": trace.num_requests / trace.period_s,
            "peak_rate_per_s": max(arrivals.values()) / min(PEAK_S, duration_s),
        }
    if trace.texts:
        return found | {"prompt_characters": lengths([len(text.prompt) for text in trace.texts])}
    return found | {
        "prompt_tokens": lengths(trace.prompt_tokens),
        "output_tokens": lengths(trace.output_tokens),
        # Prompt and output of one request together: what a model's context is compared with.
        "longest_tokens": trace.longest_tokens,
    }


def lengths(values: Sequence[int]) -> dict[str, float]:
    """Return mean, extremes and percentiles (nearest rank) of lengths."""
    ordered = sorted(values)
    ranks = {f"p{percent}": ordered[-(-percent * len(ordered) // 100) - 1] for percent in _PERCENTILES}
    return {"mean": sum(ordered) / len(ordered), "min": ordered[0], **ranks, "max": ordered[-1]}
