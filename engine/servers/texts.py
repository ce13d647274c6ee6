"""Text to token ids and back for a server: by its own tokenizer, by a tokenizer.json, or by words.

Words are the last resort: each word that is seen gets a number, and a prompt of numbers goes to the server as those
words. Its lengths are then words, not tokens; the server's `usage` says how many tokens they were.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FILE = "tokenizer.json"


class Words:
    """Numbers for words, in the order in which they are first seen."""

    def __init__(self) -> None:
        """Begin with no words."""
        self._ids: dict[str, int] = {}
        self._words: list[str] = []

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the numbers of a text's words."""
        return tuple(self._id(word) for word in text.split())

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return words for numbers; a number of no word is a word of its own."""
        known = len(self._words)
        return " ".join(self._words[one] if 0 <= one < known else f"w{one}" for one in token_ids)

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]


class Texts:
    """Encodes and decodes as well as server and files allow."""

    def __init__(
        self, ask: Callable[[str], tuple[int, ...] | None], folder: Path | None, *, takes_token_ids: bool
    ) -> None:
        """Use `ask`, a server's tokenizer, while it answers; then the tokenizer.json of a folder; then words.

        A server that takes text only cannot be given the ids of a tokenizer that nobody here has: there, the file
        comes first and words second.
        """
        self._ask = ask
        self._takes_token_ids = takes_token_ids
        self._tokenizer = _tokenizer(folder)
        self._words = Words()

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the text's token ids, without special tokens added."""
        told = self._ask(text) if self._takes_token_ids else None
        if told is not None:
            return told
        if self._tokenizer is not None:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return self._words.encode(text)

    @property
    def is_words(self) -> bool:
        """Whether ids are word numbers for want of a tokenizer: such a prompt goes out as text."""
        return self._tokenizer is None and (not self._takes_token_ids or self._ask("a") is None)

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Return the text that a prompt of these ids is sent as."""
        if self._tokenizer is not None:
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))
        return self._words.decode(token_ids)


def _tokenizer(folder: Path | None) -> Tokenizer | None:
    if folder is None or not (folder / _FILE).is_file():
        return None
    from tokenizers import Tokenizer  # some 50 ms, and no more than one of three ways

    return Tokenizer.from_file(str(folder / _FILE))
