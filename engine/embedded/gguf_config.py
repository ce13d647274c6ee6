"""A GGUF file's metadata as the content of a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from engine.embedded.families import FAMILIES
from engine.errors import CheckpointError

#: GGUF architecture -> transformers architecture.
GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "gemma3": "Gemma3ForCausalLM"}
#: Layers of Gemma 3 27B, the one whose scores are scaled by hidden_size / heads: the file does not say it, and
#: llama.cpp tells it by this number too.
_GEMMA3_27B_LAYERS = 62


class GgufMetadata:
    """The file's key-value pairs; keys under `{arch}.` are asked for without it."""

    def __init__(self, reader: Any, path: Path) -> None:
        self._reader = reader
        #: Values already read: a vocabulary of 262,144 takes seconds.
        self._read: dict[str, Any] = {}
        self.path = path
        self.arch = str(self.require("general.architecture"))
        if self.arch not in GGUF_ARCHITECTURES:
            raise CheckpointError(
                f"{path}: GGUF architecture {self.arch!r} is not supported; these are: {', '.join(GGUF_ARCHITECTURES)}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default where the file has none."""
        if key not in self._read:
            field = self._reader.get_field(key) or self._reader.get_field(f"{getattr(self, 'arch', '')}.{key}")
            self._read[key] = None if field is None else field.contents()
        return default if self._read[key] is None else self._read[key]

    def require(self, key: str) -> Any:
        """Return a value; raise CheckpointError where the file has none."""
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"{self.path}: GGUF metadata has no {key}; the file is incomplete")
        return value


def config_of(
    metadata: GgufMetadata, tensor_names: Collection[str], rope_factors: list[float] | None
) -> dict[str, Any]:
    """Return the content of the config.json; `rope_factors` are those of the file's rope_freqs tensor."""
    hidden_size, num_heads = int(metadata.require("embedding_length")), int(metadata.require("attention.head_count"))
    context = int(metadata.require("context_length"))
    window = metadata.get("attention.sliding_window")
    # llama.cpp files Mistral models under `llama`; the window is what tells them apart.
    is_mistral = metadata.arch == "llama" and bool(window)
    architecture = "MistralForCausalLM" if is_mistral else GGUF_ARCHITECTURES[metadata.arch]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": FAMILIES[architecture].model_type,
        "vocab_size": len(metadata.require("tokenizer.ggml.tokens")),
        "hidden_size": hidden_size,
        "intermediate_size": int(metadata.require("feed_forward_length")),
        "num_hidden_layers": int(metadata.require("block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(metadata.get("attention.head_count_kv", num_heads)),
        "head_dim": int(metadata.get("attention.key_length", hidden_size // num_heads)),
        "rms_norm_eps": float(metadata.require("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": context,
        # A GGUF without an output tensor shares the embedding: there is no flag for it.
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "attention_bias": "blk.0.attn_q.bias" in tensor_names,
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "rope_parameters": _rope(metadata, context, rope_factors),
        "sliding_window": window,
    }
    if architecture == "Gemma3ForCausalLM":
        return config | _gemma3(metadata, config)
    return config | {"use_sliding_window": bool(window), "max_window_layers": 0}


def _gemma3(metadata: GgufMetadata, config: dict[str, Any]) -> dict[str, Any]:
    """Return what Gemma 3 has besides: two rotary embeddings, and local layers by a pattern."""
    metadata.require("attention.sliding_window")
    local_theta = float(metadata.get("rope.freq_base_swa", 10_000.0))
    is_27b = config["num_hidden_layers"] == _GEMMA3_27B_LAYERS
    return {
        "rope_parameters": {
            "full_attention": config["rope_parameters"],
            "sliding_attention": {"rope_theta": local_theta, "rope_type": "default"},
        },
        "sliding_window_pattern": int(metadata.get("attention.sliding_window_pattern", 6)),
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if is_27b
        else config["head_dim"],
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
    }


def _rope(metadata: GgufMetadata, context: int, rope_factors: list[float] | None) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": float(metadata.get("rope.freq_base", 10_000.0)), "rope_type": "default"}
    if rope_factors is not None:
        return rope | {"rope_type": "factors", "factors": rope_factors}
    kind = metadata.get("rope.scaling.type", "none")
    if kind == "none":
        return rope
    factor = metadata.get("rope.scaling.factor")
    if kind not in ("linear", "yarn") or factor is None:
        raise CheckpointError(
            f"{metadata.path}: rope.scaling.type is {kind!r} with rope.scaling.factor {factor}; "
            "linear and yarn with a factor are supported"
        )
    original = metadata.get("rope.scaling.original_context_length", context)
    return rope | {"rope_type": kind, "factor": float(factor), "original_max_position_embeddings": int(original)}
