"""Which tool wrote a file, and what is said of files that are none of theirs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.foreign import test_aiperf, test_guidellm, test_loadgen, test_sglang_bench, test_vllm_bench
from tuner import foreign_results
from tuner.foreign.errors import BadResultFile
from tuner.foreign_results import read_results

FILES = {
    "vllm": json.dumps(test_vllm_bench.SUMMARY),
    "sglang": json.dumps(test_sglang_bench.RUN),
    "guidellm": json.dumps(test_guidellm.report(test_guidellm.benchmark({"type_": "synchronous"}))),
    "aiperf": json.dumps(test_aiperf.TOP | test_aiperf.METRICS),
    "loadgen": test_loadgen.SERVER,
}


@pytest.mark.parametrize("tool", FILES)
def test_the_format_is_recognised(tool: str, tmp_path: Path) -> None:
    """Each tool's file is known by its content, from a path as from bytes, with and without a byte order mark."""
    path = tmp_path / "results"
    path.write_text(FILES[tool], encoding="utf-8")
    (result,) = read_results(path)
    assert (result.tool, result.sha256) == (tool, hashlib.sha256(path.read_bytes()).hexdigest())
    assert [one.tool for one in read_results(b"\xef\xbb\xbf" + path.read_bytes())] == [tool]


@pytest.mark.parametrize("tool", ["vllm", "sglang", "guidellm", "aiperf"])
def test_indented_json_is_the_same(tool: str) -> None:
    """A file that was written over many lines is one object, not one a line."""
    indented = json.dumps(json.loads(FILES[tool]), indent=2)
    assert [result.tool for result in read_results(indented.encode())] == [tool]


@pytest.mark.parametrize("tool", ["vllm", "sglang", "guidellm", "aiperf"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_a_file_that_was_cut_is_refused(tool: str, share: float) -> None:
    """BUG-55: a file cut short is an error that says so, not fewer results."""
    cut = FILES[tool][: int(len(FILES[tool]) * share)].rstrip("}")
    with pytest.raises(BadResultFile, match=r"cut\.json: line 1, column \d+ is .*: the file ends before it should"):
        read_results(cut.encode(), name="cut.json")


def test_a_line_that_was_cut_is_named() -> None:
    """BUG-55: of a file of lines the broken one is named."""
    content = f"{FILES['vllm']}\n{FILES['vllm'][:100]}"
    with pytest.raises(
        BadResultFile, match=r"bench\.jsonl: line 2 is .*: the file ends before it should; copy it anew"
    ):
        read_results(content.encode(), name="bench.jsonl")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "format is 'an empty file': it is not known; known are vLLM bench serve"),
        (b" \n\n", "format is 'an empty file'"),
        (b"{}", "format is 'an empty object'"),
        (b'{"a": 1, "b": 2}', "format is 'an object with a, b': it is not known"),
        (b"[1]", "format is \"text that begins with '[1]'\""),
        (b"TIMESTAMP,ContextTokens", "format is \"text that begins with 'TIMESTAMP,ContextTokens'\""),
        (b"\xff\xfe{\x00", "byte 0 is 'invalid start byte': give the file in UTF-8"),
        (b'{"a": ' * 5000, "content is "),
        (b'{"metadata": {}, "benchmarks": []}', "results is 0: the file has none; run the benchmark to its end"),
        (b'{"metadata": {}, "benchmarks": [7]}', "benchmarks[0] is 7: give an object, or leave it out"),
    ],
)
def test_what_is_no_result_file_is_refused(content: bytes, words: str) -> None:
    """A format that is not known is answered with those that are; everything else with field, value and remedy."""
    with pytest.raises(BadResultFile) as raised:
        read_results(content, name="f")
    assert str(raised.value).startswith(f"f: {words}")


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is not there, is a folder or is too large is refused with the remedy."""
    with pytest.raises(BadResultFile, match="file is 'No such file or directory': name a file that can be read"):
        read_results(tmp_path / "none.json")
    with pytest.raises(BadResultFile, match="file is 'Is a directory': name the file itself"):
        read_results(tmp_path)
    monkeypatch.setattr(foreign_results, "MAX_BYTES", 3)
    (tmp_path / "large").write_text(FILES["vllm"])
    with pytest.raises(BadResultFile, match=r"large: size is '.* bytes': give at most 3 bytes"):
        read_results(tmp_path / "large")


def test_more_results_than_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of too many results is refused, not cut."""
    monkeypatch.setattr(foreign_results, "MAX_RESULTS", 2)
    with pytest.raises(BadResultFile, match="results is 'more than 2': split the file"):
        read_results("\n".join([FILES["vllm"]] * 3).encode())


def test_texts_can_be_stored_and_shown() -> None:
    """NUL, escapes of terminals, half surrogates and long texts of a file become one short printable line."""
    summary = json.loads(FILES["vllm"]) | {"model_id": "a\0b\x1b[31m\ud800" + "x" * 500, "label": " \n "}
    (result,) = read_results(json.dumps(summary).encode())
    assert result.model is not None
    assert result.model.startswith("a b [31m x")
    assert (len(result.model), result.model.isprintable(), result.label) == (200, True, None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data(), tool=st.sampled_from(["vllm", "sglang", "guidellm", "aiperf"]), value=json_values)
def test_whatever_stands_in_a_field_is_read_or_named(data: st.DataObject, tool: str, value: object) -> None:
    """With any JSON in the place of any field of the top, a file is read or refused as BadResultFile."""
    document = json.loads(FILES[tool])
    document[data.draw(st.sampled_from(sorted(document)))] = value
    try:
        results = read_results(json.dumps(document).encode())
    except BadResultFile:
        return
    assert all(result.sha256 for result in results)
