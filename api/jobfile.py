"""A YAML job file, with flags laid over it, as a TuneRequest. Every complaint names the file and the line."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from api.errors import JobFileError, UsageError
from api.schemas import JobIn
from tuner.errors import InvalidRequest
from tuner.request import TuneRequest

MAX_BYTES = 1_000_000


class _Loader(yaml.SafeLoader):
    """SafeLoader whose every complaint carries a line: its own converters raise bare errors, as for 2026-02-30."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            kind = node.tag.rpartition(":")[2]
            words = f"{_shown(node.value)} is no valid {kind}; put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, words, node.start_mark) from error


def read_job(path: Path | None, flags: Mapping[str, Any]) -> TuneRequest:
    """Build the request from a job file, if there is one, and flags that win over it.

    Raises JobFileError with file and line, UsageError for a flag.
    """
    text = "" if path is None else _read(path)
    fields, lines = _parse(path, text)
    for dotted, value in flags.items():
        _lay_over(fields, dotted.split("."), value)
    try:
        return _with_absolute_model(JobIn.model_validate(fields).to_request())
    except ValidationError as error:
        first = error.errors()[0]
        dotted = ".".join(str(part) for part in first["loc"] if not _is_union_member(part))
        raise _complaint(path, lines, flags, dotted, _pydantic_words(dotted, first)) from error
    except InvalidRequest as error:
        # Where the fault is a name, as in an unknown metric, the value is the key that stands in the file.
        raise _complaint(path, lines, flags, f"{error.field}.{error.value}", str(error)) from error


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise JobFileError(f"job file {path}: {error.strerror}; give the path of a YAML file") from error
    if len(content) > MAX_BYTES:
        raise JobFileError(f"job file {path}: larger than {MAX_BYTES} bytes; is it a job file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise JobFileError(f"{path}:{line}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error


def _parse(path: Path | None, text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the file's fields, and the line of each by its dotted name."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        fields = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise JobFileError(f"{path}:{line}: not valid YAML: {problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise JobFileError(f"{path}:{line}: not valid YAML: {error.reason}") from error
    except RecursionError as error:
        raise JobFileError(f"{path}:1: not valid YAML: nested too deeply") from error
    if fields is None:
        fields = {}
    if not isinstance(fields, dict):
        raise JobFileError(f"{path}:1: a job file is a mapping, as in `model: smollm2-135m`")
    lines: dict[str, int] = {}
    _note_lines(path, node, "", lines)
    return fields, lines


def _note_lines(path: Path | None, node: yaml.Node | None, prefix: str, lines: dict[str, int]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    here: dict[str, int] = {}
    for key, value in node.value:
        dotted = f"{prefix}{key.value}"
        line = key.start_mark.line + 1
        if dotted in here:
            raise JobFileError(f"{path}:{line}: {dotted} stands here and on line {here[dotted]}; keep one")
        here[dotted] = line
        if not prefix:  # a job is two levels deep; an alias can make a mapping endless
            _note_lines(path, value, f"{dotted}.", lines)
    lines.update(here)


def _lay_over(fields: dict[str, Any], names: list[str], value: Any) -> None:
    *parents, last = names
    for name in parents:
        inner = fields.get(name)
        fields[name] = inner if isinstance(inner, dict) else {}
        fields = fields[name]
    fields[last] = value


def _with_absolute_model(request: TuneRequest) -> TuneRequest:
    """Make a model's path absolute: whoever runs or resumes the job may stand in another folder."""
    path = Path(request.model).expanduser()
    return dataclasses.replace(request, model=str(path.absolute())) if path.exists() else request


def _complaint(
    path: Path | None, lines: Mapping[str, int], flags: Mapping[str, Any], dotted: str, words: str
) -> UsageError:
    """Say where the fault is: the flag, or the nearest enclosing line of the file."""
    is_flag = any(dotted == flag or dotted.startswith(f"{flag}.") for flag in flags)
    if path is None or is_flag:
        return UsageError(words)
    name = dotted
    while name and name not in lines:
        name = name.rpartition(".")[0]
    return JobFileError(f"{path}:{lines.get(name, 1)}: {words}")


def _pydantic_words(dotted: str, first: Any) -> str:
    if first["type"] == "missing":
        return f"{dotted} is missing; name it, as in `model: smollm2-135m`"
    if first["type"] == "extra_forbidden":
        parent = dotted.rpartition(".")[0]
        return f"{dotted} is not a field of {parent or 'a job'}; there are {', '.join(_fields_of(parent))}"
    return f"{dotted} is {_shown(first['input'])}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _fields_of(parent: str) -> list[str]:
    """Return the fields of a job, or of one of its blocks."""
    block = JobIn.model_fields[parent].annotation if parent else JobIn
    return list(block.model_fields) if isinstance(block, type) and issubclass(block, BaseModel) else []


def _shown(value: object) -> str:
    """Return a value as it can stand in a sentence: whatever a file holds, not more than a line of it."""
    words = reprlib.Repr()
    words.maxstring = words.maxother = words.maxlong = 80
    words.maxlevel = 2
    return words.repr(value)


def _is_union_member(part: int | str) -> bool:
    return isinstance(part, str) and part in ("int", "float", "str", "constrained-int", "constrained-str")
