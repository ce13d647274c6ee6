"""What is wrong with a job's fields, in one sentence: for job files and for jobs that come over HTTP.

Knows which fields a job has; not where they came from.
"""

from __future__ import annotations

import reprlib
from typing import Any

from pydantic import BaseModel, ValidationError

from api.job_schemas import JobIn


def complaint_of(error: ValidationError) -> tuple[str, str]:
    """Return the dotted name of the first field that is wrong, and the sentence about it."""
    first = error.errors()[0]
    dotted = ".".join(str(part) for part in first["loc"] if not _is_union_member(part))
    return dotted, _words(dotted, first)


def shown(value: object) -> str:
    """Return a value as it can stand in a sentence: whatever was given, not more than a line of it."""
    words = reprlib.Repr()
    words.maxstring = words.maxother = words.maxlong = 80
    words.maxlevel = 2
    return words.repr(value)


def _words(dotted: str, first: Any) -> str:
    if first["type"] == "missing":
        return f"{dotted} is missing; name it, as in `model: smollm2-135m`"
    if first["type"] == "extra_forbidden":
        parent = dotted.rpartition(".")[0]
        return f"{dotted} is not a field of {parent or 'a job'}; there are {', '.join(_fields_of(parent))}"
    return f"{dotted} is {shown(first['input'])}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _fields_of(parent: str) -> list[str]:
    """Return the fields of a job, or of one of its blocks."""
    block = JobIn.model_fields[parent].annotation if parent else JobIn
    return list(block.model_fields) if isinstance(block, type) and issubclass(block, BaseModel) else []


def _is_union_member(part: int | str) -> bool:
    return isinstance(part, str) and part in ("int", "float", "str", "constrained-int", "constrained-str")
