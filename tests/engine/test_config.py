"""Reading a config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.embedded.config import ModelConfig, load_config, model_config
from engine.errors import CheckpointError
from tests.tiny_model import tiny_config


def read(**changes: Any) -> ModelConfig:
    return model_config(tiny_config(**changes), source="config.json")


@pytest.mark.parametrize(
    ("changes", "head_dim", "num_kv_heads"),
    [
        ({"head_dim": 32}, 32, 2),
        ({"head_dim": None}, 16, 2),
        ({"num_key_value_heads": ...}, 16, 4),
        ({"num_key_value_heads": None}, 16, 4),
    ],
)
def test_attention_shapes(changes: dict[str, Any], head_dim: int, num_kv_heads: int) -> None:
    """BUG-42: head_dim may differ from hidden / heads or be null, and no KV head count means as many as heads."""
    config = read(**changes)

    assert (config.head_dim, config.num_kv_heads) == (head_dim, num_kv_heads)
    assert config.kv_bytes_per_token(4) == 2 * 2 * num_kv_heads * head_dim * 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 7, "hidden_size": 70}, "num_key_value_heads is 2: it must divide num_attention_heads"),
        ({"hidden_size": 66}, r"hidden_size is 66: num_attention_heads \(4\) does not divide it"),
        ({"hidden_size": 12}, "head_dim is 3: rotary embeddings need an even number"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": ...}, "vocab_size is None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; these are: LlamaForCausalLM"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_scaling.factor is None: rope type linear needs it"),
        ({"rope_scaling": {"type": "yarn"}, "rope_parameters": ...}, "rope_scaling.factor is None"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "rope_scaling.low_freq_factor is None"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        (
            {"architectures": ["MistralForCausalLM"], "layer_types": ["sliding_attention"]},
            "for each of 2 layers",
        ),
    ],
)
def test_senseless_fields_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    """BUG-42: a field that makes no sense, or that we do not support, is refused at load with its name and value."""
    with pytest.raises(CheckpointError, match=words):
        read(**changes)


def test_families_have_their_own_defaults() -> None:
    """BUG-42: a short config means what its own family means by it."""
    short = {"num_key_value_heads": ..., "max_position_embeddings": ..., "num_attention_heads": 32, "hidden_size": 64}
    llama = read(**short)
    mistral = read(architectures=["MistralForCausalLM"], **short)

    assert (llama.num_kv_heads, llama.max_context, llama.sliding_window) == (32, 2048, None)
    assert (mistral.num_kv_heads, mistral.max_context, mistral.sliding_window) == (8, 131072, 4096)


def test_windows_apply_to_the_layers_that_have_them() -> None:
    """BUG-43: local and global layers are told apart by layer_types, max_window_layers or the family."""
    window = {"sliding_window": 8, "architectures": ["Qwen2ForCausalLM"]}

    assert read(**window).local_layers == (False, False)
    assert read(**window, use_sliding_window=True, max_window_layers=1).local_layers == (False, True)
    kinds = ["sliding_attention", "full_attention"]
    assert read(**window, use_sliding_window=True, layer_types=kinds).local_layers == (True, False)
    assert read(architectures=["MistralForCausalLM"], sliding_window=8).local_layers == (True, True)


def test_dynamic_scaling_ends_the_context_where_it_would_begin() -> None:
    """Dynamic NTK scaling is never applied: the usable context is the trained one."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 128}

    assert read(rope_parameters=rope).usable_context == 128


def test_the_older_spelling_of_rope_is_read() -> None:
    """rope_theta and rope_scaling mean the same as rope_parameters."""
    old = read(rope_parameters=..., rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0})
    new = read(rope_parameters={"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0})

    assert old.rope == new.rope


def test_end_tokens_come_from_the_generation_config(tmp_path: Path) -> None:
    """generation_config.json wins, since it may list several end-of-sequence tokens."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(eos_token_id=1)))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')

    assert load_config(tmp_path).eos_token_ids == (2, 3)


def test_parameters_are_counted_once() -> None:
    """A tied head adds no parameters."""
    assert read(tie_word_embeddings=True).num_parameters == read().num_parameters - 256 * 64
