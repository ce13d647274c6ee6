"""Files of prompts: rows of other load generators, talks by role, conversations, arrays as they come line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tuner.prompt_files import ArrayReader, PlainReader, PromptReader, ShareGptReader, has_prompt
from tuner.sessions import FLATTENED
from tuner.talks import EMPTY, NO_ANSWER, NO_QUESTION, NO_TALK, OTHER_ROLE, UNREADABLE
from tuner.traces import FileFault, RowFault, Trace, clipped

SHA256 = "0" * 64
HELLO = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}


def read(*rows: Any) -> Trace:
    reader = PromptReader()
    for row in rows:
        reader.take(json.dumps(row))
    return reader.finish(SHA256)


def read_array(text: str) -> Trace:
    reader = ArrayReader()
    for line in text.splitlines(keepends=True):
        reader.take(line)
    return reader.finish(SHA256)


def talk(*turns: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": text} for role, text in turns], **more}


def read_talks(*talks: Any) -> Trace:
    return read_array(json.dumps([HELLO, *talks], indent=1))


def prompts(trace: Trace) -> list[str]:
    return [text.prompt for text in trace.texts]


@pytest.mark.parametrize(
    ("row", "prompt", "output"),
    [
        ({"prompt": "Why?", "output_tokens": 12}, "Why?", 12),  # vLLM's custom data sets
        ({"prompt": "Why?", "output_tokens_count": 12, "prefix": "Be brief."}, "Be brief.\nWhy?", 12),  # guidellm
        ({"instruction": "Why?", "system_prompt": "Be brief."}, "Be brief.\nWhy?", 0),
        ({"text": "Why?"}, "Why?", 0),  # AIPerf, single turn
        ({"texts": ["Why?"], "max_tokens": 3}, "Why?", 3),
        ({"text_input": "Why?", "output_length": 4}, "Why?", 4),  # AIPerf, trace
        ({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"text": "Why?"}]}]},
         "system: Be brief.\nuser: Why?", 0),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}], "max_completion_tokens": 2},
         'assistant: [{"id": 1}]', 2),
    ],
)  # fmt: skip
def test_rows_of_other_tools(row: dict[str, Any], prompt: str, output: int) -> None:
    """A row of vLLM, guidellm or AIPerf is one prompt, and its output is as long as it says."""
    trace = read(row)
    assert ("prompts", [prompt], [output]) == (trace.form, prompts(trace), list(trace.output_tokens))


def test_times_of_prompts_are_kept() -> None:
    """AIPerf's traces with text are replayed as others are, sorted by time."""
    trace = read({"timestamp": 500, "text_input": "b"}, {"timestamp": 0, "text_input": "a"})
    assert (prompts(trace), list(trace.offsets_s)) == (["a", "b"], [0.0, 0.5])


def test_turns_in_one_row_are_flattened() -> None:
    """Each turn has the prompts before it in its own; without a time it is due its delay after an assumed answer."""
    turns = [{"text": "Why?", "output_length": 11}, {"text": "How?", "delay": 200}]
    trace = read({"session_id": "s", "turns": [{**turns[0], "timestamp": 0}, turns[1]]})
    assert prompts(trace) == ["Why?", "Why?\nHow?"]
    assert pytest.approx([0.0, 0.5 + 10 * 0.03 + 0.2]) == list(trace.offsets_s)
    assert (f"1 {FLATTENED}",) == trace.notes


def test_a_conversations_time_is_its_first_turns() -> None:
    """A time beside the turns says when the first one comes; it is not lost."""
    trace = read({"timestamp": 700, "turns": [{"text": "a"}]}, {"timestamp": 900, "turns": [{"text": "b"}]})
    assert pytest.approx([0.0, 0.2]) == list(trace.offsets_s)


def test_turns_in_several_rows_are_one_conversation() -> None:
    """Rows with the same session_id follow each other; rows of `turns` without one share nothing."""
    trace = read({"session_id": 1, "text": "a"}, {"session_id": 1, "text": "b"}, {"turns": [{"text": "c"}]})
    assert prompts(trace) == ["a", "a\nb", "c"]


