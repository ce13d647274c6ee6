"""From a Hugging Face config's fields to decoder layers, one function per family.

Field names and what an absent field means follow the configuration classes of Hugging Face transformers. Knows nothing
of where a config comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import CheckpointError
from engine.simulated.parts import Attention, Experts, FeedForward, LatentAttention, Layer, Mamba

Fields = Mapping[str, Any]


def field(raw: Fields, *names: str, default: int | None = None) -> int:
    """Read a whole number by the first of its names that is there.

    Raises CheckpointError naming the field when it is absent without default, or no positive whole number.
    """
    value = next((raw[name] for name in names if raw.get(name) is not None), default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: {names[0]} is {value!r}; a whole number of 1 or more is needed")
    return value


def layers_of(architecture: str, raw: Fields) -> tuple[Layer, ...]:
    """Build the stack of an architecture's layers.

    Raises CheckpointError for an architecture that is not known, naming it and all that are.
    """
    try:
        build = _BUILDERS[architecture]
    except KeyError:
        known = ", ".join(sorted(_BUILDERS))
        raise CheckpointError(
            f"config.json: architecture {architecture!r} cannot be simulated; known are {known}"
        ) from None
    return build(raw)


def window_of(architecture: str, raw: Fields) -> int | None:
    """Tokens that a local layer sees; None where no layer is local."""
    if not any(isinstance(layer.mixer, Attention) and layer.mixer.is_local for layer in layers_of(architecture, raw)):
        return None
    if architecture.startswith("Llama4"):
        return field(raw, "attention_chunk_size", default=8192)
    return field(raw, "sliding_window", default=4096)


def _attention(raw: Fields, *, is_local: bool = False, has_qk_norm: bool = False, biases: str = "") -> Attention:
    """Read grouped-query attention; `biases` names the projections that have them: letters of `qkvo`."""
    num_heads = field(raw, "num_attention_heads")
    hidden_size = field(raw, "hidden_size")
    num_kv_heads = field(raw, "num_key_value_heads", default=num_heads)
    head_dim = field(raw, "head_dim", "attention_head_dim", default=hidden_size // num_heads)
    sizes = {"q": num_heads * head_dim, "k": num_kv_heads * head_dim, "v": num_kv_heads * head_dim, "o": hidden_size}
    return Attention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        is_local=is_local,
        num_small=sum(sizes[letter] for letter in biases) + (2 * head_dim if has_qk_norm else 0),
    )


def _local_layers(raw: Fields, default: Callable[[int], bool]) -> list[bool]:
    """Tell for each layer whether it is local: as `layer_types` says, else by the family's rule."""
    num_layers = field(raw, "num_hidden_layers")
    types = raw.get("layer_types")
    if types is None:
        return [default(index) for index in range(num_layers)]
    if len(types) != num_layers or not set(types) <= {"full_attention", "sliding_attention", "chunked_attention"}:
        raise CheckpointError(f"config.json: layer_types must name the attention of each of {num_layers} layers")
    return [kind != "full_attention" for kind in types]


def _llama(raw: Fields) -> tuple[Layer, ...]:
    biases = "qkvo" if raw.get("attention_bias") else ""
    return _dense(raw, [False] * field(raw, "num_hidden_layers"), biases=biases)


def _mistral(raw: Fields) -> tuple[Layer, ...]:
    is_local = raw.get("sliding_window", 4096) is not None
    return _dense(raw, [is_local] * field(raw, "num_hidden_layers"))


def _phi3(raw: Fields) -> tuple[Layer, ...]:
    is_local = raw.get("sliding_window") is not None
    return _dense(raw, [is_local] * field(raw, "num_hidden_layers"))


def _qwen2(raw: Fields) -> tuple[Layer, ...]:
    return _dense(raw, _qwen_locals(raw), biases="qkv")


def _qwen3(raw: Fields) -> tuple[Layer, ...]:
    return _dense(raw, _qwen_locals(raw), has_qk_norm=True, biases="qkvo" if raw.get("attention_bias") else "")


