"""Reading a config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from engine.embedded.config import ModelConfig, load_config, model_config
from engine.embedded.families import ARCHITECTURES, FAMILIES
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
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            "rope_scaling.short_factor is None: rope type longrope needs it",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        (
            {"architectures": ["MistralForCausalLM"], "layer_types": ["sliding_attention"]},
            "for each of 2 layers",
        ),
        (
            {"architectures": ["MistralForCausalLM"], "layer_types": ["sliding_attention", "full_attention"]},
            "the layers of this architecture are all alike",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"]},
            "sliding_attention needs sliding_window",
        ),
        ({"architectures": ["Gemma2ForCausalLM"], "sliding_window": None}, "sliding_window is None"),
        ({"architectures": ["Gemma2ForCausalLM"], "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 0.0}, "attn_logit_softcapping is 0.0"),
        ({"architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": None}, "query_pre_attn_scalar is None"),
        ({"architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        (
            {"architectures": ["Gemma3ForCausalLM"]},
            "rope_parameters is .*: give it for each of full_attention, sliding_",
        ),
        ({"architectures": ["Qwen3ForCausalLM"], "rope_parameters": {"full_attention": {}}}, "has one for all layers"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "Gemma3ForConditionalGeneration is not supported"),
        ({"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.1}, "makes 1 rotary values of head_dim 16"),
        (
            {
                "architectures": ["Phi3ForCausalLM"],
                "rope_parameters": ...,
                "rope_scaling": {"type": "su", "short_factor": [1.0] * 7, "long_factor": [1.0] * 8},
            },
            "short_factor is .*: it must have 8 numbers",
        ),
        ({"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 9}, "is 9: there are 8 experts"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": "yes"}, "norm_topk_prob is 'yes'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method is 'gptq'"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None"),
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


BARE = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_config_of_sizes_alone_means_what_transformers_means(architecture: str) -> None:
    """BUG-42: with nothing but sizes stated, every field has the default of the family's class in transformers."""
    sizes = {
        name: value for name, value in tiny_config(num_attention_heads=32, hidden_size=512).items() if name in BARE
    }
    model_type = FAMILIES[architecture].model_type
    theirs = AutoConfig.for_model(model_type, **sizes)

    ours = model_config(sizes | {"model_type": model_type}, source="config.json")

    rope = theirs.rope_parameters.get("full_attention", theirs.rope_parameters)
    local = theirs.rope_parameters.get("sliding_attention", rope)
    assert ours.architecture == architecture
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 512 // 32)
    assert (ours.rms_norm_eps, ours.max_context) == (theirs.rms_norm_eps, theirs.max_position_embeddings)
    assert (ours.rope.theta, ours.local_rope.theta) == (rope["rope_theta"], local["rope_theta"])
    assert ours.is_tied == theirs.tie_word_embeddings
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    assert ours.attention_softcap == getattr(theirs, "attn_logit_softcapping", None)
    assert ours.logit_softcap == getattr(theirs, "final_logit_softcapping", None)
    assert ours.attention_scale == (getattr(theirs, "query_pre_attn_scalar", ours.head_dim)) ** -0.5
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)
    if ours.experts is not None:
        assert ours.experts.num_experts == theirs.num_local_experts
        assert ours.experts.top_k == theirs.num_experts_per_tok
        assert ours.experts.is_normalised == getattr(theirs, "norm_topk_prob", True)
        assert ours.experts.intermediate_size == getattr(theirs, "moe_intermediate_size", theirs.intermediate_size)


def test_the_layers_that_have_experts() -> None:
    """Every decoder_sparse_step-th layer has experts, but those of mlp_only_layers."""
    moe = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 6}

    assert read(**moe).expert_layers == (True,) * 6
    assert read(**moe, decoder_sparse_step=2, mlp_only_layers=[3]).expert_layers == (
        False,
        True,
        False,
        False,
        False,
        True,
    )


def test_every_nth_layer_of_gemma_is_global() -> None:
    """BUG-43: Gemma 2's layers alternate, Gemma 3 has five local ones to a global one, and layer_types wins."""
    gemma3 = {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 6, "rope_parameters": ...}
    kinds = ["full_attention"] * 5 + ["sliding_attention"]

    assert read(architectures=["Gemma2ForCausalLM"]).local_layers == (True, False)
    assert read(**gemma3).local_layers == (True,) * 5 + (False,)
    assert read(**gemma3, sliding_window_pattern=2, layer_types=kinds).local_layers == (False,) * 5 + (True,)


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


def test_longrope_ends_the_context_where_its_long_factors_would_begin() -> None:
    """LongRoPE's long factors would turn cached keys anew: Phi-3's usable context is the trained one."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = read(
        architectures=["Phi3ForCausalLM"],
        rope_parameters=...,
        rope_scaling={"type": "su"} | factors,
        original_max_position_embeddings=64,
    )

    assert (config.max_context, config.usable_context) == (512, 64)


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
