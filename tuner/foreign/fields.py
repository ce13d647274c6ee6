"""One object of a result file, read field by field: what is absent is None, what is wrong is named.

Absent, null and NaN are the same: the tool does not say. Knows no format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.foreign.errors import BadResultFile
from tuner.foreign.result import ForeignLatency

_MAX_TEXT = 200
#: Beyond any figure of a benchmark, nanoseconds since 1970 included; what is larger is damage.
_MAX_NUMBER = 1e19
_MAX_COUNT = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The file that is read."""

    name: str
    sha256: str


class Fields:
    """An object of a file: its fields, and where it stands, for complaints."""

    def __init__(self, source: Source, values: Mapping[str, Any], path: str = "") -> None:
        self.source = source
        self.values = values
        self._path = path

    def fault(self, name: str, value: object, remedy: str) -> BadResultFile:
        """Return the complaint about a field."""
        return BadResultFile(self.source.name, self._path_of(name), value, remedy)

    def number(self, name: str) -> float | None:
        """Return a figure of 0 or more. Raises BadResultFile."""
        return self._checked(name, self.values.get(name))

    def positive(self, name: str) -> float | None:
        """Return a figure above 0; a 0 is what tools write where they have nothing. Raises BadResultFile."""
        return self.number(name) or None

    def count(self, name: str, most: int = _MAX_COUNT) -> int | None:
        """Return a whole number from 0 to `most`; 20.0 is one. Raises BadResultFile."""
        value, given = self.number(name), self.values.get(name)
        if value is None:
            return None
        if not value.is_integer() or value > most:
            raise self.fault(name, given, f"give a whole number up to {most}, or leave it out")
        return given if isinstance(given, int) else int(value)

    def word(self, name: str) -> str | None:
        """Return a short text on one line; None where it is empty. Raises BadResultFile for what is no text."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.fault(name, value, "give a text, or leave it out")
        return printable(value) or None

    def inner(self, name: str) -> Fields | None:
        """Return an object inside. Raises BadResultFile."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(name, value, "give an object, or leave it out")
        return Fields(self.source, value, self._path_of(name))

    def items(self, name: str) -> list[Any] | None:
        """Return a list. Raises BadResultFile."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.fault(name, value, "give a list, or leave it out")
        return value

    def objects(self, name: str) -> list[Fields]:
        """Return a list of objects; none where it is absent. Raises BadResultFile."""
        found = []
        for i, value in enumerate(self.items(name) or []):
            if not isinstance(value, dict):
                raise self.fault(f"{name}[{i}]", value, "give an object, or leave it out")
            found.append(Fields(self.source, value, self._path_of(f"{name}[{i}]")))
        return found

    def numbers(self, name: str) -> list[float | None] | None:
        """Return a list of figures of 0 or more. Raises BadResultFile."""
        values = self.items(name)
        return None if values is None else [self._checked(f"{name}[{i}]", one) for i, one in enumerate(values)]

    def latency(self, names: Mapping[str, tuple[str, ...]], to_ms: float = 1.0) -> ForeignLatency:
        """Return a latency: of each statistic the first field that is there, times `to_ms`. Raises BadResultFile."""
        told: dict[str, float | None] = {}
        for statistic, candidates in names.items():
            found = next((value for name in candidates if (value := self.positive(name)) is not None), None)
            told[statistic] = None if found is None else float(f"{found * to_ms:.12g}")
        return ForeignLatency(**told)

    def _checked(self, name: str, value: object) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(name, value, "give a number, or leave it out")
        if value != value:  # NaN
            return None
        if not 0 <= value <= _MAX_NUMBER:
            raise self.fault(name, value, f"give a number from 0 to {_MAX_NUMBER:g}, or leave it out")
        return float(value)

    def _path_of(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def printable(text: str) -> str:
    """Return a text on one line that every database and terminal takes, cut where it is long."""
    words = " ".join("".join(one if one.isprintable() else " " for one in text[: 4 * _MAX_TEXT]).split())
    return words if len(words) <= _MAX_TEXT else f"{words[: _MAX_TEXT - 3]}..."


def is_infinite(value: object) -> bool:
    """Whether a rate says that everything is sent at once: the text `inf`, or JSON's Infinity as Python writes it."""
    return value == "inf" or (isinstance(value, float) and math.isinf(value))
