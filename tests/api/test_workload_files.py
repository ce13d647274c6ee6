"""Uploaded files, read block by block: recognised, summed up, or refused row by row."""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import workload_files
from api.errors import BodyTooLarge, Refusal
from api.workload_files import (
    BadRows,
    Media,
    RowErrorOut,
    TooManyUploads,
    UnknownMedia,
    Uploads,
    WorkloadFile,
    lengths,
    media_of,
)
from db.workloads import NewWorkload
from tuner.request_trace import load_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE = f"{HEADER}2023-11-16 18:15:46,374,44\n2023-11-16 18:15:50,396,109\n2023-11-16 18:15:56,879,55\n"
MOONCAKE = (
    '{"timestamp": 0, "input_length": 10, "output_length": 4}\n'
    '{"timestamp": 120000, "input_length": 30, "output_length": 2}\n'
)


def read(content: str | bytes, media: Media = Media.CSV, block: int = 7) -> NewWorkload:
    file, data = WorkloadFile(media), content if isinstance(content, bytes) else content.encode()
    for start in range(0, len(data), block):
        file.feed(data[start : start + block])
    return file.finish()


def errors_of(content: str | bytes, media: Media = Media.CSV) -> tuple[int, list[RowErrorOut]]:
    with pytest.raises(BadRows) as refused:
        read(content, media)
    return refused.value.num_errors, list(refused.value.errors)


@given(block=st.integers(1, 200))
def test_an_azure_trace_is_summed_up(block: int) -> None:
    """In whatever blocks it comes, a CSV trace gives the same rows, duration, rates, lengths and hash."""
    new = read(AZURE, block=block)
    assert ("azure", 3, len(AZURE)) == (new.form, new.num_rows, new.num_bytes)
    assert hashlib.sha256(AZURE.encode()).hexdigest() == new.sha256
    assert AZURE.encode() == zlib.decompress(new.compressed)
    assert new.summary == {
        "duration_s": 10.0,
        "mean_rate_per_s": 0.2,
        "peak_rate_per_s": 0.3,
        "prompt_tokens": {"mean": 549.6666666666666, "min": 374, "p50": 396, "p90": 879, "p99": 879, "max": 879},
        "output_tokens": {"mean": 208 / 3, "min": 44, "p50": 55, "p90": 109, "p99": 109, "max": 109},
        "longest_tokens": 934,
    }


def test_json_lines_are_recognised() -> None:
    """Mooncake's lines are a trace, lines with `prompt` and plain lines are prompts."""
    trace = read(MOONCAKE, Media.JSON_LINES)
    assert (trace.form, trace.summary["duration_s"], trace.summary["peak_rate_per_s"]) == ("mooncake", 120.0, 1 / 60)
    prompts = read('{"prompt": "Why?"}\n\n{"prompt": "Name three rivers.", "id": 7}\n', Media.JSON_LINES)
    assert (prompts.form, prompts.num_rows, prompts.summary["prompt_characters"]["max"]) == ("prompts", 2, 18)
    plain = read("Why?\r\n\r\nName three rivers.", Media.TEXT)
    assert ("prompts", 2, prompts.summary) == (plain.form, plain.num_rows, plain.summary)
    assert read(AZURE, Media.TEXT).form == "azure"


def test_what_is_accepted_can_be_searched(tmp_path: Path) -> None:
    """A file that was found good reads as a trace of the same rows, duration and longest request (BUG-22)."""
    for content in (AZURE, "\ufeff" + AZURE.replace("\n", "\r\n"), "\n" + MOONCAKE, MOONCAKE.replace("\n", "\n\n")):
        media = Media.JSON_LINES if "{" in content else Media.CSV
        new, path = read(content, media), tmp_path / "trace"
        path.write_bytes(content.encode())
        trace = load_trace(str(path))
        assert (new.num_rows, new.sha256) == (len(trace.offsets_s), trace.sha256)
        assert (new.summary["longest_tokens"], new.summary["duration_s"]) == (trace.longest_tokens, trace.offsets_s[-1])
        assert new.summary["mean_rate_per_s"] == pytest.approx(new.num_rows / trace.period_s)


def test_every_bad_row_is_told_with_what_is_right() -> None:
    """The report names row, column, value and what is right, of up to 20 rows, and counts the others."""
    rows = [
        "noon,374,44",
        "2023-11-16 18:15:50,many,4",
        "2023-11-16 18:15:51,12,0",
        "2023-11-16 18:15:52,12",
        "a\rb,1,2",
    ]
    num_errors, errors = errors_of(AZURE + "\n".join(rows))
    assert (num_errors, len(errors)) == (5, 5)
    assert [
        RowErrorOut(row=5, column="TIMESTAMP", value="'noon'", expected="a date and time"),
        RowErrorOut(row=6, column="ContextTokens", value="'many'", expected="a whole number"),
        RowErrorOut(row=7, column="GeneratedTokens", value="0", expected="1 to 1000000"),
        RowErrorOut(row=8, column=None, value="'2023-11-16 18:15:52,12'", expected="3 fields"),
    ] == errors[:4]
    num_errors, errors = errors_of(
        MOONCAKE + '{"timestamp": NaN, "input_length": 1, "output_length": 1}\n' * 30, Media.JSON_LINES
    )
    assert (num_errors, len(errors), errors[0].row, errors[0].column) == (30, 20, 3, "timestamp")


