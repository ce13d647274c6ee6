"""Text to tokens and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.embedded.tokenizer import Tokenizer


@pytest.fixture(name="tokenizer")
def _tokenizer(tiny_folder: Path) -> Tokenizer:
    """The byte tokenizer of the tiny model."""
    return Tokenizer(tiny_folder)


def test_a_character_over_several_tokens_comes_with_its_last(tokenizer: Tokenizer) -> None:
    """Decoding token by token never shows half a character."""
    stream = tokenizer.stream()

    assert [stream.feed(token) for token in tokenizer.encode("né€")] == ["n", "", "é", "", "", "€"]


@given(text=st.text(max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_encoding_and_decoding_are_inverse(tokenizer: Tokenizer, text: str) -> None:
    """Any text comes back from its tokens, at once and piece by piece."""
    tokens = tokenizer.encode(text)
    stream = tokenizer.stream()

    assert tokenizer.decode(tokens) == text
    assert "".join(stream.feed(token) for token in tokens) == text
