"""A tiny random Llama checkpoint with a byte tokenizer: everything a real model folder has, in 300 kB.

2 layers, hidden size 64, 4 heads, 2 KV heads, vocabulary 256 (one token per byte), fp32, seeded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def tiny_config(**changes: Any) -> dict[str, Any]:
    """Return the config with fields changed; a change to ... removes the field."""
    config = {name: value for name, value in (CONFIG | changes).items() if value is not ...}
    return config | {"model_type": config["architectures"][0].removesuffix("ForCausalLM").lower()}


def tiny_tensors(config: dict[str, Any], *, seed: int = 0, with_head: bool = True) -> dict[str, torch.Tensor]:
    """Make the tensors that a config asks for; norms near one, everything else large enough to decide tokens."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.15

    tensors = {
        "model.embed_tokens.weight": random(config["vocab_size"], hidden),
        "model.norm.weight": 1 + random(hidden),
    }
    if with_head:
        tensors["lm_head.weight"] = random(config["vocab_size"], hidden)
    is_qwen = config["architectures"][0] == "Qwen2ForCausalLM"
    has_qkv_bias = is_qwen or config.get("attention_bias", False)
    shapes = {
        "self_attn.q_proj": (heads * head_dim, hidden, has_qkv_bias),
        "self_attn.k_proj": (kv_heads * head_dim, hidden, has_qkv_bias),
        "self_attn.v_proj": (kv_heads * head_dim, hidden, has_qkv_bias),
        "self_attn.o_proj": (hidden, heads * head_dim, has_qkv_bias and not is_qwen),
        "mlp.gate_proj": (inner, hidden, config.get("mlp_bias", False)),
        "mlp.up_proj": (inner, hidden, config.get("mlp_bias", False)),
        "mlp.down_proj": (hidden, inner, config.get("mlp_bias", False)),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = 1 + random(hidden)
        for name, (rows, columns, has_bias) in shapes.items():
            tensors[f"{prefix}{name}.weight"] = random(rows, columns)
            if has_bias:
                tensors[f"{prefix}{name}.bias"] = random(rows)
    return tensors


def byte_tokenizer() -> dict[str, Any]:
    """Return the content of a tokenizer.json with one token per byte and no merges."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))},
            "merges": [],
        },
    }


def write_tiny_model(
    folder: Path, *, tensors: dict[str, torch.Tensor] | None = None, seed: int = 0, **changes: Any
) -> Path:
    """Write a complete model folder and return it; config fields by keyword."""
    config = tiny_config(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    if tensors is None:
        tensors = tiny_tensors(config, seed=seed, with_head=not config["tie_word_embeddings"])
    save_file(tensors, folder / "model.safetensors")
    return folder
