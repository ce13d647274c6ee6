"""The shape of a model, read from a Hugging Face config.json and checked before anything is allocated.

Families differ in what a missing field means (`families`); a field that makes no sense is refused by name. Knows
nothing of weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.embedded.families import ARCHITECTURES, FAMILIES, Family
from engine.embedded.fields import Fields
from engine.embedded.layer_config import ExpertsConfig, read_expert_layers, read_experts, read_local_layers
from engine.embedded.rope_config import RopeConfig, read_ropes
from engine.errors import CheckpointError

#: Names that configs have for the two activations there are.
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything the decoder needs to know of a checkpoint's shape."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    #: `silu` or `gelu_tanh`, of the gated MLP.
    activation: str
    rope: RopeConfig
    #: That of local layers; the same in most families.
    local_rope: RopeConfig
    max_context: int
    is_tied: bool
    has_qkv_bias: bool
    has_out_bias: bool
    has_mlp_bias: bool
    #: What scores are multiplied by.
    attention_scale: float
    #: Scores, and logits, are bent to stay within plus and minus this: cap x tanh(x / cap).
    attention_softcap: float | None
    logit_softcap: float | None
    #: A token sees itself and the `sliding_window - 1` before it in local layers; None when no layer is local.
    sliding_window: int | None
    #: Which layers are local; all False without a window.
    local_layers: tuple[bool, ...]
    experts: ExpertsConfig | None
    #: Which layers have the experts; all False without any.
    expert_layers: tuple[bool, ...]
    eos_token_ids: tuple[int, ...]

    @property
    def family(self) -> Family:
        """What is special about the architecture."""
        return FAMILIES[self.architecture]

    @property
    def num_parameters(self) -> int:
        """Parameters, counting a tied head once."""
        return self._count(0 if self.experts is None else self.experts.num_experts)

    @property
    def num_active_parameters(self) -> int:
        """Those that one token meets: all but the experts it does not go through."""
        return self._count(0 if self.experts is None else self.experts.top_k)

    @property
    def has_experts(self) -> bool:
        """Whether any layer has experts: which of them a step's rows choose decides what is computed in it."""
        return any(self.expert_layers)

    @property
    def usable_context(self) -> int:
        """Longest context the position embedding is good for."""
        limits = (self.rope.usable_context, self.local_rope.usable_context, self.max_context)
        return min(limit for limit in limits if limit is not None)

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes one token occupies in the KV cache over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value

    def _count(self, num_experts: int) -> int:
        """Count parameters with that many experts in each layer that has any."""
        qkv = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        layer = self.hidden_size * (qkv + self.num_heads * self.head_dim)
        layer += qkv * self.has_qkv_bias + self.hidden_size * self.has_out_bias
        layer += self.hidden_size * (4 if self.family.has_post_norms else 2)
        layer += 2 * self.head_dim * self.family.has_qk_norm
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) * self.has_mlp_bias
        total = self.vocab_size * self.hidden_size * (1 if self.is_tied else 2) + self.hidden_size
        total += self.num_layers * layer + self.expert_layers.count(False) * mlp
        if self.experts is not None:
            expert = 3 * self.hidden_size * self.experts.intermediate_size
            router = self.hidden_size * self.experts.num_experts
            total += self.expert_layers.count(True) * (router + num_experts * expert)
        return total


def load_config(folder: Path) -> ModelConfig:
    """Read a folder's config.json (and the end-of-sequence ids of its generation_config.json)."""
    raw = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.is_file() and (eos := read_json(generation).get("eos_token_id")) is not None:
        raw["eos_token_id"] = eos
    return model_config(raw, source=str(folder / "config.json"))


