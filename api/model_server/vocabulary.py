"""Text to a checkpoint's tokens and back in the server's own process. Knows nothing of chats or answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from engine.embedded.tokenizer import Detokenizer
from engine.errors import CheckpointError


class Vocabulary:
    """A tokenizer.json, with the special tokens that it puts around a text."""

    def __init__(self, folder: Path) -> None:
        """Raise CheckpointError where the folder has no readable tokenizer.json."""
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for a missing or damaged file
            raise CheckpointError(f"{path}: not a readable tokenizer ({error}); fetch it again") from error

    def encode(self, text: str, *, adds_special: bool) -> tuple[int, ...]:
        """Return a text's tokens, with what the tokenizer itself puts around it where `adds_special`."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=adds_special).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the tokens' text without special tokens."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Return the tokens' text, special tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def token(self, token_id: int) -> str | None:
        """Return a token as the vocabulary spells it; None where there is none of that id."""
        return self._tokenizer.id_to_token(token_id)

    def has(self, token: str) -> bool:
        """Tell whether a text is one token."""
        return self._tokenizer.token_to_id(token) is not None

    def stream(self) -> Detokenizer:
        """Start decoding one output."""
        return Detokenizer(self._tokenizer)
