"""The tokenizer inside a GGUF file as the content of a tokenizer.json: byte-level BPE, or SentencePiece."""

from __future__ import annotations

from typing import Any

from engine.embedded.gguf_config import GgufMetadata
from engine.errors import CheckpointError

#: Pre-tokenizers by their GGUF name; the patterns are those of the models' own tokenizer.json files.
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}],
    "gpt-2": [],
    "default": [],
    "llama-bpe": [
        {
            "type": "Split",
            "pattern": {
                "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            },
            "behavior": "Isolated",
            "invert": False,
        }
    ],
    "qwen2": [
        {
            "type": "Split",
            "pattern": {
                "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            },
            "behavior": "Isolated",
            "invert": False,
        }
    ],
}
#: GGUF token types of tokens that text must not be split into: control and user-defined.
_SPECIAL_TYPES = (3, 4)
_NORMAL_TYPE = 1


def tokenizer_of(metadata: GgufMetadata) -> dict[str, Any]:
    """Return the content of the tokenizer.json; raise CheckpointError for a kind that we cannot rebuild exactly."""
    kind, pre = metadata.require("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind == "llama" and not metadata.get("tokenizer.ggml.add_space_prefix", True):
        return _tokenizer(metadata, **_sentencepiece(metadata))
    if kind == "gpt2" and pre in _PRE_TOKENIZERS:
        return _tokenizer(metadata, **_byte_level(metadata, pre))
    prefix = ", which puts a space before the text" if kind == "llama" else ""
    raise CheckpointError(
        f"{metadata.path}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported{prefix}; put the model's "
        f"tokenizer.json beside it, or use one of gpt2 with {', '.join(_PRE_TOKENIZERS)}, or of llama without a space "
        "prefix"
    )


def _tokenizer(metadata: GgufMetadata, **parts: Any) -> dict[str, Any]:
    """Return a tokenizer.json of these parts, with the file's special tokens."""
    tokens = metadata.require("tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    added = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": types[i] == _SPECIAL_TYPES[0],
        }
        for i, token in enumerate(tokens)
        if types[i] in _SPECIAL_TYPES
    ]
    empty = {"truncation": None, "padding": None, "post_processor": None}
    return {"version": "1.0", **empty, "added_tokens": added, **parts}


def _byte_level(metadata: GgufMetadata, pre: str) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = _PRE_TOKENIZERS[pre]
    # A Split already cuts words apart, so the byte level must not cut again.
    pre_tokenizers = [*split, byte_level | {"use_regex": not any(part["type"] == "Split" for part in split)}]
    merges = [merge.split(" ") for merge in metadata.get("tokenizer.ggml.merges", [])]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "decoder": byte_level | {"use_regex": True},
        "model": _bpe(metadata, merges) | {"ignore_merges": pre == "llama-bpe"},
    }


def _sentencepiece(metadata: GgufMetadata) -> dict[str, Any]:
    """Return SentencePiece's BPE without a space prefix, as Gemma has it: spaces are a letter of their own."""
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    tokens = metadata.require("tokenizer.ggml.tokens")
    unknown = tokens[int(metadata.require("tokenizer.ggml.unknown_token_id"))]
    return {
        "normalizer": space,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": _bpe(metadata, _merges_by_score(metadata))
        | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False},
    }


def _merges_by_score(metadata: GgufMetadata) -> list[list[str]]:
    """Return the merges that SentencePiece does: any two tokens that make a third, those of the best score first."""
    tokens, scores = metadata.require("tokenizer.ggml.tokens"), metadata.require("tokenizer.ggml.scores")
    types = metadata.require("tokenizer.ggml.token_type")
    plain = {token for token, kind in zip(tokens, types, strict=True) if kind == _NORMAL_TYPE}
    by_score = sorted((i for i, kind in enumerate(types) if kind == _NORMAL_TYPE), key=lambda i: (-scores[i], i))
    return [
        [token[:cut], token[cut:]]
        for token in (tokens[i] for i in by_score)
        for cut in range(1, len(token))
        if token[:cut] in plain and token[cut:] in plain
    ]


def _bpe(metadata: GgufMetadata, merges: list[list[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: i for i, token in enumerate(metadata.require("tokenizer.ggml.tokens"))},
        "merges": merges,
    }
