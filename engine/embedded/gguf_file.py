"""A GGUF file as a Hugging Face folder: config.json, tokenizer.json and fp32 safetensors.

Converted once, then loaded like any other checkpoint. Quantised tensors are dequantised to fp32 by the `gguf` package.
Knows nothing of the decoder, and needs no torch.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from engine.errors import CheckpointError

#: Progress: what is being done, and the share done, 0 to 1.
Progress = Callable[[str, float], None]

#: GGUF architecture -> transformers architecture.
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
#: Pre-tokenizers by their GGUF name; the patterns are those of the models' own tokenizer.json files.
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}],
    "gpt-2": [],
    "default": [],
    "llama-bpe": [
        {
            "type": "Split",
            "pattern": {
                "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            },
            "behavior": "Isolated",
            "invert": False,
        }
    ],
    "qwen2": [
        {
            "type": "Split",
            "pattern": {
                "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            },
            "behavior": "Isolated",
            "invert": False,
        }
    ],
}
#: GGUF token types of tokens that text must not be split into: control and user-defined.
_SPECIAL_TYPES = (3, 4)


def convert(gguf_path: Path, folder: Path, progress: Progress) -> None:
    """Write the folder; it exists only when it is complete.

    Raises CheckpointError for a damaged file, an architecture or tokenizer we do not know, or a full disk.
    """
    try:
        reader = gguf.GGUFReader(gguf_path)
    except (ValueError, IndexError, OSError, KeyError) as error:
        raise CheckpointError(f"{gguf_path}: not a readable GGUF file ({error}); fetch it again") from error
    metadata = _Metadata(reader, gguf_path)
    _require_complete(reader, gguf_path)
    _require_space(reader, folder)
    config = _config(metadata, {tensor.name for tensor in reader.tensors}, _rope_factors(reader))
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        progress("tokenizer", 0.1)
        own_tokenizer = gguf_path.with_name("tokenizer.json")
        if own_tokenizer.is_file():
            shutil.copy(own_tokenizer, partial / "tokenizer.json")
        else:
            (partial / "tokenizer.json").write_text(json.dumps(_tokenizer(metadata)), encoding="utf-8")
        (partial / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        save_file(_tensors(reader, config, progress), partial / "model.safetensors")
        _publish(partial, folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot write the converted model ({error.strerror or error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise
        # Another process converted the same file meanwhile; its result is as good as ours.


class _Metadata:
    """The file's key-value pairs; keys under `{arch}.` are asked for without it."""

    def __init__(self, reader: Any, path: Path) -> None:
        self._reader = reader
        self.path = path
        self.arch = str(self.require("general.architecture"))
        if self.arch not in _ARCHITECTURES:
            raise CheckpointError(
                f"{path}: GGUF architecture {self.arch!r} is not supported; these are: {', '.join(_ARCHITECTURES)}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key) or self._reader.get_field(f"{getattr(self, 'arch', '')}.{key}")
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"{self.path}: GGUF metadata has no {key}; the file is incomplete")
        return value


def _require_complete(reader: Any, path: Path) -> None:
    size = path.stat().st_size
    end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors), default=0)
    if end > size or end == 0:
        raise CheckpointError(f"{path}: truncated: its tensors end at byte {end}, the file has {size}; fetch it again")


def _require_space(reader: Any, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    needed = 4 * sum(int(tensor.n_elements) for tensor in reader.tensors) + 64 * 2**20
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        raise CheckpointError(
            f"{folder.parent}: {free / 2**20:.0f} MiB free, the converted model needs {needed / 2**20:.0f} MiB; "
            "free some space or set WATTFRONT_CACHE_DIR to another disk"
        )


def _config(metadata: _Metadata, tensor_names: set[str], rope_factors: list[float] | None) -> dict[str, Any]:
    hidden_size, num_heads = int(metadata.require("embedding_length")), int(metadata.require("attention.head_count"))
    context = int(metadata.require("context_length"))
    window = metadata.get("attention.sliding_window")
    # llama.cpp files Mistral models under `llama`; the window is what tells them apart.
    is_mistral = metadata.arch == "llama" and bool(window)
    architecture = "MistralForCausalLM" if is_mistral else _ARCHITECTURES[metadata.arch]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
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
        "use_sliding_window": bool(window),
        "max_window_layers": 0,
    }
    return config


def _rope(metadata: _Metadata, context: int, rope_factors: list[float] | None) -> dict[str, Any]:
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


def _rope_factors(reader: Any) -> list[float] | None:
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            return [float(value) for value in np.asarray(tensor.data, dtype=np.float32).reshape(-1)]
    return None


def _tensors(reader: Any, config: dict[str, Any], progress: Progress) -> dict[str, np.ndarray[Any, Any]]:
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for i, tensor in enumerate(reader.tensors):
        progress(f"tensor {tensor.name}", 0.1 + 0.8 * i / len(reader.tensors))
        if tensor.name == "rope_freqs.weight":
            continue
        name = _hf_name(tensor.name)
        shape = tuple(int(n) for n in reversed(tensor.shape))
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        # llama.cpp interleaves the two halves of every rotary pair in the files it calls `llama`.
        if config["architectures"][0] in ("LlamaForCausalLM", "MistralForCausalLM"):
            if ".attn_q." in tensor.name:
                weights = _deinterleave(weights, config["num_attention_heads"])
            elif ".attn_k." in tensor.name:
                weights = _deinterleave(weights, config["num_key_value_heads"])
        tensors[name] = np.ascontiguousarray(weights)
    return tensors


def _hf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _MODEL_TENSORS:
        return f"{_MODEL_TENSORS[stem]}.{suffix}"
    block, layer, part = (*stem.split("."), "", "")[:3]
    if block != "blk" or part not in _LAYER_TENSORS:
        raise CheckpointError(f"GGUF tensor {name} is not part of a Llama-family model")
    return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.{suffix}"


def _deinterleave(weights: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    rows = weights.shape[0]
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def _tokenizer(metadata: _Metadata) -> dict[str, Any]:
    """Build the content of a byte-level BPE tokenizer.json."""
    kind, pre = metadata.require("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"{metadata.path}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; put the model's "
            f"tokenizer.json beside it, or use one of gpt2 with {', '.join(_PRE_TOKENIZERS)}"
        )
    tokens = metadata.require("tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = _PRE_TOKENIZERS[pre]
    # A Split already cuts words apart, so the byte level must not cut again.
    pre_tokenizers = [*split, byte_level | {"use_regex": not any(part["type"] == "Split" for part in split)}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": types[i] == _SPECIAL_TYPES[0],
            }
            for i, token in enumerate(tokens)
            if types[i] in _SPECIAL_TYPES
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata.get("tokenizer.ggml.merges", [])],
        },
    }
