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

from engine.embedded.gguf_config import GgufMetadata, config_of
from engine.embedded.gguf_tokenizer import tokenizer_of
from engine.errors import CheckpointError

#: Progress: what is being done, and the share done, 0 to 1.
Progress = Callable[[str, float], None]

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
_GEMMA3_TENSORS = _LAYER_TENSORS | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MODEL_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert(gguf_path: Path, folder: Path, progress: Progress) -> None:
    """Write the folder; it exists only when it is complete.

    Raises CheckpointError for a damaged file, an architecture or tokenizer we do not know, or a full disk.
    """
    try:
        reader = gguf.GGUFReader(gguf_path)
    except (ValueError, IndexError, OSError, KeyError) as error:
        raise CheckpointError(f"{gguf_path}: not a readable GGUF file ({error}); fetch it again") from error
    metadata = GgufMetadata(reader, gguf_path)
    _require_complete(reader, gguf_path)
    _require_space(reader, folder)
    config = config_of(metadata, {tensor.name for tensor in reader.tensors}, _rope_factors(reader))
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        progress("tokenizer", 0.1)
        own_tokenizer = gguf_path.with_name("tokenizer.json")
        if own_tokenizer.is_file():
            shutil.copy(own_tokenizer, partial / "tokenizer.json")
        else:
            (partial / "tokenizer.json").write_text(json.dumps(tokenizer_of(metadata)), encoding="utf-8")
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


def _rope_factors(reader: Any) -> list[float] | None:
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            return [float(value) for value in np.asarray(tensor.data, dtype=np.float32).reshape(-1)]
    return None


def _tensors(reader: Any, config: dict[str, Any], progress: Progress) -> dict[str, np.ndarray[Any, Any]]:
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    architecture = config["architectures"][0]
    is_gemma = architecture == "Gemma3ForCausalLM"
    for i, tensor in enumerate(reader.tensors):
        progress(f"tensor {tensor.name}", 0.1 + 0.8 * i / len(reader.tensors))
        if tensor.name == "rope_freqs.weight":
            continue
        name = _hf_name(tensor.name, _GEMMA3_TENSORS if is_gemma else _LAYER_TENSORS)
        shape = tuple(int(n) for n in reversed(tensor.shape))
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        # llama.cpp interleaves the two halves of every rotary pair in the files it calls `llama`.
        if architecture in ("LlamaForCausalLM", "MistralForCausalLM"):
            if ".attn_q." in tensor.name:
                weights = _deinterleave(weights, config["num_attention_heads"])
            elif ".attn_k." in tensor.name:
                weights = _deinterleave(weights, config["num_key_value_heads"])
        # It adds Gemma's 1 to the norms' weights; a folder has them without.
        if is_gemma and tensor.name.endswith("norm.weight"):
            weights = weights - 1
        tensors[name] = np.ascontiguousarray(weights)
    return tensors


def _hf_name(name: str, layer_tensors: dict[str, str]) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _MODEL_TENSORS:
        return f"{_MODEL_TENSORS[stem]}.{suffix}"
    block, layer, part = (*stem.split("."), "", "")[:3]
    if block != "blk" or part not in layer_tensors:
        raise CheckpointError(f"GGUF tensor {name} is not part of a model of its architecture that we know")
    return f"model.layers.{layer}.{layer_tensors[part]}.{suffix}"


def _deinterleave(weights: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    rows = weights.shape[0]
    pairs = weights.reshape(num_heads, rows // num_heads // 2, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)
