"""Files of requests in every form: what is recognised, what is left out and counted, what is refused with its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import InvalidRequest
from tuner.request_trace import load_trace
from tuner.sessions import FLATTENED
from tuner.talks import NO_QUESTION
from tuner.traces import Trace, clipped

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
7,ChatGPT,388,21,409,Conversation log
52,GPT-4,512,0,512,API log
131,ChatGPT,1204,266,1470,Conversation log
"""
BURST_GPT_8 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
9,1842,6.4,ChatGPT,230,118,348,Conversation log
11,,2.1,GPT-4,74,35,109,API log
"""


def read(folder: Path, content: str, name: str = "file") -> Trace:
    path = folder / name
    path.write_text(content)
    return load_trace(str(path))


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_azure_of_2024_has_offsets(tmp_path: Path) -> None:
    """Times with an offset and six digits are read, also where a later row has none of a second."""
    trace = read(
        tmp_path,
        f"{AZURE_HEADER}2024-05-11 06:00:00.104220+00:00,1877,9\n2024-05-11 06:00:01+00:00,64,21\n",
    )
    assert (trace.form, list(trace.prompt_tokens)) == ("azure", [1877, 64])
    assert pytest.approx([0.0, 0.89578]) == list(trace.offsets_s)


def test_seven_digits_of_a_second_count(tmp_path: Path) -> None:
    """BUG-51: times to 100 ns, out of order, quoted, equal, without a fraction and over midnight are read."""
    moments = ("23:59:59.0030000", "23:59:59.0040000", "23:59:59.0165000", "23:59:59.0160000", "23:59:59.0160000")
    rows = [f"2023-11-16 {moment},{number + 1},1" for number, moment in enumerate(moments)]
    rows += ['"2023-11-17T00:00:00",6,1']
    trace = read(tmp_path, AZURE_HEADER + "\n".join(rows) + "\n")
    assert pytest.approx([0.0, 0.001, 0.013, 0.013, 0.0135, 0.997], abs=1e-9) == list(trace.offsets_s)
    assert list(trace.prompt_tokens) == [1, 2, 4, 5, 3, 6]
    assert trace.notes == ("1 rows stood before earlier ones and were put in order of time",)


@pytest.mark.parametrize(
    "talk",
    [
        {"conversations": [{"from": "human", "value": "Why?"}]},
        {"conversations": [{"from": "human", "value": None}, {"from": "gpt", "value": "So."}]},
        {"conversations": [{"from": "human", "value": 7}, {"from": "gpt", "value": "So."}]},
        {"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "So."}]},
        {"id": "no talk", "conversations": None},
    ],
)
def test_a_talk_of_no_use_is_counted(tmp_path: Path, talk: dict[str, Any]) -> None:
    """BUG-54: one bad entry is left out with its reason and costs no other, as JSON lines and as an array."""
    good = {"conversations": [{"from": "system", "value": "Be brief."}, {"role": "user", "content": "Hi"},
                              {"role": "assistant", "content": "Hello"}]}  # fmt: skip
    for content in (lines(good, talk), json.dumps([talk, good], indent=1)):
        trace = read(tmp_path, content)
        assert [text.prompt for text in trace.texts] == ["Be brief.\nHi"]
        assert len(trace.notes) == 1


def test_times_with_and_without_an_offset_do_not_mix(tmp_path: Path) -> None:
    """BUG-51: a row whose offset is missing could be hours off: it is refused with its line."""
    with pytest.raises(InvalidRequest, match=r":3.*TIMESTAMP is '2024-05-11 07:00:00', without an offset"):
        read(
            tmp_path,
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-11 06:00:00+00:00,1,9\n2024-05-11 07:00:00,2,2\n",
        )


def test_burst_gpt_leaves_failed_calls_out(tmp_path: Path) -> None:
    """BUG-53: rows with 0 response tokens are calls that failed: they are left out, and how many is told."""
    trace = read(tmp_path, BURST_GPT)
    assert (trace.form, list(trace.offsets_s), list(trace.prompt_tokens)) == ("burstgpt", [0.0, 124.0], [388, 1204])
    assert trace.notes == ("1 rows have 0 response tokens, as calls that failed have, and were left out",)


def test_burst_gpt_with_sessions_is_read_by_name(tmp_path: Path) -> None:
    """BUG-53: the form with eight columns has the same three elsewhere."""
    assert list(zip(*_lengths(read(tmp_path, BURST_GPT_8)), strict=True)) == [(230, 118), (74, 35)]


def test_talks_give_a_request_an_answer(tmp_path: Path) -> None:
    """BUG-54: roles decide: each answer to something is a request with all before it as its prompt, others are not."""
    talks = [
        {"id": "a", "conversations": [
            {"from": "human", "value": "List three uses of copper."}, {"from": "gpt", "value": "Wiring, pipes, pans."},
            {"from": "human", "value": "More?"}, {"from": "gpt", "value": "Coins."}]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "As said above ..."}]},
        {"id": "c", "conversations": []},
    ]  # fmt: skip
    trace = read(tmp_path, json.dumps(talks, indent=1), "share.json")
    assert (trace.form, trace.has_times, trace.num_requests) == ("sharegpt", False, 2)
    assert trace.texts[1].prompt == "List three uses of copper.\nWiring, pipes, pans.\nMore?"
    assert f"1 {NO_QUESTION}" in trace.notes


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Why?", "output_tokens": 12},
        {"text_input": "Why?", "output_length": 12},
        {"texts": ["Why?"], "max_tokens": 12},
        {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 12},
    ],
)
def test_prompt_files_of_other_tools(tmp_path: Path, row: dict[str, Any]) -> None:
    """Rows of vLLM, AIPerf and guidellm are prompts, with the length of the output where they say it."""
    trace = read(tmp_path, lines(row))
    assert (trace.form, list(trace.output_tokens)) == ("prompts", [12])
    assert trace.texts[0].prompt.endswith("Why?")


def test_later_turns_are_due_after_an_assumed_answer(tmp_path: Path) -> None:
    """A turn with a delay is due that long after an answer of 500 ms and 30 ms a token, and that is told."""
    trace = read(tmp_path, lines(
        {"timestamp": 1000, "session_id": "s", "input_length": 100, "output_length": 11},
        {"session_id": "s", "delay": 200, "input_length": 50, "output_length": 5},
    ))  # fmt: skip
    assert pytest.approx([0.0, 0.5 + 10 * 0.03 + 0.2]) == list(trace.offsets_s)
    assert list(trace.prompt_tokens) == [100, 161]
    assert trace.notes == (f"1 {FLATTENED}",)


def test_a_turn_without_its_conversation_is_refused(tmp_path: Path) -> None:
    """A row without a time that follows nothing is refused with its line and the field."""
    with pytest.raises(InvalidRequest, match=r":2.*it lacks timestamp"):
        read(tmp_path, lines({"timestamp": 1, "input_length": 1, "output_length": 1},
                             {"session_id": "x", "input_length": 1, "output_length": 1}))  # fmt: skip


def test_clipping_is_told(tmp_path: Path) -> None:
    """Longer prompts and outputs are cut to what was asked for, and how many and how much is told."""
    cut = clipped(read(tmp_path, BURST_GPT_8), 100, 100)
    assert list(zip(*_lengths(cut), strict=True)) == [(100, 100), (74, 35)]
    assert (
        cut.clipping.num_prompts, cut.clipping.prompt_tokens, cut.clipping.num_outputs, cut.clipping.output_tokens,
    ) == (1, 130, 1, 18)  # fmt: skip


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    """BUG-54: an array that ends in the midst is no shorter array."""
    with pytest.raises(InvalidRequest, match=r"entry 3.*the file was cut"):
        read(tmp_path, '[{"prompt": "Why?"},\n{"prompt": "How?"},\n', "cut.json")


def test_a_pointer_is_no_file(tmp_path: Path) -> None:
    """BUG-53: what Git LFS leaves in place of a file is refused with the command that gets it."""
    with pytest.raises(InvalidRequest, match="git lfs pull"):
        read(tmp_path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


def _lengths(trace: Trace) -> tuple[list[int], list[int]]:
    return list(trace.prompt_tokens), list(trace.output_tokens)
