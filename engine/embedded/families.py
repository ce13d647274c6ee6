"""What sets the model families apart: what a missing field means, which parts a layer has, how tensors are named.

A new family is a row here, unless it needs a part that no other has. Knows nothing of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """A layer's tensors as a checkpoint names them, without `model.layers.N.` and `.weight`."""

    #: Query, key and value; one name where the file has them as one tensor.
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    #: Gate and up, as one name likewise.
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    mlp_norm: str = "post_attention_layernorm"
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    #: Gate, up and down of one expert.
    expert: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture."""

    model_type: str
    #: What a field means when a config leaves it out (transformers 5: the family's config class).
    defaults: Mapping[str, Any]
    #: Which layers are local where layer_types does not say: none; all, given a window; those from max_window_layers
    #: on, given use_sliding_window; all but every nth (sliding_window_pattern).
    local_layers: Literal["none", "all", "tail", "pattern"] = "none"
    #: Biases of the attention's projections: none, those of query, key and value, or all if attention_bias says so.
    biases: Literal["none", "qkv", "by_config"] = "by_config"
    has_mlp_bias_field: bool = False
    #: Query and key heads are normalised before they are rotated.
    has_qk_norm: bool = False
    #: Attention's and the MLP's outputs are normalised before they are added.
    has_post_norms: bool = False
    #: What is added to a stored norm weight.
    norm_offset: float = 0.0
    #: Embeddings are multiplied by sqrt(hidden_size).
    scales_embedding: bool = False
    #: Which field names the activation.
    activation_field: str = "hidden_act"
    #: Scores are capped, and scaled by query_pre_attn_scalar instead of head_dim.
    has_score_fields: bool = False
    #: Local layers have a rotary embedding of their own.
    has_local_rope: bool = False
    #: Only a part of each head may be rotated.
    has_partial_rotary: bool = False
    names: TensorNames = field(default_factory=TensorNames)


_COMMON: dict[str, Any] = {"rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "hidden_act": "silu"}
_LLAMA = _COMMON | {"max_position_embeddings": 2048, "eos_token_id": 2}
_MISTRAL = _COMMON | {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "eos_token_id": 2,
}
_QWEN2 = _COMMON | {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA2 = _COMMON | {
    "max_position_embeddings": 8192,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "eos_token_id": 1,
}
_GEMMA3 = _GEMMA2 | {
    "max_position_embeddings": 131072,
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}
_PHI3 = _COMMON | {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "eos_token_id": 32000,
}
_MIXTRAL = _MISTRAL | {
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
_QWEN3_MOE = _COMMON | {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 4,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "num_local_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
}

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(model_type="llama", defaults=_LLAMA, has_mlp_bias_field=True),
    "MistralForCausalLM": Family(model_type="mistral", defaults=_MISTRAL, local_layers="all", biases="none"),
    "Qwen2ForCausalLM": Family(model_type="qwen2", defaults=_QWEN2, local_layers="tail", biases="qkv"),
    "Qwen3ForCausalLM": Family(
        model_type="qwen3", defaults=_QWEN2 | {"head_dim": 128}, local_layers="tail", has_qk_norm=True
    ),
    "Gemma2ForCausalLM": Family(
        model_type="gemma2",
        defaults=_GEMMA2,
        local_layers="pattern",
        has_post_norms=True,
        norm_offset=1.0,
        scales_embedding=True,
        activation_field="hidden_activation",
        has_score_fields=True,
        names=TensorNames(mlp_norm="pre_feedforward_layernorm"),
    ),
    "Gemma3ForCausalLM": Family(
        model_type="gemma3_text",
        defaults=_GEMMA3,
        local_layers="pattern",
        has_qk_norm=True,
        has_post_norms=True,
        norm_offset=1.0,
        scales_embedding=True,
        activation_field="hidden_activation",
        has_score_fields=True,
        has_local_rope=True,
        names=TensorNames(mlp_norm="pre_feedforward_layernorm"),
    ),
    "Phi3ForCausalLM": Family(
        model_type="phi3",
        defaults=_PHI3,
        local_layers="all",
        biases="none",
        has_partial_rotary=True,
        names=TensorNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
    ),
    "MixtralForCausalLM": Family(
        model_type="mixtral",
        defaults=_MIXTRAL,
        local_layers="all",
        biases="none",
        names=TensorNames(
            router="block_sparse_moe.gate", experts="block_sparse_moe.experts", expert=("w1", "w3", "w2")
        ),
    ),
    "Qwen3MoeForCausalLM": Family(model_type="qwen3_moe", defaults=_QWEN3_MOE, local_layers="all", has_qk_norm=True),
}
ARCHITECTURES = tuple(FAMILIES)
