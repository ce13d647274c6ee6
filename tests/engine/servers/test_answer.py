"""Transcripts of streams, in milliseconds after a request's arrival, to its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import FinishReason, Request, RequestRecord
from engine.servers.answer import AnswerReader
from engine.servers.sse import SseParser
from engine.servers.tokens import spread
from tests.engine.requests import make_request
from tests.engine.servers.scripted_server import DONE, delta, frame, usage, words

Transcript = Sequence[tuple[float, bytes]]


def read(transcript: Transcript, *, goes_on: bool = False, is_cut: bool = False, **changes: Any) -> RequestRecord:
    """Read a stream that begins at 0 s and ends after its last piece; `is_cut`: it was cancelled there."""
    request: Request = make_request(**{"max_tokens": 64, "ignore_eos": goes_on} | changes)
    reader, parser = AnswerReader(request, goes_on=goes_on), SseParser()
    for after_ms, piece in transcript:
        for event in parser.feed(piece):
            reader.take(event, after_ms / 1e3)
    reader.finish(parser.finish(), transcript[-1][0] / 1e3 if transcript else 0.0)
    return reader.record(arrival_s=0.0, sent_s=0.0, is_cancelled=is_cut)


def ms(times_s: Sequence[float] | float | None) -> list[float] | float | None:
    if times_s is None:
        return None
    return round(1e3 * times_s, 6) if isinstance(times_s, float) else [round(1e3 * one, 6) for one in times_s]


def test_one_chunk_carries_several_tokens() -> None:
    """BUG-01: tokens are counted by usage, TPOT is per token, and the chunks' times are kept beside."""
    texts = ((100, "a"), (140, "b c d e"), (180, "f g h i"), (190, "j"))
    record = read([*((at, words(text)) for at, text in texts), (191, words("", finish="stop")), (191, usage(10)),
                   (191, DONE)])  # fmt: skip

    assert len(record.token_times_s) == 10
    assert ms(record.ttft_s) == 100
    assert ms(record.tpot_s) == 10
    assert ms(record.chunk_times_s) == [100, 140, 180, 190]
    assert (record.finish_reason, record.notes) == (FinishReason.STOP, ())


def test_tokens_of_every_chunk_are_told_by_running_usage() -> None:
    """BUG-01: a server that counts along says which chunk each token came in, also of an answer that was cut off."""

    def piece(text: str, count: int) -> bytes:
        return frame({"choices": [{"text": text, "finish_reason": None}], "usage": {"completion_tokens": count}})

    pieces = [(100, piece("a", 1)), (140, piece("b c d e", 5)), (180, piece("", 6))]
    whole = read([*pieces, (190, piece("j", 7)), (190, words("", finish="stop")), (191, usage(7)), (191, DONE)])
    cut = read(pieces, is_cut=True)

    assert ms(whole.token_times_s) == [100, 140, 140, 140, 140, 180, 190]
    assert ms(cut.token_times_s) == [100, 140, 140, 140, 140, 180]
    assert (cut.finish_reason, cut.notes) == (FinishReason.CANCELLED, ())


def test_tokens_of_every_chunk_are_told_by_their_ids() -> None:
    """BUG-01: ids in the chunks count, and are kept."""
    pieces = [(10, words("a", token_ids=[5])), (20, words("b c", token_ids=[6, 7])), (30, words("", token_ids=[8]))]
    record = read([*pieces, (31, words("", finish="length")), (31, usage(4)), (31, DONE)])

    assert record.token_ids == (5, 6, 7, 8)
    assert ms(record.token_times_s) == [10, 20, 20, 30]


@pytest.mark.parametrize(
    "first",
    [
        delta(role="assistant", content=""),
        delta(role="assistant", content=None),
        delta(),
        frame({"choices": [{"index": 0, "finish_reason": None}]}),
        frame({"choices": [{"delta": {"role": "assistant"}}], "usage": {"completion_tokens": 0}}),
    ],
)
def test_a_chunk_without_words_is_no_token(first: bytes) -> None:
    """BUG-02: a role or nothing is no first token, and an empty delta with a finish reason no last one."""
    said = [(220, delta(content="Hi")), (240, delta(content=" there")), (260, delta(content="!"))]
    record = read([(5, first), *said, (261, delta("stop")), (261, usage(3)), (262, DONE)])

    assert ms(record.token_times_s) == [220, 240, 260]
    assert ms(record.tpot_s) == 20
    assert record.text == "Hi there!"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_shown_thinking_counts_as_output(name: str) -> None:
    """BUG-03 a, b: TTFT is the first thought's, the answer's begin is told apart, all tokens count."""
    thoughts = [(at, delta(**{name: "hm "})) for at in (80, 100, 120, 140)]
    said = [(160, delta(content="So")), (180, delta(content="."))]
    record = read([*thoughts, *said, (181, delta("stop")), (181, usage(6, reasoning=4)), (181, DONE)])

    assert (ms(record.ttft_s), ms(record.first_answer_s), ms(record.tpot_s)) == (80, 160, 20)
    assert (len(record.token_times_s), record.num_reasoning_tokens, record.num_hidden_tokens) == (6, 4, 0)
    assert (record.text, record.notes) == ("So.", ())