def model_config(raw: Mapping[str, Any], *, source: str) -> ModelConfig:
    """Read a config.json's content.

    Raises CheckpointError naming the field, its value and what is allowed; `source` says where the config is.
    """
    architecture = _architecture(raw, source)
    family = FAMILIES[architecture]
    fields = Fields(raw, family.defaults, source)
    _refuse_what_no_layer_does(fields, family)
    num_heads, hidden_size = fields.count("num_attention_heads"), fields.count("hidden_size")
    num_layers, max_context = fields.count("num_hidden_layers"), fields.count("max_position_embeddings")
    head_dim = _head_dim(fields, hidden_size, num_heads)
    rope, local_rope = read_ropes(fields, family, head_dim, max_context)
    local_layers = read_local_layers(fields, family, num_layers)
    experts = read_experts(fields, family)
    has_biases = family.biases == "by_config" and fields.flag("attention_bias")
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.positive("rms_norm_eps"),
        activation=_activation(fields, family),
        rope=rope,
        local_rope=local_rope,
        max_context=max_context,
        is_tied=fields.flag("tie_word_embeddings"),
        has_qkv_bias=has_biases or family.biases == "qkv",
        has_out_bias=has_biases,
        has_mlp_bias=family.has_mlp_bias_field and fields.flag("mlp_bias"),
        attention_scale=(fields.positive("query_pre_attn_scalar") if family.has_score_fields else head_dim) ** -0.5,
        attention_softcap=fields.positive_or_none("attn_logit_softcapping") if family.has_score_fields else None,
        logit_softcap=fields.positive_or_none("final_logit_softcapping") if family.has_score_fields else None,
        sliding_window=fields.count("sliding_window") if any(local_layers) else None,
        local_layers=local_layers,
        experts=experts,
        expert_layers=read_expert_layers(fields, experts, num_layers),
        eos_token_ids=_token_ids(fields.get("eos_token_id")),
    )


def _architecture(raw: Mapping[str, Any], source: str) -> str:
    of_type = {family.model_type: name for name, family in FAMILIES.items()}
    named = raw.get("architectures") or [of_type.get(raw.get("model_type", ""), f"of type {raw.get('model_type')}")]
    if named[0] not in FAMILIES:
        raise CheckpointError(
            f"{source}: architecture {named[0]} is not supported; these are: {', '.join(ARCHITECTURES)}"
        )
    return str(named[0])


def _refuse_what_no_layer_does(fields: Fields, family: Family) -> None:
    """Refuse fields that change the arithmetic and that we do not follow."""
    if fields.raw.get("use_bidirectional_attention"):
        raise fields.refusal("use_bidirectional_attention", True, "a generating model sees only what came before")
    if family.has_local_rope and fields.get("attn_logit_softcapping") is not None:
        raise fields.refusal(
            "attn_logit_softcapping", fields.get("attn_logit_softcapping"), "no Gemma 3 model caps its scores"
        )
    if fields.raw.get("quantization_config"):
        kind = fields.raw["quantization_config"].get("quant_method")
        raise fields.refusal("quantization_config.quant_method", kind, "give the weights unquantised, or as GGUF")


def _activation(fields: Fields, family: Family) -> str:
    name = fields.get(family.activation_field)
    if name not in _ACTIVATIONS:
        raise fields.refusal(family.activation_field, name, f"choose one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _num_kv_heads(fields: Fields, num_heads: int) -> int:
    # Null and, in families without a default, a missing field mean multi-head attention.
    if fields.get("num_key_value_heads") is None:
        return num_heads
    num_kv_heads = fields.count("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise fields.refusal(
            "num_key_value_heads", num_kv_heads, f"it must divide num_attention_heads, which is {num_heads}"
        )
    return num_kv_heads


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    if fields.get("head_dim") is not None:
        head_dim = fields.count("head_dim")
    elif hidden_size % num_heads:
        raise fields.refusal(
            "hidden_size",
            hidden_size,
            f"num_attention_heads ({num_heads}) does not divide it and head_dim is not given",
        )
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise fields.refusal("head_dim", head_dim, "rotary embeddings need an even number")
    return head_dim


def _token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list) else (int(str(value)),)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file; raise CheckpointError when there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file; a model folder needs it") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return content
