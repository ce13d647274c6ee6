"""Checkpoint files: tied, sharded, stale, truncated, of another shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.embedded.loop import EmbeddedEngine
from engine.errors import CheckpointError
from engine.settings import EngineSettings
from tests.engine.logits import all_logits
from tests.engine.reference import load_reference, reference_logits
from tests.tiny_model import tiny_config, tiny_tensors, write_tiny_model

PROMPT = tuple(b"pass phrase is cobalt fig")


def open_folder(folder: Path) -> EmbeddedEngine:
    return EmbeddedEngine(EngineSettings(model="tiny", max_context=128, num_threads=1), folder)


def shard(folder: Path, *, num_files: int = 2) -> dict[str, str]:
    """Split a folder's single file into shards with an index; return the weight map."""
    tensors = tiny_tensors(tiny_config())
    names = sorted(tensors)
    files = {f"model-{i + 1:05}-of-{num_files:05}.safetensors": names[i::num_files] for i in range(num_files)}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


def assert_like_reference(folder: Path) -> None:
    expected = reference_logits(load_reference(folder), PROMPT)

    assert torch.allclose(all_logits(open_folder(folder), PROMPT), expected, atol=1e-4)


@pytest.mark.parametrize("is_tied", [True, False])
def test_tied_and_untied_heads_load(tmp_path: Path, is_tied: bool) -> None:
    """BUG-41: a tied and an untied checkpoint give the reference's logits."""
    assert_like_reference(write_tiny_model(tmp_path, tie_word_embeddings=is_tied))


def test_a_copy_of_the_tied_head_in_the_file_is_ignored(tmp_path: Path) -> None:
    """BUG-41: lm_head beside tie_word_embeddings changes nothing when it is the copy that exporters write."""
    tensors = tiny_tensors(tiny_config())
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    assert_like_reference(write_tiny_model(tmp_path, tensors=tensors, tie_word_embeddings=True))


def test_tensors_that_follow_from_the_config_are_ignored(tmp_path: Path) -> None:
    """BUG-41: the rotary frequencies that old exporters wrote beside the weights change nothing."""
    tensors = tiny_tensors(tiny_config()) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}

    assert_like_reference(write_tiny_model(tmp_path, tensors=tensors))


def test_a_tensor_without_a_use_is_refused(tmp_path: Path) -> None:
    """BUG-41: a tensor that the architecture does not have, as a quantised file's scales, is refused by its name."""
    tensors = tiny_tensors(tiny_config()) | {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}

    with pytest.raises(
        CheckpointError, match=r"has the tensor model\.layers\.0\.mlp\.up_proj\.weight_scale \(1 such\)"
    ):
        open_folder(write_tiny_model(tmp_path, tensors=tensors))


def test_an_untied_checkpoint_without_a_head_is_refused(tmp_path: Path) -> None:
    """BUG-41: a missing lm_head is named; nothing is left at random values."""
    write_tiny_model(tmp_path, tensors=tiny_tensors(tiny_config(), with_head=False))

    with pytest.raises(CheckpointError, match=r"no file has the tensor lm_head\.weight"):
        open_folder(tmp_path)


def test_shards_are_joined_by_their_index(tmp_path: Path) -> None:
    """BUG-41: a sharded checkpoint loads like a single file, and a stray file beside it is left alone."""
    shard(write_tiny_model(tmp_path), num_files=3)
    save_file({"model.norm.weight": torch.zeros(64)}, tmp_path / "old.safetensors")

    assert_like_reference(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """BUG-41: an index that names a file that is not there is refused with the file's name."""
    shard(write_tiny_model(tmp_path))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()

    with pytest.raises(CheckpointError, match=r"not there: model-00002-of-00002\.safetensors"):
        open_folder(tmp_path)


def test_a_stale_index_is_named(tmp_path: Path) -> None:
    """BUG-41: an index that places a tensor in a file without it is refused with both names."""
    weight_map = shard(write_tiny_model(tmp_path))
    name, file = "model.norm.weight", "model-00001-of-00002.safetensors"
    other = "model-00002-of-00002.safetensors" if weight_map[name] == file else file
    index = {"weight_map": weight_map | {name: other}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(CheckpointError, match=f"says {name} is in {other}, which does not have it"):
        open_folder(tmp_path)


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    """BUG-41: without an index nobody can know which of several files belong together."""
    shard(write_tiny_model(tmp_path))
    (tmp_path / "model.safetensors.index.json").unlink()

    with pytest.raises(CheckpointError, match="2 safetensors files"):
        open_folder(tmp_path)


@pytest.mark.parametrize("num_kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, num_kept: int) -> None:
    """BUG-41: a file cut anywhere is refused by its name before anything is loaded."""
    path = write_tiny_model(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_kept])

    with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated"):
        open_folder(tmp_path)


def test_a_wrong_shape_is_refused(tmp_path: Path) -> None:
    """BUG-41: a tensor of another shape is refused with its name and both shapes."""
    tensors = tiny_tensors(tiny_config())
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(64, 100)
    write_tiny_model(tmp_path, tensors=tensors)

    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down_proj\.weight has shape \(64, 100\)"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, "there is no such file"),
        ("config.json", "{", "not readable as JSON"),
        ("config.json", "[]", "holds no JSON object"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{}", "not a readable tokenizer"),
        ("model.safetensors.index.json", "{}", "has no weight_map"),
    ],
)
def test_damaged_companions_are_refused(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    """Every file that a model folder needs is named when it is missing or damaged."""
    write_tiny_model(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)

    with pytest.raises(CheckpointError, match=words):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 32},
        {"num_key_value_heads": 4},
        {"architectures": ["Qwen2ForCausalLM"]},
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 8},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
            }
        },
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "rope_theta": 10000.0,
            }
        },
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "rope_theta": 10000.0,
            }
        },
    ],
    ids=lambda changes: "-".join(f"{v['rope_type']}" if k == "rope_parameters" else k for k, v in changes.items()),
)
def test_every_shape_we_accept_equals_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Biases, head sizes, families, windows and rope scalings give the reference's logits."""
    assert_like_reference(write_tiny_model(tmp_path, **changes))