@pytest.mark.parametrize(
    ("content", "media", "expected"),
    [
        ("time,in,out\n1,2,3\n", Media.CSV, RowErrorOut(
            row=1, column=None, value="'time,in,out'", expected="CSV with TIMESTAMP,ContextTokens,GeneratedTokens "
            "(Azure) or Timestamp, Request tokens, Response tokens (BurstGPT), or JSON lines with timestamp, "
            "input_length, output_length, or with prompts")),
        (b"Why?\n\xff\xfe\n", Media.TEXT, RowErrorOut(row=2, column=None, value=None, expected="UTF-8 text")),
        ('{"prompt": "a"}\n{"prompt": 7}\n', Media.JSON_LINES, RowErrorOut(
            row=2, column="prompt", value="7", expected="a text that is not empty")),
        ('{"prompt": "a"}\n{"prompt": "\\ud800', Media.JSON_LINES, RowErrorOut(
            row=2, column=None, value="'{\"prompt\": \"\\\\ud800'", expected="a JSON object")),
        ('{"timestamp": 1}\n', Media.JSON_LINES, RowErrorOut(
            row=1, column="input_length", value=None,
            expected="an object with timestamp, input_length, output_length")),
    ],
)  # fmt: skip
def test_the_first_bad_row(content: str | bytes, media: Media, expected: RowErrorOut) -> None:
    """Wrong columns, bytes that are no text, and fields of the wrong type are told as they were found."""
    assert expected == errors_of(content, media)[1][0]


def test_an_entry_of_an_array_is_named_by_its_number() -> None:
    """Lines say nothing in an array: the row of the report is the entry, from 1 on."""
    content = '[\n {"prompt": "Why?"},\n {"prompt": "How?"},\n {"prompt": 7}\n]\n'
    num_errors, errors = errors_of(content, Media.JSON_LINES)
    assert (num_errors, [error.row for error in errors], [error.column for error in errors]) == (1, [3], ["prompt"])


@pytest.mark.parametrize(
    ("content", "media", "words"),
    [
        (HEADER, Media.CSV, "it has no requests"),
        (MOONCAKE.splitlines()[0], Media.JSON_LINES, "two requests at different times"),
        ("", Media.CSV, "the file has no rows"),
        ("\n \n", Media.TEXT, "the file has no rows"),
        ("x" * 300_000, Media.TEXT, "row 1 is longer than 200000 bytes"),
        ("a\n" + "x" * 300_000 + "\nb", Media.TEXT, "row 2 is longer than 200000 bytes"),
    ],
)
def test_files_without_a_use_are_refused(content: str, media: Media, words: str) -> None:
    """Empty files, single requests and endless lines are refused in a sentence, never kept."""
    with pytest.raises(Refusal, match=words):
        read(content, media, block=1000)


def test_no_more_is_read_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and rows beyond the bounds are refused as soon as they come (BUG-29)."""
    monkeypatch.setattr(workload_files, "MAX_BYTES", 1000)
    with pytest.raises(BodyTooLarge, match="larger than 1000 bytes"):
        read("x" * 50 + "\n" * 1000, Media.TEXT)
    monkeypatch.setattr(workload_files, "MAX_ROWS", 3)
    assert read("a\nb\nc\n", Media.TEXT).num_rows == 3
    with pytest.raises(Refusal, match="more than 3 rows"):
        read("a\nb\nc\nd\n", Media.TEXT)


@given(content=st.binary(max_size=200), media=st.sampled_from(Media))
def test_no_bytes_break_it(content: bytes, media: Media) -> None:
    """Whatever comes is either stored or refused with a sentence."""
    new = None
    with contextlib.suppress(Refusal):
        new = read(content, media)
    assert new is None or zlib.decompress(new.compressed) == content


def test_few_files_come_in_at_once() -> None:
    """No more uploads run at once than are counted, and one that ended in whatever way makes room."""
    uploads = Uploads()
    with uploads.one(), uploads.one(), pytest.raises(TooManyUploads, match="2 files are being uploaded"), uploads.one():
        pass
    with contextlib.suppress(Refusal), uploads.one():
        raise Refusal("a bad row")
    with uploads.one(), uploads.one():
        pass


def test_only_media_that_say_what_comes_are_taken() -> None:
    """Parameters of the type do not matter; another type is refused with those that there are."""
    assert media_of("Text/CSV; charset=utf-8") == Media.CSV
    with pytest.raises(UnknownMedia, match="Content-Type is 'image/png': say text/csv for CSV"):
        media_of("image/png")


@given(values=st.lists(st.integers(1, 100), min_size=1))
def test_percentiles_are_values_that_occur(values: list[int]) -> None:
    """Each percentile is one of the values, with as many values at or below it as it says."""
    found = lengths(values)
    for percent in (50, 90, 99):
        value = found[f"p{percent}"]
        assert value in values
        assert sum(one <= value for one in values) >= percent / 100 * len(values)
