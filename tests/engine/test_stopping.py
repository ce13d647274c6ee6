"""Stop strings over token borders."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.embedded.stopping import StopMatcher


def deliver(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    """Feed pieces as the engine does and return the text delivered and whether it was stopped."""
    matcher = StopMatcher(stops)
    text = ""
    for piece in pieces:
        text += matcher.feed(piece)
        if matcher.is_stopped:
            return text, True
    return text + matcher.flush(), False


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["The quick br", "own f", "ox jumps"], ["own fox"], ("The quick br", True)),
        (["ABC", "DEF", "G", "HI", "J"], ["DEFGHIJ"], ("ABC", True)),
        (["all is said", "</en"], ["</end>"], ("all is said</en", False)),
        (["a STOP b"], ["STOP", "a STOP"], ("", True)),
        (["one two"], ["two", "one two three"], ("one ", True)),
        (["aab"], ["ab"], ("a", True)),
        (["aaa", "ab"], ["aab"], ("aa", True)),
        (["plain"], [], ("plain", False)),
    ],
)
def test_stop_strings_by_example(pieces: list[str], stops: list[str], expected: tuple[str, bool]) -> None:
    """BUG-37: found over borders, never streamed half, delivered in full when it was none, first completed wins."""
    assert deliver(pieces, stops) == expected


@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
def test_the_result_does_not_depend_on_where_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    """BUG-37: streamed in any pieces, the delivered text is that of the whole text at once."""
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]

    assert deliver(pieces, stops) == deliver(list(text), stops)


@given(text=st.text(alphabet="abc", max_size=30), stops=st.lists(st.text(alphabet="abc", min_size=1), max_size=3))
def test_delivered_text_holds_no_stop_string(text: str, stops: list[str]) -> None:
    """What is delivered is a beginning of the text without any stop string in it."""
    delivered, is_stopped = deliver(list(text), stops)

    assert text.startswith(delivered)
    assert not any(stop in delivered for stop in stops)
    assert is_stopped == any(stop in text for stop in stops)