def test_inputs_of_aiperf_are_read() -> None:
    """`data` with `payloads` is a file of prompts; messages hold all that was said, and are not joined again."""
    said = [{"role": "user", "content": "Hi"}]
    more = [*said, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Why?"}]
    payloads = [{"messages": said, "max_completion_tokens": 4}, {"messages": more}]
    trace = read_array(json.dumps({"data": [{"session_id": "s", "payloads": payloads}]}, indent=2))
    assert prompts(trace) == ["user: Hi", "user: Hi\nassistant: Hello\nuser: Why?"]
    assert list(trace.output_tokens) == [4, 0]


def test_plain_lines_are_prompts() -> None:
    """One prompt a line, without the blanks around it, and of no known output."""
    reader = PlainReader()
    for line in ("Why?\n", "  How?  \r\n"):
        reader.take(line)
    assert (prompts(reader.finish(SHA256)), reader.num_rows) == (["Why?", "How?"], 2)


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        ({"prompt": ""}, "prompt", "prompt is ''; give a text that is not empty"),
        ({"prompt": 7}, "prompt", "prompt is '7'"),
        ({"prompt": None}, "prompt", "it has no prompt; give a text"),
        ({"question": "Why?", "prefix": 7}, "prefix", "prefix is '7'"),
        ({"texts": ["a", "b"]}, "texts", "its texts are not one; give one prompt a row"),
        ({"messages": [{"content": "Why?"}]}, "messages", "give a list of messages with role and content"),
        ({"turns": []}, "turns", "its turns are no list of objects; correct or remove the row"),
        ({"prompt": "Why?", "max_tokens": 1.5}, "max_tokens", "max_tokens is '1.5'; give a whole number"),
        ({"prompt": "Why?", "max_tokens": 0}, "max_tokens", "its output has 0 tokens"),
        ({"prompt": "Why?", "timestamp": 5}, "timestamp", "it has a timestamp, but the first row has none"),
        ({"title": "Why?"}, "", "it has no prompt; give an object with messages, turns, texts or one of text_input"),
        (["Why?"], "", "it has no prompt"),
    ],
)
def test_a_fault_names_its_field(row: Any, column: str, words: str) -> None:
    """A row is refused by its field, with what stands there and what to do."""
    with pytest.raises(RowFault) as refused:
        read({"prompt": "Hi"}, row)
    assert column == refused.value.column
    assert words in str(refused.value)


def test_a_fault_in_an_array_names_its_entry() -> None:
    """Lines say nothing in an array, so that entries are counted; who reads on meets each bad one once."""
    reader = ArrayReader()
    reader.take('[{"prompt": "a"},\n')
    for number, line in enumerate(('{"prompt": ""},\n', '{"prompt": 1},\n'), start=2):
        with pytest.raises(RowFault) as refused:
            reader.take(line)
        assert (number, "prompt") == (refused.value.entry, refused.value.column)
    reader.take('{"prompt": "b"}]\n')
    assert prompts(reader.finish(SHA256)) == ["a", "b"]


@pytest.mark.parametrize("indent", [None, 0, 4])
def test_an_array_may_stand_on_any_lines(indent: int | None) -> None:
    """Brackets, commas and line ends within texts do not end an element."""
    texts = ["a }, {", "[b]\n]", 'c "quoted" }', "d"]
    assert texts == prompts(read_array(json.dumps([{"prompt": text} for text in texts], indent=indent)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"prompt": "a"}, {"prom', "it is no JSON, or the file was cut"),
        ('[{"prompt": "a"},', "the file was cut"),
        ('[{"prompt": "a"}]\n[{"prompt": "b"}]', "something stands behind the array's end; give one array a file"),
        ('{"meta": 1, "data": [{"prompt": "a"}]}', "no object that begins with `data`"),
        ('[{"title": "a"}, {"title": "b"}]', "it has no prompt"),
    ],
)
def test_an_array_is_read_whole_or_refused(text: str, words: str) -> None:
    """BUG-54: what was cut, is none, or goes on behind its end is an error and not fewer prompts."""
    with pytest.raises(RowFault) as refused:
        read_array(text)
    assert words in str(refused.value)


def test_an_answer_is_a_request_with_all_before_it() -> None:
    """BUG-54: five turns are two requests, whatever the roles are called; a system prompt stands before them."""
    turns = [("user", "a"), ("assistant", "b"), ("Human", "c"), ("chatgpt", "d"), ("human", "e")]
    trace = read_talks(talk(*turns, system="Be brief."))
    assert prompts(trace) == ["Hi", "Be brief.\na", "Be brief.\na\nb\nc"]
    assert [text.answer for text in trace.texts] == ["Hello", "b", "d"]
    assert (f"1 {NO_ANSWER}",) == trace.notes


@pytest.mark.parametrize(
    ("bad", "notes"),
    [
        (talk(), [EMPTY]),
        (talk(("human", "a")), [NO_ANSWER]),
        (talk(("gpt", "a")), [NO_QUESTION]),
        (talk(("human", None), ("gpt", "b")), [UNREADABLE]),
        (talk(("human", ""), ("gpt", "b")), [UNREADABLE]),
        (talk(("human", 7), ("gpt", "b")), [UNREADABLE]),
        (talk(("tool", "a")), [OTHER_ROLE]),
        ({"conversations": ["a"]}, [UNREADABLE]),
        ({"id": "x"}, [NO_TALK]),
        (None, [NO_TALK]),
    ],
)
def test_a_talk_of_no_use_is_counted_by_its_reason(bad: Any, notes: list[str]) -> None:
    """BUG-54: one bad entry costs no other, and its reason is told."""
    trace = read_talks(bad)
    assert (["Hi"], [f"1 {words}" for words in notes]) == (prompts(trace), list(trace.notes))