def _qwen_locals(raw: Fields) -> list[bool]:
    if not raw.get("use_sliding_window") or raw.get("sliding_window") is None:
        return [False] * field(raw, "num_hidden_layers")
    first_local = field(raw, "max_window_layers", default=28)
    return _local_layers(raw, lambda index: index >= first_local)


def _gemma2(raw: Fields) -> tuple[Layer, ...]:
    return _dense(raw, _local_layers(raw, lambda index: index % 2 == 0), num_norms=4)


def _gemma3(raw: Fields) -> tuple[Layer, ...]:
    pattern = field(raw, "sliding_window_pattern", default=6)
    local = _local_layers(raw, lambda index: (index + 1) % pattern != 0)
    return _dense({"head_dim": 256} | dict(raw), local, num_norms=4, has_qk_norm=True)


def _dense(
    raw: Fields, local: list[bool], *, num_norms: int = 2, has_qk_norm: bool = False, biases: str = ""
) -> tuple[Layer, ...]:
    feed_forward = FeedForward(intermediate_size=field(raw, "intermediate_size"))
    return tuple(
        Layer(
            mixer=_attention(raw, is_local=is_local, has_qk_norm=has_qk_norm, biases=biases),
            feed_forward=feed_forward,
            num_norms=num_norms,
        )
        for is_local in local
    )


def _mixtral(raw: Fields) -> tuple[Layer, ...]:
    experts = Experts(
        num_experts=field(raw, "num_local_experts", default=8),
        top_k=field(raw, "num_experts_per_tok", default=2),
        intermediate_size=field(raw, "intermediate_size"),
    )
    is_local = raw.get("sliding_window") is not None
    layer = Layer(mixer=_attention(raw, is_local=is_local), feed_forward=experts)
    return (layer,) * field(raw, "num_hidden_layers")


def _qwen3_moe(raw: Fields) -> tuple[Layer, ...]:
    experts = Experts(
        num_experts=field(raw, "num_experts"),
        top_k=field(raw, "num_experts_per_tok"),
        intermediate_size=field(raw, "moe_intermediate_size"),
    )
    dense_layers = frozenset(raw.get("mlp_only_layers") or ())
    every = field(raw, "decoder_sparse_step", default=1)
    attention = _attention(raw, has_qk_norm=True)
    return tuple(
        Layer(mixer=attention, feed_forward=experts)
        if index not in dense_layers and (index + 1) % every == 0
        else Layer(mixer=attention, feed_forward=FeedForward(intermediate_size=field(raw, "intermediate_size")))
        for index in range(field(raw, "num_hidden_layers"))
    )


def _gpt_oss(raw: Fields) -> tuple[Layer, ...]:
    hidden_size, width = field(raw, "hidden_size"), field(raw, "intermediate_size")
    experts = Experts(
        num_experts=field(raw, "num_local_experts"),
        top_k=field(raw, "num_experts_per_tok", "experts_per_token"),
        intermediate_size=width,
        num_biases=2 * width + hidden_size,
    )
    biases = "qkvo" if raw.get("attention_bias", True) else ""
    return tuple(
        Layer(mixer=_attention(raw, is_local=is_local, biases=biases), feed_forward=experts)
        for is_local in _local_layers(raw, lambda index: index % 2 == 0)
    )


def _llama4(raw: Fields) -> tuple[Layer, ...]:
    """Every fourth layer sees everything, the others chunks; experts in every `interleave_moe_layer_step`-th layer."""
    width = field(raw, "intermediate_size")
    experts = Experts(
        num_experts=field(raw, "num_local_experts"),
        top_k=field(raw, "num_experts_per_tok", default=1),
        intermediate_size=width,
        shared_size=width,
    )
    dense = FeedForward(intermediate_size=field(raw, "intermediate_size_mlp", default=16384))
    every = field(raw, "interleave_moe_layer_step", default=1)
    interval = field(raw, "no_rope_layer_interval", default=4)
    local = _local_layers(raw, lambda index: (index + 1) % interval != 0)
    return tuple(
        Layer(
            mixer=_attention(raw, is_local=is_local),
            feed_forward=experts if (index + 1) % every == 0 else dense,
        )
        for index, is_local in enumerate(local)
    )


