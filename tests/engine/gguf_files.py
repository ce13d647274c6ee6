"""Tiny GGUF files, written the way llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from tests.tiny_model import byte_tokenizer, tiny_config, tiny_tensors

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

_GEMMA3_NAMES = _NAMES | {
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
#: Letters and what they merge to, by score.
_PIECES = [*"▁abcdefghij", "▁a", "ab", "bc", "abc", "▁abc", "cd", "▁▁"]
#: A SentencePiece vocabulary: control tokens, bytes, a run of spaces that users define, those.
SENTENCEPIECE_TOKENS = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "   ",
    *_PIECES,
]


def write_gguf(
    path: Path,
    *,
    is_tied: bool = False,
    quantised: gguf.GGMLQuantizationType | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write the tiny model as a GGUF file; `extra` replaces metadata, None removes it."""
    config = tiny_config(tie_word_embeddings=is_tied)
    writer = gguf.GGUFWriter(path, "llama")
    vocabulary = byte_tokenizer()["model"]["vocab"]
    metadata: dict[str, Any] = {
        "llama.block_count": 2,
        "llama.context_length": 512,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
    } | dict(extra or {})
    _add_metadata(writer, metadata)
    writer.add_array("tokenizer.ggml.tokens", sorted(vocabulary, key=lambda token: vocabulary[token]))
    for name, tensor in tiny_tensors(config, with_head=not is_tied).items():
        data = _as_llama_cpp(name, tensor, config).numpy().astype(np.float32)
        if quantised is not None and data.ndim == 2:
            writer.add_tensor(_gguf_name(name), gguf.quantize(data, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(_gguf_name(name), data)
    _finish(writer)
    return path


def write_gemma3_gguf(path: Path, folder: Path, *, extra: Mapping[str, Any] | None = None) -> Path:
    """Write a tiny Gemma 3 folder as llama.cpp's converter does; `extra` replaces metadata, None removes it."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "gemma3")
    metadata: dict[str, Any] = {
        "gemma3.block_count": config["num_hidden_layers"],
        "gemma3.context_length": config["max_position_embeddings"],
        "gemma3.embedding_length": config["hidden_size"],
        "gemma3.feed_forward_length": config["intermediate_size"],
        "gemma3.attention.head_count": config["num_attention_heads"],
        "gemma3.attention.head_count_kv": config["num_key_value_heads"],
        "gemma3.attention.key_length": config["head_dim"],
        "gemma3.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "gemma3.attention.sliding_window": config["sliding_window"],
        "gemma3.attention.sliding_window_pattern": 2,
        "gemma3.rope.freq_base": 1e6,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": False,
    } | dict(extra or {})
    _add_metadata(writer, metadata)
    num_pieces = len(_PIECES)
    writer.add_array("tokenizer.ggml.tokens", SENTENCEPIECE_TOKENS)
    writer.add_array("tokenizer.ggml.token_type", [3] * 4 + [6] * 256 + [4] + [1] * num_pieces)
    writer.add_array(
        "tokenizer.ggml.scores", [-1000.0] * 4 + [0.0] * 256 + [-1000.0] + [-float(i) for i in range(num_pieces)]
    )
    for name, tensor in load_file(folder / "model.safetensors").items():
        added = 1.0 if name.endswith("norm.weight") else 0.0
        writer.add_tensor(_gguf_name(name, _GEMMA3_NAMES), tensor.numpy().astype(np.float32) + np.float32(added))
    _finish(writer)
    return path


def _add_metadata(writer: gguf.GGUFWriter, metadata: Mapping[str, Any]) -> None:
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str, parts: Mapping[str, str] = _NAMES) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{parts[part]}.{suffix}"
    return f"{_NAMES[stem]}.{suffix}"


def _as_llama_cpp(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Interleave the halves of each rotary pair in query and key weights, as llama.cpp's files have them."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part, num_heads in heads.items():
        if part in name:
            halves = tensor.view(num_heads, 2, tensor.shape[0] // num_heads // 2, -1)
            return halves.transpose(1, 2).reshape(tensor.shape).contiguous()
    return tensor