def test_a_bad_first_entry_does_not_decide_what_the_file_is() -> None:
    """BUG-54: talks are talks where the first entries are none, and those are counted as others are."""
    trace = read_array(json.dumps([{"id": "x"}, None, HELLO]))
    assert ("sharegpt", ["Hi"], (f"2 {NO_TALK}",)) == (trace.form, prompts(trace), trace.notes)


def test_an_array_of_other_objects_is_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all of a file that is no file of requests is kept: after some entries the first one is refused."""
    monkeypatch.setattr("tuner.prompt_files._MAX_UNTOLD", 3)
    reader = ArrayReader()
    with pytest.raises(RowFault, match="it has no prompt") as refused:
        reader.take(json.dumps([{"title": "a"}] * 5) + "\n")
    assert refused.value.entry == 1


def test_an_answer_without_a_question_is_no_prompt() -> None:
    """BUG-54: a talk that begins with an answer or a system turn has its later answers as requests."""
    trace = read_talks(talk(("gpt", "As said"), ("human", "a"), ("gpt", "b")), talk(("system", "s"), ("human", "c"),
                                                                                    ("gpt", "d")))  # fmt: skip
    assert prompts(trace) == ["Hi", "a", "s\nc"]


def test_a_long_value_is_kept_whole() -> None:
    """BUG-54: 40,000 characters are one prompt, and the context counts a byte as a token."""
    trace = read_talks(talk(("human", "x" * 40_000), ("gpt", "y")))
    assert (len(trace.texts[1].prompt), trace.prompt_tokens[1]) == (40_000, 10_000)
    assert trace.longest_tokens >= 40_001


def test_half_a_character_is_replaced_and_told() -> None:
    """BUG-54: half of a pair, which JSON can hold and no tokenizer takes, costs neither row nor file."""
    reader = ShareGptReader()
    reader.take('{"conversations": [{"from": "human", "value": "a\\ud83d"}, {"from": "gpt", "value": "\\ude00"}]}')
    trace = reader.finish(SHA256)
    assert [(text.prompt, text.answer) for text in trace.texts] == [("a?", "?")]
    assert trace.notes == ("1 requests had half a character in their text; a question mark stands in its place",)
    assert prompts(read({"prompt": "a\ud83d"})) == ["a?"]


def test_a_sample_of_many_prompts_is_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """BUG-54: of more prompts than are kept, the same ones are drawn whenever the file is read, and that is told."""
    monkeypatch.setattr("tuner.traces.MAX_TEXTS", 10)
    rows = [{"prompt": f"number {number}"} for number in range(200)]
    one, again = read(*rows), read(*rows)
    assert prompts(one) == prompts(again)
    assert len(set(prompts(one)) - {row["prompt"] for row in rows[:10]}) > 5
    assert one.notes == ("10 of 200 prompts are kept, drawn at random, always the same",)


def test_too_many_prompts_with_times_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample would be another load, so that a longer file with times is refused with what to do."""
    monkeypatch.setattr("tuner.traces.MAX_TEXTS", 2)
    with pytest.raises(FileFault, match="more than 2 requests of text with times; cut out the stretch you mean"):
        read(*({"timestamp": number, "prompt": "a"} for number in range(3)))


def test_clipped_text_is_told_by_estimate() -> None:
    """Before text is encoded, what is cut off is estimated at four bytes a token, and the longest is what is left."""
    cut = clipped(read({"prompt": "x" * 400, "max_tokens": 30}, {"prompt": "short"}), 40, 20)
    told = cut.clipping
    assert (told.num_prompts, told.prompt_tokens, told.num_outputs, told.output_tokens) == (1, 60, 1, 10)
    assert (60, len("short") + 8) == (cut.longest_tokens, cut.longest_untold_tokens)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"timestamp": 0, "input_length": 5, "output_length": 2}, False),
        ({"timestamp": 0, "input_length": 5, "output_length": 2, "text_input": None}, False),
        ({"timestamp": 0, "input_length": 5, "output_length": 2, "text_input": "Why?"}, True),
        ({"prompt": None}, True),
        ({"conversations": None}, True),
    ],
)
def test_a_trace_whose_text_is_null_has_none(row: dict[str, Any], expected: bool) -> None:
    """Rows of a trace are prompts where they have text; a row of prompts without its prompt is still one, and bad."""
    assert expected == has_prompt(row)
