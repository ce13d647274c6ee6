"""A converted Llama folder as a GGUF file of 16 or 32 bits: what llama.cpp is to be compared on, from the same weights.

Without a tokenizer: benchmarks speak token ids. Knows nothing of the engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open

_TYPES = {"f16": (np.float16, gguf.LlamaFileType.MOSTLY_F16), "f32": (np.float32, gguf.LlamaFileType.ALL_F32)}
_LAYER_TENSORS = {
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
_MODEL_TENSORS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_copy(folder: Path, precision: str) -> Path:
    """Return the folder's copy, `FOLDER-f16.gguf` beside it, written where there is none.

    `precision` is f16 or f32, of matrices; vectors stay in fp32, as in llama.cpp's own files.
    """
    path = folder.with_name(f"{folder.name}-{precision}.gguf")
    if path.is_file():
        return path
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["architectures"] != ["LlamaForCausalLM"]:
        raise ValueError(f"{folder}: architecture is {config['architectures']}; only LlamaForCausalLM is copied")
    partial = path.with_suffix(".partial")
    dtype, file_type = _TYPES[precision]
    writer = gguf.GGUFWriter(partial, "llama")
    _describe(writer, config)
    writer.add_file_type(file_type)
    with safe_open(folder / "model.safetensors", framework="np") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - a handle, no mapping
            weights = _interleaved(name, tensors.get_tensor(name).astype(np.float32), config)
            writer.add_tensor(_gguf_name(name), weights.astype(dtype) if weights.ndim > 1 else weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)
    return path


def _describe(writer: Any, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _MODEL_TENSORS:
        return f"{_MODEL_TENSORS[stem]}.{suffix}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_LAYER_TENSORS[part]}.{suffix}"


def _interleaved(name: str, weights: np.ndarray[Any, Any], config: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Put the two halves of every rotary pair side by side, as llama.cpp has them in its `llama` files."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    num_heads = next((config[field] for part, field in heads.items() if f".{part}." in name), None)
    if num_heads is None:
        return weights
    halves = weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)
