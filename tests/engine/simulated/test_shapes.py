"""Shapes read from configs add up to what is published, and senseless configs are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError, UnknownModel
from engine.simulated.parts import Attention, Experts, FeedForward, LatentAttention, Mamba
from engine.simulated.shapes import ModelShape, load_shape, shape_from_config

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}
#: Totals of the published checkpoints: their tensors' sizes summed by Hugging Face, or the model card's figure.
PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-30b-a3b": 30_532_122_624,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "gpt-oss-20b": 20.91e9,
    "gpt-oss-120b": 116.83e9,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140.6e9,
    "deepseek-r1": 671e9,
    "deepseek-v3.1": 671e9,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "nemotron-nano-12b-v2": 12_310_001_152,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    # KerasHub's count of the text model, whose vocabulary is cut by 64 unused rows.
    "gemma-3-12b": 11_765_788_416,
    "gemma-3-27b": 27.0e9,
    "llama-4-scout": 109e9,
    "llama-4-maverick": 400e9,
}
#: Parameters a token meets, by the model cards.
ACTIVE = {
    "qwen3-30b-a3b": 3.3e9,
    "qwen3-235b-a22b": 22e9,
    "qwen3-coder-480b-a35b": 35e9,
    "mixtral-8x7b": 12.9e9,
    "mixtral-8x22b": 39e9,
    "deepseek-r1": 37e9,
    "llama-4-scout": 17e9,
    "llama-4-maverick": 17e9,
}


def make_shape(**changes: Any) -> ModelShape:
    """Build a tiny Llama with some fields changed."""
    return shape_from_config(TINY | changes, name="tiny")


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_total_parameters_are_as_published(name: str, published: float) -> None:
    """The shape of every catalogue model adds up to its published size, the vision towers of Llama 4 aside."""
    assert load_shape(name).num_parameters == pytest.approx(published, rel=0.0125)


def test_counts_of_plain_decoders_are_exact() -> None:
    """Where the checkpoint holds nothing but the decoder, not one weight is missed."""
    exact = {name: count for name, count in PUBLISHED.items() if isinstance(count, int) and "gemma" not in name}
    assert exact == {name: load_shape(name).num_parameters for name in exact}


@pytest.mark.parametrize(("name", "published"), ACTIVE.items())
def test_active_parameters_are_as_published(name: str, published: float) -> None:
    """A mixture's token meets as many parameters as its maker says."""
    assert load_shape(name).num_active_parameters == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(("name", "published"), [("gpt-oss-20b", 3.61e9), ("gpt-oss-120b", 5.13e9)])
def test_active_parameters_of_gpt_oss_leave_the_embedding_out(name: str, published: float) -> None:
    """OpenAI's active count is ours less the input embedding, of which a token takes one row."""
    shape = load_shape(name)
    assert shape.num_active_parameters - shape.embedding_weights == pytest.approx(published, rel=0.005)


def test_tiny_llama_is_counted_by_hand() -> None:
    """Two layers of 8 x 8 queries and outputs, 8 x 4 keys and values, three 8 x 16 matrices and norms add up."""
    layer = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + 2 * 8
    assert make_shape().num_parameters == 2 * layer + 8 + 2 * 32 * 8


def test_tied_output_counts_once() -> None:
    """A tied output matrix is the embedding, not a second one."""
    untied, tied = make_shape(), make_shape(tie_word_embeddings=True)
    assert untied.num_parameters - tied.num_parameters == 32 * 8


def test_gemma_alternates_local_and_global_layers() -> None:
    """Gemma 3 sees everything in each sixth layer, and 1024 tokens in the others."""
    shape = load_shape("gemma-3-12b")
    kinds = [isinstance(layer.mixer, Attention) and layer.mixer.is_local for layer in shape.layers[:6]]
    assert (kinds, shape.window) == ([True] * 5 + [False], 1024)


def test_gpt_oss_alternates_from_a_local_layer_and_keeps_mxfp4_experts() -> None:
    """gpt-oss has a window of 128 in every other layer, and experts in MXFP4."""
    shape = load_shape("gpt-oss-20b")
    assert (shape.num_local_layers, shape.window, shape.has_native_mxfp4_experts) == (12, 128, True)


def test_layer_types_win_over_the_family_rule() -> None:
    """A config that names each layer's attention is taken by its word."""
    shape = make_shape(
        architectures=["Gemma3ForCausalLM"],
        layer_types=["full_attention", "sliding_attention"],
        sliding_window=16,
    )
    kinds = [isinstance(layer.mixer, Attention) and layer.mixer.is_local for layer in shape.layers]
    assert (kinds, shape.window) == ([False, True], 16)


def test_qwen_ignores_a_window_that_is_switched_off() -> None:
    """Qwen configs carry a sliding window that only `use_sliding_window` turns on."""
    fields = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 16, "max_window_layers": 1}
    off, on = make_shape(**fields), make_shape(**fields, use_sliding_window=True)
    assert (off.window, off.num_local_layers, on.window, on.num_local_layers) == (None, 0, 16, 1)


