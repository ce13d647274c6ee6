"""Text to token ids and back, one token at a time. Knows nothing of models."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers.decoders import DecodeStream

from engine.errors import CheckpointError


class Tokenizer:
    """A tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{folder}: has no tokenizer.json; fetch it from where the model came from")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for a damaged file
            raise CheckpointError(f"{path}: not a readable tokenizer ({error})") from error

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the text's tokens; special tokens are found in the text but none is added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return the tokens' text without special tokens."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def stream(self) -> Detokenizer:
        """Start decoding one output."""
        return Detokenizer(self._tokenizer)


class Detokenizer:
    """Decodes one output token by token; a character split over tokens comes with the last of them."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def feed(self, token_id: int) -> str:
        """Return the text this token completes, possibly empty."""
        return self._stream.step(self._tokenizer, token_id) or ""
