"""A file of requests: recognised by its first line, read line by line, kept while it is the same.

A row that cannot be read is refused with file and line, never skipped; what a format's own rule leaves out is counted.
The formats are in trace_csv, trace_json and prompt_files. Knows nothing of how requests are served.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from tuner.errors import InvalidRequest
from tuner.prompt_files import ArrayReader, PlainReader, has_prompt, reader_of
from tuner.trace_csv import CsvReader
from tuner.trace_json import MooncakeReader
from tuner.traces import FileFault, RowFault, RowReader, Trace

__all__ = ["FileFault", "RowFault", "Trace", "load_trace", "recognised", "require_file"]

#: Of CSV, which is read in little room, and of everything else.
MAX_CSV_BYTES = 4 * 2**30
MAX_BYTES = 2**30
#: Of a line that is no JSON.
MAX_LINE_BYTES = 2**20
_POINTER = "version https://git-lfs"
_GIVE = "give the path of a CSV or JSON file of requests"


def recognised(first_line: str, *, is_plain: bool = False) -> tuple[RowReader, bool]:
    """Return what reads a file that begins with this line, and whether that line is a row itself.

    `is_plain` reads one prompt a line where it is nothing else. Raises RowFault, FileFault.
    """
    require_file(first_line)
    start = first_line.lstrip()
    if start.startswith("["):
        return ArrayReader(), True
    if start.startswith("{"):
        return _of_json(start), True
    if is_plain and not start.startswith(("TIMESTAMP,", "Timestamp,")):
        return PlainReader(), True
    return CsvReader(first_line), False


def require_file(first_line: str) -> None:
    """Refuse what stands in place of a file. Raises FileFault."""
    if first_line.startswith(_POINTER):
        raise FileFault("it is a Git LFS pointer, not the file; get that with `git lfs pull`")


def _of_json(line: str) -> RowReader:
    """Tell rows from documents: the first line of an object that goes on in the next is no JSON by itself."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        is_document = line.rstrip() == "{" or line.startswith('{"data"') or "data" in line[:20]
        return ArrayReader() if is_document else MooncakeReader()
    if isinstance(found.get("data"), list):
        return ArrayReader()
    return reader_of(found) if has_prompt(found) else MooncakeReader()


def load_trace(path: str) -> Trace:
    """Read a trace, or return what was read of the same file before.

    Raises InvalidRequest naming the file, and the line where one is bad.
    """
    try:
        status = Path(path).stat()
    except OSError as error:
        raise _refused(path, f"{error.strerror}; {_GIVE}") from error
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _load(path: str, _modified_ns: int, size: int) -> Trace:
    """Read a trace; asked at every point of a job, so kept while the file is the same."""
    sha256 = hashlib.sha256()
    reader: RowReader | None = None
    number = 0
    try:
        with Path(path).open("rb") as file:
            for number, raw in enumerate(_lines(file), start=1):
                sha256.update(raw)
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if not line.strip():
                    continue
                if reader is None:
                    reader, is_row = recognised(line, is_plain=path.endswith(".txt"))
                    _require_size(reader, size)
                    if not is_row:
                        continue
                reader.take(line)
        if reader is None:
            number = 1
            reader = CsvReader("")
        return reader.finish(sha256.hexdigest())
    except OSError as error:
        raise _refused(path, f"{error.strerror}; {_GIVE}") from error
    except UnicodeDecodeError as error:
        raise _refused(f"{path}:{number}", "it is not UTF-8 text; save it as UTF-8") from error
    except RowFault as fault:
        where = f":{number}" if fault.entry is None else f", entry {fault.entry}"
        raise _refused(f"{path}{where}", str(fault)) from fault
    except FileFault as fault:
        raise _refused(path, str(fault)) from fault


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; of JSON one may be the whole file. Raises FileFault for a longer one."""
    start = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    file.seek(0)
    most = MAX_BYTES if start.startswith((b"{", b"[")) else MAX_LINE_BYTES
    while line := file.readline(most + 1):
        if len(line) > most:
            raise FileFault(f"it has a line of more than {most} bytes; is it a file of requests?")
        yield line


def _require_size(reader: RowReader, size: int) -> None:
    most = MAX_CSV_BYTES if isinstance(reader, CsvReader) else MAX_BYTES
    if size > most:
        raise FileFault(f"it is larger than {most // 2**20} MiB; cut out the stretch you mean")


def _refused(place: str, remedy: str) -> InvalidRequest:
    return InvalidRequest("workload.trace_file", place, remedy)