def test_hidden_thinking_is_flagged() -> None:
    """BUG-03 c: TPOT is over the tokens that were shown, never over those that nobody saw."""
    said = [(160, delta(content="So")), (180, delta(content="."))]
    record = read([*said, (181, delta("stop")), (181, usage(6, reasoning=4)), (181, DONE)])

    assert (ms(record.ttft_s), ms(record.tpot_s)) == (160, 20)
    assert (len(record.token_times_s), record.num_hidden_tokens, record.num_reasoning_tokens) == (2, 4, 4)
    assert record.notes == ("hidden_reasoning",)


def test_thinking_without_an_answer_is_a_success() -> None:
    """BUG-03 d: four thoughts and no answer are four tokens with times, flagged."""
    thoughts = [(at, delta(reasoning_content="hm ")) for at in (80, 100, 120, 140)]
    record = read([*thoughts, (141, delta("length")), (141, usage(4, reasoning=4)), (141, DONE)], max_tokens=4)

    assert (record.finish_reason, record.error) == (FinishReason.LENGTH, None)
    assert (ms(record.ttft_s), ms(record.tpot_s), record.first_answer_s) == (80, 20, None)
    assert record.notes == ("no_answer",)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_frames_without_tokens_do_no_harm(end: bytes) -> None:
    """BUG-05: comments, keep-alives, an empty choices list and what follows [DONE] leave one plain success."""
    lines = (b": ping\n\n", b":\n", b"id: 7\n: ping\n\n", b"event: ping\ndata:\n\n",
             b"data:" + words("a")[6:], words("", finish="stop"), usage(1), DONE, b": bye\n\n")  # fmt: skip
    record = read([(10 * number, line.replace(b"\n", end)) for number, line in enumerate(lines)])

    assert (record.finish_reason, record.error, record.notes) == (FinishReason.STOP, None, ())
    assert ms(record.token_times_s) == [40]


def test_cut_frames_lose_nothing() -> None:
    """BUG-06: glued and cut frames give all tokens, whole characters and gaps of exactly 0."""
    cafe = words("café")
    at = cafe.index(b"\xc3") + 1
    glued = words("a") + words("b") + words("c")
    pieces = [glued, cafe[:at], cafe[at:-1], cafe[-1:] + words("", finish="stop") + usage(4) + DONE[:9], DONE[9:]]
    record = read([(10 * number, piece) for number, piece in enumerate(pieces)])

    assert record.text == "abccafé"
    assert ms(record.token_times_s) == [0, 0, 0, 30]
    assert record.error is None


TEN = [(10.0 * number, words("w")) for number in range(1, 11)]


def test_a_stream_that_just_ends_is_a_failure() -> None:
    """BUG-07 a: no finish reason and no marker is a failure that keeps its tokens."""
    record = read(TEN)

    assert record.finish_reason is FinishReason.ERROR
    assert record.error == "ended_early: the stream ended after 10 tokens, with neither a finish_reason nor [DONE]"
    assert len(record.token_times_s) == 10


def test_a_marker_without_a_finish_reason_is_a_success() -> None:
    """BUG-07 b: the marker was seen; that no reason was given is noted."""
    record = read([*TEN, (101, usage(10)), (101, DONE)])

    assert (record.finish_reason, record.error, record.notes) == (FinishReason.STOP, None, ("no_finish_reason",))


@pytest.mark.parametrize("counted", [[], [(101.0, usage(10))]])
def test_a_stop_though_told_to_go_on_is_a_failure(counted: list[tuple[float, bytes]]) -> None:
    """BUG-07 c: 10 of 1024 tokens that were to come are a failure, whether the server counts them or not."""
    record = read([*TEN, (101, words("", finish="stop")), *counted, (102, DONE)], goes_on=True, max_tokens=1024)

    assert record.error == "stopped_early: finish_reason 'stop' after 10 of 1024 tokens, though told to go on"
    assert len(record.token_times_s) == 10


def test_a_full_answer_that_was_told_to_go_on_is_a_success() -> None:
    """An answer with all its tokens is a success, also where the last one happens to end the sequence."""
    full = read([*TEN, (101, words("", finish="length")), (101, usage(10)), (101, DONE)], goes_on=True, max_tokens=10)
    last = read([*TEN, (101, words("", finish="stop")), (101, usage(10)), (101, DONE)], goes_on=True, max_tokens=10)

    assert [full.finish_reason, last.finish_reason] == [FinishReason.LENGTH, FinishReason.STOP]


