"""Tiny random checkpoints of every family, made and saved by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.tiny_model import byte_tokenizer

#: 4 layers, so that local and global ones alternate twice; windows of 8.
_SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
_WINDOW = {"sliding_window": 8}
_EXPERTS = {"num_experts_per_tok": 2}
#: A name for each test case: the model type and what differs from the shape above.
FAMILY_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", _WINDOW),
    "qwen2": ("qwen2", _WINDOW | {"use_sliding_window": True, "max_window_layers": 2}),
    "qwen3": ("qwen3", _WINDOW | {"use_sliding_window": True, "layer_types": _ALTERNATING, "head_dim": 32}),
    "gemma2": ("gemma2", _WINDOW | {"head_dim": 32, "query_pre_attn_scalar": 20, "tie_word_embeddings": True}),
    "gemma2-capped": (
        "gemma2",
        _WINDOW | {"head_dim": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
    ),
    "gemma3": ("gemma3_text", _WINDOW | {"head_dim": 32, "layer_types": _ALTERNATING, "tie_word_embeddings": True}),
    "phi3": ("phi3", _WINDOW),
    "phi3-partial": ("phi3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}}),
    "mixtral": ("mixtral", _WINDOW | _EXPERTS | {"num_local_experts": 4}),
    "qwen3_moe": (
        "qwen3_moe",
        _EXPERTS | {"num_experts": 8, "moe_intermediate_size": 48, "norm_topk_prob": True, "head_dim": 32},
    ),
    "qwen3_moe-sparse": (
        "qwen3_moe",
        _EXPERTS | {"num_experts": 4, "moe_intermediate_size": 32, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    ),
}
WINDOWED_CASES = ("mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mixtral")


def write_family(folder: Path, case: str, **changes: Any) -> Path:
    """Write the checkpoint of a case with config fields changed, and return its folder."""
    model_type, fields = FAMILY_CASES[case]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **_SHAPE | fields | changes))
    is_gemma = model_type.startswith("gemma")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms near one, as stored by the family; everything else large enough to decide tokens.
            is_unit = "norm" in name and not is_gemma
            parameter.copy_(torch.randn(parameter.shape) * 0.15 + (1.0 if is_unit else 0.0))
    model.float().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    return folder


def change_config(folder: Path, **changes: Any) -> Path:
    """Rewrite fields of a folder's config.json; a change to ... removes the field."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))
    return folder
