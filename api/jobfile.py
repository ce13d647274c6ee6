"""A YAML job file, with flags laid over it, as a TuneRequest. Every complaint names the file and the line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from api.errors import JobFileError, UsageError
from api.schemas import JobIn
from tuner.errors import InvalidRequest
from tuner.request import TuneRequest

MAX_BYTES = 1_000_000


def read_job(path: Path | None, flags: Mapping[str, Any]) -> TuneRequest:
    """Build the request from a job file, if there is one, and flags that win over it.

    Raises JobFileError with file and line, UsageError for a flag.
    """
    text = "" if path is None else _read(path)
    fields, lines = _parse(path, text)
    for dotted, value in flags.items():
        _lay_over(fields, dotted.split("."), value)
    try:
        return JobIn.model_validate(fields).to_request()
    except ValidationError as error:
        first = error.errors()[0]
        dotted = ".".join(str(part) for part in first["loc"] if not _is_union_member(part))
        raise _complaint(path, lines, flags, dotted, _pydantic_words(dotted, first)) from error
    except InvalidRequest as error:
        raise _complaint(path, lines, flags, error.field, str(error)) from error


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise JobFileError(f"job file {path}: {error.strerror}; give the path of a YAML file") from error
    except UnicodeDecodeError as error:
        raise JobFileError(f"job file {path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if len(text) > MAX_BYTES:
        raise JobFileError(f"job file {path}: larger than {MAX_BYTES} characters; is it a job file?")
    return text


def _parse(path: Path | None, text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the file's fields, and the line of each by its dotted name."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        fields = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise JobFileError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise JobFileError(f"{path}:1: not valid YAML: {error}") from error
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
    for key, value in node.value:
        dotted = f"{prefix}{key.value}"
        line = key.start_mark.line + 1
        if dotted in lines:
            raise JobFileError(f"{path}:{line}: {dotted} stands here and on line {lines[dotted]}; keep one")
        lines[dotted] = line
        _note_lines(path, value, f"{dotted}.", lines)


def _lay_over(fields: dict[str, Any], names: list[str], value: Any) -> None:
    *parents, last = names
    for name in parents:
        inner = fields.get(name)
        fields[name] = inner if isinstance(inner, dict) else {}
        fields = fields[name]
    fields[last] = value


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
        known = ", ".join(JobIn.model_fields)
        return f"{dotted} is not a field of a job (top level: {known})"
    return f"{dotted} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _is_union_member(part: int | str) -> bool:
    return isinstance(part, str) and part in ("int", "float", "str", "constrained-int", "constrained-str")