def test_mistral_null_window_is_no_window() -> None:
    """An absent window means Mistral's 4096, null means none."""
    fields = {"architectures": ["MistralForCausalLM"]}
    assert (make_shape(**fields).window, make_shape(**fields, sliding_window=None).window) == (4096, None)


def test_deepseek_has_latent_attention_dense_first_layers_and_a_shared_expert() -> None:
    """DeepSeek-R1 caches 512 + 64 values per layer and token, starts with 3 dense layers, and is published in FP8."""
    shape = load_shape("deepseek-r1")
    mixer, experts = shape.layers[0].mixer, shape.experts
    assert isinstance(mixer, LatentAttention)
    assert mixer.kv_values_per_token == 576
    assert [isinstance(layer.feed_forward, FeedForward) for layer in shape.layers[:4]] == [True, True, True, False]
    assert experts == Experts(num_experts=256, top_k=8, intermediate_size=2048, shared_size=2048)
    assert shape.native_precision == "fp8"


def test_maverick_has_experts_in_every_other_layer() -> None:
    """Llama 4 Maverick interleaves dense layers of 16384 with expert layers."""
    shape = load_shape("llama-4-maverick")
    assert (shape.num_expert_layers, shape.num_layers) == (24, 48)
    assert shape.layers[0].feed_forward == FeedForward(intermediate_size=16384)


def test_nemotron_reads_its_pattern() -> None:
    """Nemotron Nano 9B v2 has 27 Mamba, 4 attention and 25 feed-forward layers."""
    shape = load_shape("nemotron-nano-9b-v2")
    attention = sum(isinstance(layer.mixer, Attention) for layer in shape.layers)
    assert (shape.num_mamba_layers, attention, shape.num_blocks) == (27, 4, 56)


def test_mamba_state_is_as_wide_as_the_config_says() -> None:
    """A 32-bit recurrent state takes twice a 16-bit one; the convolution's stays in 16 bit."""
    narrow = Mamba(num_heads=4, head_dim=8, num_groups=1, state_size=16, conv_kernel=4)
    wide = Mamba(num_heads=4, head_dim=8, num_groups=1, state_size=16, conv_kernel=4, state_value_bytes=4)
    convolution = 2 * (32 + 2 * 16) * 3
    assert (narrow.state_bytes, wide.state_bytes) == (2 * 512 + convolution, 4 * 512 + convolution)


def test_vision_model_is_its_text_part() -> None:
    """A vision-language config is read from its text_config, tied as the outer config says."""
    text = {key: value for key, value in TINY.items() if key != "architectures"}
    raw = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": text, "tie_word_embeddings": True}
    shape = shape_from_config(raw, name="vision")
    assert (shape.hidden_size, shape.is_tied) == (8, True)


def test_config_file_and_folder_are_the_same_shape(tmp_path: Path) -> None:
    """A folder stands for the config.json inside it, and gives the shape its name."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    assert load_shape(folder) == load_shape(str(folder / "config.json"))
    assert load_shape(folder).name == "my-model"


def test_unknown_architecture_is_named_with_what_works() -> None:
    """An architecture we cannot simulate is refused by its name, listing those we can."""
    with pytest.raises(CheckpointError, match=r"'RwkvForCausalLM' cannot be simulated; known are .*LlamaForCausalLM"):
        make_shape(architectures=["RwkvForCausalLM"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "tiny: config.json: hidden_size is None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"architectures": []}, "names no architectures"),
        (
            {"architectures": ["GptOssForCausalLM"], "num_local_experts": 2, "num_experts_per_tok": 1,
             "layer_types": ["full_attention"]},
            "layer_types must name",
        ),
    ],
)  # fmt: skip
def test_senseless_fields_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """A field that makes no sense is named in the refusal."""
    with pytest.raises(CheckpointError, match=message):
        make_shape(**changes)


def test_damaged_config_is_refused(tmp_path: Path) -> None:
    """A config that is no JSON object, or not there, is refused with its path."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        load_shape(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        load_shape(tmp_path)
    with pytest.raises(CheckpointError, match="No such file"):
        load_shape(tmp_path / "nowhere" / "config.json")


def test_unknown_name_is_answered_with_close_ones() -> None:
    """A misspelt name is refused with the names it may have meant."""
    with pytest.raises(UnknownModel, match=r"'llama-3\.1-7b'.*llama-3\.1-8b"):
        load_shape("llama-3.1-7b")


@pytest.mark.parametrize(
    ("quantization", "precision"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq"}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
    ],
)
def test_published_precision_is_read(quantization: dict[str, str] | None, precision: str) -> None:
    """How the published weights are stored comes from the quantization config, else it is 16 bit."""
    assert make_shape(quantization_config=quantization).native_precision == precision
