"""Traces as CSV: Azure's LLM inference traces of 2023 and 2024, and BurstGPT with six or eight columns.

Columns are found by name, in whatever order. Times of Azure are dates with up to seven digits of a second, with or
without an offset, in several styles in one file; those of BurstGPT are seconds. Knows nothing of files.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from tuner.traces import RowFault, Trace, TraceBuilder, require_tokens, wrong

AZURE = "azure"
BURST_GPT = "burstgpt"
#: Time, prompt and output of each form.
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURST_GPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_TOTAL = "Total tokens"
#: Where a date's seventh digit of a second stands, which datetime drops.
_TENTH_OF_A_US = 26

Parsed = TypeVar("Parsed")


class CsvReader:
    """Reads the rows below one header."""

    def __init__(self, header: str) -> None:
        """Raise RowFault for the header of another file."""
        names = [name.strip() for name in _fields(header)]
        self._num_fields = len(names)
        for form, columns in ((AZURE, AZURE_COLUMNS), (BURST_GPT, BURST_GPT_COLUMNS)):
            if set(columns) <= set(names):
                self._builder = TraceBuilder(form)
                self._columns = columns
                self._places = tuple(names.index(column) for column in columns)
                break
        else:
            expected = (
                f"CSV with {','.join(AZURE_COLUMNS)} (Azure) or {', '.join(BURST_GPT_COLUMNS)} (BurstGPT), or JSON"
                " lines with timestamp, input_length, output_length, or with prompts"
            )
            shown = ", ".join(names[:8]) if any(names) else "none"
            raise RowFault("", header, expected, f"its columns are {shown}; give {expected}")
        self._total = names.index(_TOTAL) if _TOTAL in names else None
        self._first: datetime | None = None

    @property
    def form(self) -> str:
        """See RowReader."""
        return self._builder.form

    @property
    def num_rows(self) -> int:
        """See RowReader."""
        return self._builder.num_rows

    def take(self, line: str) -> None:
        """See RowReader."""
        fields = _fields(line)
        if len(fields) != self._num_fields:
            words = f"it has {len(fields)} fields, not {self._num_fields}; correct or remove the row"
            raise RowFault("", line, f"{self._num_fields} fields", words)
        time_place, prompt_place, output_place = self._places
        time_name, prompt_name, output_name = self._columns
        is_azure = self.form == AZURE
        time_s = self._date_s(fields[time_place]) if is_azure else _read(time_name, fields[time_place], _seconds)
        prompt = _read(prompt_name, fields[prompt_place], _count)
        output = _read(output_name, fields[output_place], _count)
        if not is_azure and self._is_dropped(fields, prompt, output):
            return
        require_tokens(prompt_name, "prompt", prompt)
        require_tokens(output_name, "output", output)
        self._builder.add(time_s, prompt, output)

    def finish(self, sha256: str) -> Trace:
        """See RowReader."""
        return self._builder.finish(sha256)

    def _is_dropped(self, fields: Sequence[str], prompt: int, output: int) -> bool:
        """Tell whether a row of BurstGPT is a call that failed: its README marks those by 0 response tokens."""
        if output == 0:
            self._builder.note("rows have 0 response tokens, as calls that failed have, and were left out")
            return True
        if prompt == 0:
            self._builder.note("rows have 0 request tokens and were left out")
            return True
        if self._total is not None and fields[self._total].strip() != str(prompt + output):
            self._builder.note("rows have a total that is not the sum of both; it is not used")
        return False

    def _date_s(self, text: str) -> float:
        """Return seconds from the file's first row on, to 100 ns."""
        text = text.strip()
        moment = _read(AZURE_COLUMNS[0], text, datetime.fromisoformat, "a date and time")
        first = self._first
        if first is None:
            self._first = first = moment.replace(microsecond=0)
        if (moment.tzinfo is None) != (first.tzinfo is None):
            which = ("without", "with") if moment.tzinfo is None else ("with", "without")
            expected = f"a time {which[1]} an offset, as the first row has"
            words = (
                f"TIMESTAMP is {text!r}, {which[0]} an offset, but the first row's is {which[1]} one; give {expected}"
            )
            raise RowFault(AZURE_COLUMNS[0], text, expected, words)
        since_s = (moment - first).total_seconds()
        seventh = text[_TENTH_OF_A_US : _TENTH_OF_A_US + 1]
        return since_s + int(seventh) / 1e7 if seventh.isdecimal() and text[19] == "." else since_s


def _fields(line: str) -> list[str]:
    line = line.rstrip("\r\n")
    if '"' not in line:
        return line.split(",")  # six times as fast, and rows come by the million
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        words = f"it is no CSV ({error}); correct or remove the row"
        raise RowFault("", line, "comma-separated fields", words) from error


def _read(name: str, text: str, convert: Callable[[str], Parsed], expected: str = "") -> Parsed:
    try:
        return convert(text)
    except (ValueError, OverflowError) as error:
        raise wrong(name, text, expected or ("a whole number" if convert is _count else "seconds")) from error


def _seconds(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or abs(number) > 1e12:
        raise ValueError(text)
    return number


def _count(text: str) -> int:
    return int(text)
