"""Results of other benchmark tools, read from their files: the format is recognised, and everything is in our terms.

One file may hold many results. Which tool means what by a word is said in docs/imports.md, and known in
`tuner.foreign`, one module a tool. Nothing of this was metered by us.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tuner.foreign import aiperf, aiperf_records, guidellm, loadgen, sglang_bench, vllm_bench
from tuner.foreign.errors import BadResultFile
from tuner.foreign.fields import Fields, Source, printable
from tuner.foreign.result import ForeignResult

#: Of a file on this machine; per-request details make such files large.
MAX_BYTES = 256 * 2**20
MAX_RESULTS = 500
KNOWN = (
    "vLLM bench serve (JSON of --save-result, or lines of --append-result), SGLang bench_serving (JSON lines), "
    "guidellm (benchmarks.json), AIPerf (profile_export_aiperf.json, profile_export.jsonl), "
    "GenAI-Perf (..._genai_perf.json), MLPerf LoadGen (mlperf_log_summary.txt)"
)
#: Begin of guidellm's report as YAML.
_YAML_STARTS = ("metadata:", "benchmarks:", "args:", "config:")
_QUOTED = 40

#: Of a file: its number from 1 on, and its text.
Line = tuple[int, str]


def read_results(file: Path | bytes, *, name: str = "") -> tuple[ForeignResult, ...]:
    """Return every result of a file, in its order. `name` is what complaints call it.

    Raises BadResultFile: the file cannot be read, its format is not known, or a field of it is wrong.
    """
    if isinstance(file, Path):
        name = name or file.name
        content = _content_of(file)
    else:
        content = file
    source = Source(name=name or "the file", sha256=hashlib.sha256(content).hexdigest())
    results: list[ForeignResult] = []
    for result in _results_in(source, _text_of(source, content)):
        if len(results) == MAX_RESULTS:
            raise BadResultFile(source.name, "results", f"more than {MAX_RESULTS}", "split the file")
        results.append(result)
    if not results:
        raise BadResultFile(source.name, "results", 0, "the file has none; run the benchmark to its end")
    return tuple(results)


def _content_of(path: Path) -> bytes:
    try:
        num_bytes = path.stat().st_size
        if num_bytes > MAX_BYTES:
            remedy = f"give at most {MAX_BYTES} bytes; save the results without details of each request"
            raise BadResultFile(path.name, "size", f"{num_bytes} bytes", remedy)
        return path.read_bytes()
    except OSError as error:
        remedy = "name the file itself" if path.is_dir() else "name a file that can be read"
        raise BadResultFile(str(path), "file", error.strerror, remedy) from error


def _text_of(source: Source, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadResultFile(source.name, f"byte {error.start}", error.reason, "give the file in UTF-8") from error


def _results_in(source: Source, text: str) -> Iterator[ForeignResult]:
    begin = text.lstrip()[:_QUOTED]
    if begin.startswith("{"):
        yield from _results_in_json(source, text)
    elif loadgen.is_summary(text):
        yield from loadgen.read(source, text)
    elif begin.startswith(_YAML_STARTS):
        raise BadResultFile(source.name, "format", "YAML", "guidellm writes JSON too: let it write benchmarks.json")
    else:
        raise _unknown(source, f"text that begins with {printable(begin)!r}" if begin else "an empty file")


def _results_in_json(source: Source, text: str) -> Iterator[ForeignResult]:
    """Read one object, or one a line; a file of one object may be written over several lines."""
    lines = ((number, line) for number, line in enumerate(StringIO(text), 1) if line.strip())
    some = tuple(islice(lines, 2))
    if len(some) > 1 and _is_object(some[0][1]):
        yield from _results_in_lines(source, some[0], chain(some, lines))
    else:
        yield from _results_of(Fields(source, _object_in(source, text, "")))


def _results_in_lines(source: Source, first: Line, lines: Iterable[Line]) -> Iterator[ForeignResult]:
    if aiperf_records.is_record(_object_in(source, first[1], f"line {first[0]}")):
        result = aiperf_records.read(_objects(source, lines))
        yield from () if result is None else (result,)
        return
    for fields in _objects(source, lines):
        yield from _results_of(fields)


def _objects(source: Source, lines: Iterable[Line]) -> Iterator[Fields]:
    for number, line in lines:
        place = f"line {number}"
        yield Fields(source, _object_in(source, line, place), place)


def _results_of(fields: Fields) -> Iterator[ForeignResult]:
    """Return the results of one object, by the tool that wrote it."""
    if aiperf_records.is_record(fields.values):
        result = aiperf_records.read([fields])
        yield from () if result is None else (result,)
    elif guidellm.is_report(fields.values):
        yield from guidellm.read(fields)
    else:
        yield _reader_of(fields)(fields)


def _reader_of(fields: Fields) -> Callable[[Fields], ForeignResult]:
    if sglang_bench.is_result(fields.values):  # before vLLM's, from which it descends
        return sglang_bench.read
    if vllm_bench.is_result(fields.values):
        return vllm_bench.read
    if aiperf.is_summary(fields.values):
        return aiperf.read
    names = ", ".join(printable(name) for name in list(fields.values)[:5])
    raise _unknown(fields.source, f"an object with {names}" if names else "an empty object")


def _object_in(source: Source, text: str, place: str) -> dict[str, Any]:
    """Return the object that a text is in JSON; NaN and Infinity, which Python's tools write, are taken."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        where = place or f"line {error.lineno}, column {error.colno}"
        is_cut = not text.rstrip().endswith("}")
        remedy = "the file ends before it should; copy it anew" if is_cut else "give JSON as the tool wrote it"
        raise BadResultFile(source.name, where, error.msg, remedy) from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise BadResultFile(source.name, place or "content", str(error), "give JSON as the tool wrote it") from error
    if not isinstance(found, dict):
        raise _unknown(source, f"JSON of {type(found).__name__}")
    return found


def _is_object(line: str) -> bool:
    """Whether a line is an object by itself, so that the file is one of JSON lines."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _unknown(source: Source, found: str) -> BadResultFile:
    return BadResultFile(source.name, "format", found, f"it is not known; known are {KNOWN}")
