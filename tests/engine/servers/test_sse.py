"""Bytes to events, cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.servers.sse import MAX_EVENT_BYTES, EventTooLong, SseEvent, SseParser


def parsed(*pieces: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


def data_of(*pieces: bytes) -> list[str]:
    return [event.data for event in parsed(*pieces)]


def test_comments_and_other_fields_are_no_events() -> None:
    """BUG-05: comments, ids and empty data lines reach nobody as something to parse."""
    stream = b': ping\n\n:\nid: 7\n: ping\n\nevent: ping\ndata:\n\ndata:{"a":1}\n\ndata: [DONE]\n\n: bye\n\n'

    assert parsed(stream) == [SseEvent("", "ping"), SseEvent('{"a":1}'), SseEvent("[DONE]")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_kind_of_line_end(end: bytes) -> None:
    """BUG-05: lines may end with LF, CRLF or CR, and nothing waits for what comes after a CR."""
    parser = SseParser()

    assert parser.feed(b"data: one" + end + end) == [SseEvent("one")]
    assert parser.feed(b"data: two" + end + b"data:three" + end + end) == [SseEvent("two\nthree")]


def test_frames_that_are_glued_or_cut() -> None:
    """BUG-06: several frames in one piece, a frame cut inside a character, between its newlines, and inside [DONE]."""
    pieces = (b"data: a\n\ndata: b\n\ndata: c\n\n", b"data: caf\xc3", b"\xa9\n", b"\ndata: [DO", b"NE]\n\n")

    assert data_of(*pieces) == ["a", "b", "c", "café", "[DONE]"]


def test_a_stream_may_end_without_an_empty_line() -> None:
    """What the stream's end cuts off is returned once, and nothing where there is none."""
    assert data_of(b"data: a\n\ndata: [DONE]") == ["a", "[DONE]"]
    assert data_of(b"data: a\n\n") == ["a"]


def test_a_byte_order_mark_does_not_count() -> None:
    """A mark at the stream's begin is dropped, also in pieces."""
    assert data_of(b"\xef\xbb\xbfdata: a\n\n") == ["a"]
    assert data_of(b"\xef", b"\xbb", b"\xbfdata: a\n\n") == ["a"]


def test_a_field_error_is_an_event() -> None:
    """Llama.cpp's `error:` lines are not lost."""
    assert parsed(b'error: {"code":500}\n\n') == [SseEvent('{"code":500}', "error")]


def test_an_event_without_an_end_is_refused() -> None:
    """A server that sends no line ends does not fill the memory."""
    parser = SseParser()

    parser.feed(b"data: " + b"x" * (MAX_EVENT_BYTES // 2))
    with pytest.raises(EventTooLong, match="without the end of an event"):
        parser.feed(b"x" * (MAX_EVENT_BYTES // 2))


@given(
    st.lists(st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), min_size=1), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.data(),
)
def test_how_a_stream_is_cut_does_not_matter(texts: list[str], end: str, draw: st.DataObject) -> None:
    """BUG-06: however the bytes are cut, the events are the same."""
    stream = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[begin:stop] for begin, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert data_of(*pieces) == texts
