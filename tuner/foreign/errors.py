"""What can be wrong with a result file of another tool."""

from __future__ import annotations

import reprlib

from tuner.errors import InvalidRequest

_MAX_CHARACTERS = 80
_MAX_SHOWN = 10**18


class BadResultFile(InvalidRequest):
    """Correct the field that the message names, or let the tool write the file again."""

    def __init__(self, file: str, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{file}: {field}", _shortened(value), remedy)
        self.file = file


def _shortened(value: object) -> object:
    """Return a value as a sentence can quote it."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < _MAX_SHOWN):
        return value
    text = value if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 3]}..."
