"""Text to token ids for a server: its own tokenizer, a file, or words; and back where it takes text only."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from engine.servers.texts import Texts


def folder_with_tokenizer(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(WordLevel({"one": 11, "two": 12, "?": 13}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def ask(text: str) -> tuple[int, ...]:
    return tuple(len(word) for word in text.split())


def silent(_: str) -> None:
    return None


def test_the_servers_own_tokenizer_comes_first(tmp_path: Path) -> None:
    """Where the server takes token ids and tells them, its own are used."""
    texts = Texts(ask, folder_with_tokenizer(tmp_path), takes_token_ids=True)
    assert (texts.encode("one two"), texts.is_words) == ((3, 3), False)


def test_a_file_comes_second(tmp_path: Path) -> None:
    """Where the server does not tell, or takes text, the folder's tokenizer encodes and decodes."""
    folder = folder_with_tokenizer(tmp_path)
    for texts in (Texts(silent, folder, takes_token_ids=True), Texts(ask, folder, takes_token_ids=False)):
        assert (texts.encode("one two"), texts.decode((12, 11)), texts.is_words) == ((11, 12), "two one", False)


def test_words_are_the_last_resort(tmp_path: Path) -> None:
    """Without any tokenizer words get numbers, the same word the same one, and numbers become those words again."""
    texts = Texts(silent, tmp_path, takes_token_ids=True)
    assert (texts.encode("one two one"), texts.is_words) == ((0, 1, 0), True)
    assert texts.decode((1, 0, 7)) == "two one w7"
    assert Texts(silent, None, takes_token_ids=False).is_words
