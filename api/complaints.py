"""What is wrong with the fields of a job, or of any other model, in one sentence: for files, and for posted bodies.

Knows what fields there are; not where they came from.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from api.job_schemas import JobIn

#: Of a sentence about what somebody sent.
MAX_CHARACTERS = 1_000
#: A form has fewer fields; what is wrong in a thousand places is not read to its end.
_MAX_COMPLAINTS = 20


def complaint_of(error: ValidationError, model: type[BaseModel] = JobIn, *, what: str = "a job") -> tuple[str, str]:
    """Return the dotted name of the first field of `model` that is wrong, and the sentence about it.

    `what` is the whole in words, for what stands at its top.
    """
    return _complaint(error.errors()[0], model, what)


def complaints_of(error: ValidationError, model: type[BaseModel], *, what: str = "a job") -> dict[str, str]:
    """Return the sentence about each field that is wrong, by its dotted name, in the order of `complaint_of`."""
    found: dict[str, str] = {}
    for one in error.errors()[:_MAX_COMPLAINTS]:
        dotted, words = _complaint(one, model, what)
        found.setdefault(dotted, words)  # a value that fits no member of a union is complained of by each
    return found


def cut(words: str, most: int = MAX_CHARACTERS) -> str:
    """Return a sentence, or its beginning where somebody sent a megabyte that it quotes."""
    return f"{words[: most - 3]}..." if len(words) > most else words


def _complaint(one: Any, model: type[BaseModel], what: str) -> tuple[str, str]:
    parts = [part for part in one["loc"] if not _is_union_member(part)]
    dotted = ".".join(str(part) for part in parts)
    return dotted, _words(dotted, one, _fields_at(model, parts[:-1]), what)


def shown(value: object) -> str:
    """Return a value as it can stand in a sentence: whatever was given, not more than a line of it."""
    words = reprlib.Repr()
    words.maxstring = words.maxother = words.maxlong = 80
    words.maxlevel = 2
    return words.repr(value)


def _words(dotted: str, first: Any, fields: Sequence[str], what: str) -> str:
    said = first["msg"].removeprefix("Value error, ")  # pydantic's words before those of our own checks
    message = f"{said[0].lower()}{said[1:]}"
    if first["type"] == "missing":
        example = ", as in `model: smollm2-135m`" if dotted == "model" else ""
        return f"{dotted} is missing; name it{example}"
    if first["type"] == "extra_forbidden":
        parent = dotted.rpartition(".")[0]
        return f"{dotted} is not a field of {parent or what}; there are {', '.join(fields)}"
    if not dotted:
        return f"{what} is {shown(first['input'])}: {message}"
    return f"{dotted} is {shown(first['input'])}: {message}"


def _fields_at(model: type[BaseModel], parts: Sequence[int | str]) -> list[str]:
    """Return the fields of a model, or of the block inside it that the parts of a name lead to."""
    block: Any = model
    for part in parts:
        models = _models_in(block)
        named = next((one.model_fields[str(part)] for one in models if str(part) in one.model_fields), None)
        block = block if named is None else named.annotation  # a key of a table or a place in a list: its values
    found = _models_in(block)
    return list(found[0].model_fields) if found else []


def _models_in(kind: Any) -> list[type[BaseModel]]:
    """Return the models that a type is or holds: itself, a member of a union, what a list or a table has in it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [found for inner in get_args(kind) for found in _models_in(inner)]


def _is_union_member(part: int | str) -> bool:
    return isinstance(part, str) and part in ("int", "float", "str", "constrained-int", "constrained-str")