def test_zero_and_one_token() -> None:
    """BUG-09: without tokens there is no TTFT, with one no TPOT; neither is 0."""
    none = read([(30, words("", finish="stop")), (30, usage(0)), (30, DONE)])
    one = read([(100, words("a")), (100, words("", finish="stop")), (100, usage(1)), (100, DONE)])
    pieces = [(100 + 20 * number, words("w")) for number in range(21)]
    many = read([*pieces, (500, words("", finish="stop")), (500, usage(21)), (500, DONE)])

    assert [record.finish_reason for record in (none, one, many)] == [FinishReason.STOP] * 3
    assert [ms(record.ttft_s) for record in (none, one, many)] == [None, 100, 100]
    assert [ms(record.tpot_s) for record in (none, one, many)] == [None, None, 20]


@pytest.mark.parametrize(
    ("piece", "error"),
    [
        (frame({"error": {"message": "out of\nmemory", "type": "oom"}}), "server_error: out of memory (oom)"),
        (frame({"error": "no slot"}), "server_error: no slot"),
        (frame({"object": "error", "message": "gone", "code": 500}), "server_error: gone (500)"),
        (b'event: error\ndata: {"detail": "gone"}\n\n', "server_error: gone"),
        (b"error: {}\n\n", "server_error: {}"),
        (b"data: <html>\n\n", "bad_event: not a JSON object: '<html>'"),
        (b"data: 7\n\n", "bad_event: not a JSON object: '7'"),
        (b'data: {"choices": {"a": 1}}\n\n', "bad_event: choices is \"{'a': 1}\", not a list of objects"),
        (words("", finish="abort"), "server_error: the server ended the request with finish_reason 'abort'"),
    ],
)
def test_an_error_in_a_stream_is_a_failure(piece: bytes, error: str) -> None:
    """BUG-07: an error inside a 200, in any dialect, is a named failure that keeps the tokens before it."""
    record = read([(10, words("a")), (20, words("b")), (30, piece), (30, DONE)])

    assert (record.finish_reason, record.error) == (FinishReason.ERROR, error)
    assert ms(record.token_times_s) == [10, 20]


def test_a_server_that_does_not_stop_is_a_failure() -> None:
    """A stream that goes on far beyond what was asked for ends as a failure."""
    record = read([(number, words("a")) for number in range(100)], max_tokens=2)

    assert record.error is not None
    assert record.error.startswith("runaway: 73 pieces came where 2 tokens were asked")


def test_without_usage_chunks_are_counted_and_noted() -> None:
    """A server that counts nothing has a token for each chunk, and the record says so."""
    record = read([*TEN, (101, words("", finish="stop")), (101, DONE)])

    assert (len(record.token_times_s), record.notes) == (10, ("no_usage",))


def test_tokens_that_were_never_shown_have_no_times() -> None:
    """An answer of nothing but tokens without text has a count and no latency."""
    record = read([(30, words("", finish="stop")), (30, usage(1)), (30, DONE)])

    assert (record.token_times_s, record.num_hidden_tokens, record.ttft_s) == ((), 1, None)


def test_prompt_tokens_are_the_servers() -> None:
    """The server's tokenizer counts the prompt, not the number of ids that were meant."""
    record = read([(1, words("a")), (1, words("", finish="stop")), (1, usage(1, num_prompt=77)), (1, DONE)])

    assert record.num_prompt_tokens == 77


NAMES = ("choices", "delta", "text", "content", "reasoning", "usage", "error", "token_ids", "finish_reason",
         "completion_tokens", "prompt_tokens", "completion_tokens_details", "reasoning_tokens")  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(allow_nan=False) | st.sampled_from(["", "a", "stop"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), max_size=4), st.booleans())
def test_no_frame_breaks_the_reader(frames: list[dict[str, Any]], is_cut: bool) -> None:
    """BUG-05, BUG-07: whatever JSON a server sends, there is a record whose times rise and whose failure has a name."""
    record = read([(float(number), frame(one)) for number, one in enumerate(frames)], is_cut=is_cut)

    assert list(record.token_times_s) == sorted(record.token_times_s)
    assert (record.error is None) == (record.finish_reason is not FinishReason.ERROR)
    assert record.num_hidden_tokens >= 0


@given(st.integers(1, 40), st.integers(1, 40))
def test_spread_keeps_the_ends(num_pieces: int, num_tokens: int) -> None:
    """BUG-01: spreading gives as many times as tokens, in order, and keeps the first and the last piece's."""
    times = spread(range(num_pieces), num_tokens)

    assert len(times) == num_tokens
    assert times == sorted(times)
    assert times[0] == 0
    assert num_tokens == 1 or times[-1] == num_pieces - 1
    assert num_tokens < num_pieces or set(times) == set(range(num_pieces))
