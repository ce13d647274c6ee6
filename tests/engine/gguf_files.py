"""Tiny GGUF files, written the way llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

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
    for key, value in metadata.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    writer.add_array("tokenizer.ggml.tokens", sorted(vocabulary, key=lambda token: vocabulary[token]))
    for name, tensor in tiny_tensors(config, with_head=not is_tied).items():
        data = _as_llama_cpp(name, tensor, config).numpy().astype(np.float32)
        if quantised is not None and data.ndim == 2:
            writer.add_tensor(_gguf_name(name), gguf.quantize(data, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(_gguf_name(name), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_NAMES[part]}.{suffix}"
    return f"{_NAMES[stem]}.{suffix}"


def _as_llama_cpp(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Interleave the halves of each rotary pair in query and key weights, as llama.cpp's files have them."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part, num_heads in heads.items():
        if part in name:
            halves = tensor.view(num_heads, 2, tensor.shape[0] // num_heads // 2, -1)
            return halves.transpose(1, 2).reshape(tensor.shape).contiguous()
    return tensor
