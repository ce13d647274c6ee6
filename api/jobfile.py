"""A YAML job file, with flags laid over it, as a TuneRequest. Every complaint names the file and the line."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from api.complaints import complaint_of, shown
from api.errors import JobFileError, UsageError
from api.job_schemas import JobIn
from api.workload_cache import uploaded_name
from probes.simulated.names import located
from tuner.errors import InvalidRequest
from tuner.lm_tasks import is_folder, require_package
from tuner.request import TuneRequest

MAX_BYTES = 1_000_000


class _Loader(yaml.SafeLoader):
    """SafeLoader whose every complaint carries a line: its own converters raise bare errors, as for 2026-02-30."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            kind = node.tag.rpartition(":")[2]
            words = f"{shown(node.value)} is no valid {kind}; put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, words, node.start_mark) from error


def read_job(path: Path | None, flags: Mapping[str, Any]) -> TuneRequest:
    """Build the request from a job file, if there is one, and flags that win over it.

    Raises JobFileError with file and line, UsageError for a flag.
    """
    return located_here(_checked(path, flags)[1])


def read_fields(path: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a job file and flags give, checked as `read_job` checks them: what is posted elsewhere."""
    return _checked(path, flags)[0].model_dump(mode="json", exclude_unset=True)


def _checked(path: Path | None, flags: Mapping[str, Any]) -> tuple[JobIn, TuneRequest]:
    text = "" if path is None else _read(path)
    fields, lines = _parse(path, text)
    if isinstance(knobs := fields.get("knobs"), dict):
        fields["knobs"] = {name: _words_of(values) for name, values in knobs.items()}
    for dotted, value in flags.items():
        _lay_over(fields, dotted.split("."), value)
    try:
        job = JobIn.model_validate(fields)
        request = job.to_request()
        require_package(request.quality.tasks)
        return job, request
    except ValidationError as error:
        raise _complaint(path, lines, flags, *complaint_of(error)) from error
    except InvalidRequest as error:
        # Where the fault is a name, as in an unknown metric, the value is the key that stands in the file.
        raise _complaint(path, lines, flags, f"{error.field}.{error.value}", str(error)) from error


def _words_of(values: object) -> object:
    """Return a knob's values with `on` and `off` as the words they are: YAML 1.1 takes them for truth values."""
    if not isinstance(values, list):
        return values
    return [("on" if value else "off") if isinstance(value, bool) else value for value in values]


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


def located_here(request: TuneRequest) -> TuneRequest:
    """Make paths of files and folders absolute: whoever runs or resumes the job may stand in another folder."""
    request = dataclasses.replace(request, device=located(request.device))
    path = Path(request.model).expanduser()
    if path.exists():
        request = dataclasses.replace(request, model=str(path.absolute()))
    gate = request.quality
    tasks = tuple(_absolute(task) if is_folder(task) else task for task in gate.tasks)
    gate = dataclasses.replace(gate, tasks=tasks)
    if gate.text_file is not None:
        gate = dataclasses.replace(gate, text_file=_absolute(gate.text_file))
    request = dataclasses.replace(request, quality=gate)
    if request.workload.trace_file is None or uploaded_name(request.workload) is not None:
        return request
    trace_file = _absolute(request.workload.trace_file)
    workload = dataclasses.replace(request.workload, trace_file=trace_file, trace_sha256=_sha256(trace_file))
    return dataclasses.replace(request, workload=workload)


def _sha256(path: str) -> str | None:
    """Note what a trace is as the job is submitted; one that cannot be read is refused, with the reason, later."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


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
