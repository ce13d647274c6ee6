"""Recorded traces: both public formats, and the line of what is wrong with them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InvalidRequest
from tuner.request_trace import load_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}
"""
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def written(folder: Path, content: str | bytes, name: str = "trace") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_azure_csv_is_read(tmp_path: Path) -> None:
    """Times are told from the first request on, to the microsecond; the longest is the largest sum of both."""
    trace = load_trace(written(tmp_path, AZURE))
    assert pytest.approx((0.0, 4.314579, 4.541877), abs=2e-6) == tuple(trace.offsets_s)
    assert (list(trace.prompt_tokens), list(trace.output_tokens)) == ([374, 396, 879], [44, 109, 55])
    assert trace.longest_tokens == 879 + 55


def test_mooncake_lines_are_read(tmp_path: Path) -> None:
    """Milliseconds become seconds; fields that nobody needs are let be."""
    trace = load_trace(written(tmp_path, MOONCAKE))
    assert pytest.approx((0.0, 3.053)) == tuple(trace.offsets_s)
    assert (list(trace.prompt_tokens), list(trace.output_tokens)) == ([6955, 6472], [52, 26])
    assert pytest.approx(2 * 3.053) == trace.period_s


def test_time_zones_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    """The later Azure traces carry an offset, and files come from any editor; both give the same trace."""
    other = AZURE.replace(",374", "+00:00,374").replace(",396", "+00:00,396").replace(",879", "+00:00,879")
    plain, zoned = load_trace(written(tmp_path, AZURE)), load_trace(written(tmp_path, other, "zoned"))
    windows = load_trace(written(tmp_path, b"\xef\xbb\xbf" + AZURE.replace("\n", "\r\n").encode(), "windows"))
    assert plain.offsets_s == zoned.offsets_s == windows.offsets_s


@settings(max_examples=30, deadline=None)
@given(times_ms=st.lists(st.integers(0, 10**6), min_size=2, max_size=30, unique=True))
def test_rows_are_put_in_order(tmp_path_factory: pytest.TempPathFactory, times_ms: list[int]) -> None:
    """Whatever order rows stand in, requests come by rising time, none lost."""
    lines = [
        json.dumps({"timestamp": time_ms, "input_length": 1 + time_ms % 7, "output_length": 2}) for time_ms in times_ms
    ]
    trace = load_trace(written(tmp_path_factory.mktemp("traces"), "\n".join(lines)))
    ordered = sorted(times_ms)
    assert pytest.approx([(time_ms - ordered[0]) / 1e3 for time_ms in ordered]) == list(trace.offsets_s)
    assert [1 + time_ms % 7 for time_ms in ordered] == list(trace.prompt_tokens)


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    """The same path with other content is another trace."""
    path = written(tmp_path, MOONCAKE)
    before = load_trace(path)
    assert before is load_trace(path)
    written(tmp_path, MOONCAKE.replace("26", "1026"))
    assert before.sha256 != load_trace(path).sha256


#: name -> (content, line or nothing, what the sentence holds).
BAD: dict[str, tuple[str | bytes, str, str]] = {
    "other columns": ("time,in,out\n1,2,3\n", ":1", "its columns are time, in, out; give CSV with TIMESTAMP,"),
    "nothing": ("", ":1", "its columns are none"),
    "a field too few": (f"{HEADER}2023-11-16 18:15:46,374\n", ":2", "it has 2 fields, not 3"),
    "a time that is none": (f"{HEADER}noon,374,44\n", ":2", "TIMESTAMP is 'noon'; give a date and time"),
    "a count that is none": (f"{AZURE}2023-11-16 18:15:59,many,4\n", ":5", "ContextTokens is 'many'"),
    "no tokens": (f"{AZURE}2023-11-16 18:15:59,12,0\n", ":5", "its output has 0 tokens; give 1 to 1000000"),
    "too many tokens": (f"{AZURE}2023-11-16 18:15:59,1000001,4\n", ":5", "its prompt has 1000001 tokens"),
    "a broken line": (MOONCAKE + '{"timestamp": 1,\n', ":3", "it is no JSON"),
    "a lack": (MOONCAKE + '{"timestamp": 1}\n', ":3", "it lacks input_length, output_length"),
    "a list": (MOONCAKE + "[1, 2, 3]\n", ":3", "it lacks timestamp, input_length, output_length"),
    "a fraction": (MOONCAKE.replace("26,", "26.5,"), ":2", "output_length is '26.5'; give a whole number"),
    "a word for a time": (MOONCAKE.replace("30535", '"late"'), ":2", "timestamp is 'late'"),
    "a time beyond all": (MOONCAKE.replace("30535", "1e999"), ":2", "timestamp is 'inf'"),
    "not UTF-8": (f"{HEADER}2023".encode() + b"\xff", ":2", "it is not UTF-8 text"),
    "one request": (MOONCAKE.splitlines()[0], "", "it needs two requests at different times"),
    "one instant": (MOONCAKE.replace("30535", "27482"), "", "it needs two requests at different times"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    """No row is skipped: the refusal names the file, the line and the fault, in one line."""
    content, line, words = BAD[name]
    path = written(tmp_path, content)
    with pytest.raises(InvalidRequest) as refused:
        load_trace(path)
    assert ("workload.trace_file", f"{path}{line}") == (refused.value.field, refused.value.value)
    assert words in refused.value.remedy
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A path that leads nowhere, or to a folder, is refused by its name."""
    with pytest.raises(InvalidRequest, match="No such file or directory; give the path"):
        load_trace(str(tmp_path / "missing.csv"))
    with pytest.raises(InvalidRequest, match="Is a directory; give the path"):
        load_trace(str(tmp_path))


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    """What would not fit in memory several times over is refused by its size alone."""
    path = written(tmp_path, "")
    Path(path).write_text('{"prompt": "a"}\n')
    os.truncate(path, 2**30 + 1)
    with pytest.raises(InvalidRequest, match="larger than 1024 MiB"):
        load_trace(path)


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    """A file that is no text of lines is refused after its first megabyte, in a message of one short line."""
    with pytest.raises(InvalidRequest, match="a line of more than 1048576 bytes; is it a file of requests") as refused:
        load_trace(written(tmp_path, b"\0" * (2 * 2**20)))
    assert len(str(refused.value)) < 500
