"""The shape of a Llama-family model, read from a Hugging Face config.json and checked before anything is allocated.

Families differ in what a missing field means, so each has its own defaults; a field that makes no sense is refused by
name. Knows nothing of weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError

#: What a field means when a family's config leaves it out (transformers 5: LlamaConfig, MistralConfig, Qwen2Config).
_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_position_embeddings": 2048},
    "MistralForCausalLM": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "Qwen2ForCausalLM": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "sliding_window": 4096},
}
ARCHITECTURES = tuple(_FAMILY_DEFAULTS)
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "factors")
#: Scaling fields without which a rope type means nothing.
_ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "factors": ("factors",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding and how it is stretched beyond the trained length."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    original_max_context: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    #: Scale of cos and sin; None takes YaRN's own rule.
    attention_factor: float | None = None
    is_truncated: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    #: Divisors of the head_dim / 2 frequencies (kind `factors`, from a GGUF's rope_freqs tensor).
    factors: tuple[float, ...] = ()


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
    rope: RopeConfig
    max_context: int
    is_tied: bool
    has_qkv_bias: bool
    has_out_bias: bool
    has_mlp_bias: bool
    #: A token sees itself and the `sliding_window - 1` before it in local layers; None when no layer is local.
    sliding_window: int | None
    #: Which layers are local; all False without a window.
    local_layers: tuple[bool, ...]
    eos_token_ids: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Parameters, counting a tied head once."""
        qkv = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        layer = self.hidden_size * (qkv + self.num_heads * self.head_dim + 3 * self.intermediate_size + 2)
        layer += qkv * self.has_qkv_bias + self.hidden_size * self.has_out_bias
        layer += (2 * self.intermediate_size + self.hidden_size) * self.has_mlp_bias
        embeddings = self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)
        return embeddings + self.num_layers * layer + self.hidden_size

    @property
    def usable_context(self) -> int:
        """Longest context the position embedding is good for.

        Dynamic NTK scaling changes nothing up to the trained length, and beyond it would make cached keys disagree
        with new ones: the context ends there.
        """
        if self.rope.kind == "dynamic":
            return self.rope.original_max_context or self.max_context
        return self.max_context

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes one token occupies in the KV cache over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value


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
    fields = _Fields(raw, source)
    architecture = _architecture(raw, source)
    fields.defaults = _FAMILY_DEFAULTS[architecture]
    if (activation := raw.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise fields.refusal("hidden_act", activation, "only silu (SwiGLU) is supported")
    num_heads = fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    num_layers = fields.count("num_hidden_layers")
    window = _sliding_window(fields, architecture)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, num_heads),
        head_dim=_head_dim(fields, hidden_size, num_heads),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(fields),
        max_context=fields.count("max_position_embeddings"),
        is_tied=bool(raw.get("tie_word_embeddings", False)),
        has_qkv_bias=architecture == "Qwen2ForCausalLM" or bool(raw.get("attention_bias", False)),
        has_out_bias=architecture != "Qwen2ForCausalLM" and bool(raw.get("attention_bias", False)),
        has_mlp_bias=bool(raw.get("mlp_bias", False)),
        sliding_window=window,
        local_layers=_local_layers(fields, architecture, num_layers, window),
        eos_token_ids=_token_ids(raw.get("eos_token_id")),
    )


class _Fields:
    """A config's fields with the family's defaults behind them."""

    def __init__(self, raw: Mapping[str, Any], source: str) -> None:
        self.raw = raw
        self.source = source
        self.defaults: Mapping[str, Any] = {}

    def get(self, name: str) -> Any:
        return self.raw[name] if name in self.raw else self.defaults.get(name)

    def count(self, name: str) -> int:
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refusal(name, value, "it must be a whole number of 1 or more")
        return value

    def refusal(self, name: str, value: object, remedy: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {name} is {value!r}: {remedy}")


def _architecture(raw: Mapping[str, Any], source: str) -> str:
    named = raw.get("architectures") or [f"{str(raw.get('model_type', '')).capitalize()}ForCausalLM"]
    if named[0] not in _FAMILY_DEFAULTS:
        raise CheckpointError(
            f"{source}: architecture {named[0]} is not supported; these are: {', '.join(ARCHITECTURES)}"
        )
    return str(named[0])


def _num_kv_heads(fields: _Fields, num_heads: int) -> int:
    # Null and, in families without a default, a missing field mean multi-head attention.
    if fields.get("num_key_value_heads") is None:
        return num_heads
    num_kv_heads = fields.count("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise fields.refusal(
            "num_key_value_heads", num_kv_heads, f"it must divide num_attention_heads, which is {num_heads}"
        )
    return num_kv_heads


def _head_dim(fields: _Fields, hidden_size: int, num_heads: int) -> int:
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


def _sliding_window(fields: _Fields, architecture: str) -> int | None:
    if architecture == "LlamaForCausalLM" or fields.get("sliding_window") is None:
        return None
    if architecture == "Qwen2ForCausalLM" and not fields.raw.get("use_sliding_window", False):
        return None
    return fields.count("sliding_window")


def _local_layers(fields: _Fields, architecture: str, num_layers: int, window: int | None) -> tuple[bool, ...]:
    if window is None:
        return (False,) * num_layers
    kinds = fields.raw.get("layer_types")
    if kinds is not None:
        unknown = set(kinds) - {"sliding_attention", "full_attention"}
        if unknown or len(kinds) != num_layers:
            raise fields.refusal(
                "layer_types", kinds, f"give sliding_attention or full_attention for each of {num_layers} layers"
            )
        return tuple(kind == "sliding_attention" for kind in kinds)
    if architecture == "Qwen2ForCausalLM":
        first_local = int(fields.raw.get("max_window_layers", 28))
        return tuple(layer >= first_local for layer in range(num_layers))
    return (True,) * num_layers


def _rope(fields: _Fields) -> RopeConfig:
    # transformers 5 writes rope_parameters; earlier files have rope_theta and rope_scaling.
    scaling = dict(fields.raw.get("rope_parameters") or fields.raw.get("rope_scaling") or {})
    theta = float(scaling.get("rope_theta", fields.raw.get("rope_theta", 10_000.0)))
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind not in ROPE_TYPES:
        raise fields.refusal("rope_scaling.rope_type", kind, f"choose one of {', '.join(ROPE_TYPES)}")
    if float(fields.raw.get("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0))) != 1.0:
        raise fields.refusal("partial_rotary_factor", scaling.get("partial_rotary_factor"), "only 1.0 is supported")
    for name in _ROPE_NEEDS.get(kind, ()):
        if scaling.get(name) is None:
            raise fields.refusal(f"rope_scaling.{name}", None, f"rope type {kind} needs it")
    original = scaling.get("original_max_position_embeddings")
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=float(scaling.get("factor") or 1.0),
        original_max_context=None if original is None else int(original),
        low_freq_factor=float(scaling.get("low_freq_factor") or 1.0),
        high_freq_factor=float(scaling.get("high_freq_factor") or 4.0),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        attention_factor=scaling.get("attention_factor"),
        is_truncated=bool(scaling.get("truncate", True)),
        mscale=scaling.get("mscale"),
        mscale_all_dim=scaling.get("mscale_all_dim"),
        factors=tuple(float(value) for value in scaling.get("factors", ())),
    )


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