def _deepseek(raw: Fields) -> tuple[Layer, ...]:
    attention = LatentAttention(
        num_heads=field(raw, "num_attention_heads"),
        query_rank=None if raw.get("q_lora_rank") is None else field(raw, "q_lora_rank"),
        kv_rank=field(raw, "kv_lora_rank"),
        nope_dim=field(raw, "qk_nope_head_dim"),
        rope_dim=field(raw, "qk_rope_head_dim"),
        value_dim=field(raw, "v_head_dim"),
    )
    width = field(raw, "moe_intermediate_size")
    experts = Experts(
        num_experts=field(raw, "n_routed_experts"),
        top_k=field(raw, "num_experts_per_tok"),
        intermediate_size=width,
        shared_size=width * (raw.get("n_shared_experts") or 0),
    )
    dense = FeedForward(intermediate_size=field(raw, "intermediate_size"))
    num_dense = raw.get("first_k_dense_replace") or 0
    return tuple(
        Layer(mixer=attention, feed_forward=dense if index < num_dense else experts)
        for index in range(field(raw, "num_hidden_layers"))
    )


_STATE_VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_h(raw: Fields) -> tuple[Layer, ...]:
    """Layers of one part each, by pattern: Mamba-2, attention, feed-forward or experts, none of them gated."""
    kinds = raw.get("layers_block_type")
    if raw.get("hybrid_override_pattern"):
        kinds = [_NEMOTRON_LETTERS.get(letter, letter) for letter in raw["hybrid_override_pattern"]]
    if not kinds or len(kinds) != raw.get("num_hidden_layers", len(kinds)):
        raise CheckpointError("config.json: hybrid_override_pattern must name each of num_hidden_layers layers")
    parts = {kind: _nemotron_layer(kind, raw) for kind in set(kinds)}
    return tuple(parts[kind] for kind in kinds)


def _nemotron_layer(kind: str, raw: Fields) -> Layer:
    if kind == "mamba":
        dtype = raw.get("mamba_ssm_cache_dtype") or "bfloat16"
        mamba = Mamba(
            num_heads=field(raw, "mamba_num_heads"),
            head_dim=field(raw, "mamba_head_dim"),
            num_groups=field(raw, "n_groups"),
            state_size=field(raw, "ssm_state_size"),
            conv_kernel=field(raw, "conv_kernel"),
            state_value_bytes=_STATE_VALUE_BYTES.get(dtype, 2),
        )
        return Layer(mixer=mamba, feed_forward=None, num_norms=1)
    if kind == "attention":
        return Layer(mixer=_attention(raw), feed_forward=None, num_norms=1)
    if kind == "mlp":
        dense = FeedForward(intermediate_size=field(raw, "intermediate_size"), num_matrices=2)
        return Layer(mixer=None, feed_forward=dense, num_norms=1)
    if kind == "moe" and raw.get("moe_latent_size") is None:
        experts = Experts(
            num_experts=field(raw, "n_routed_experts"),
            top_k=field(raw, "num_experts_per_tok"),
            intermediate_size=field(raw, "moe_intermediate_size"),
            num_matrices=2,
            shared_size=field(raw, "moe_shared_expert_intermediate_size"),
        )
        return Layer(mixer=None, feed_forward=experts, num_norms=1)
    raise CheckpointError(f"config.json: a Nemotron-H layer of kind {kind!r} cannot be simulated")


_BUILDERS: dict[str, Callable[[Fields], tuple[Layer, ...]]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Phi3ForCausalLM": _phi3,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3VLForConditionalGeneration": _qwen3,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _gemma3,
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Qwen3VLMoeForConditionalGeneration": _qwen3_moe,
    "GptOssForCausalLM": _gpt_oss,
    "Llama4ForCausalLM": _llama4,
    "Llama4ForConditionalGeneration": _llama4,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "NemotronHForCausalLM": _nemotron_h,
}
ARCHITECTURES = tuple(sorted(_BUILDERS))
