"""GGUF files as model folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from engine.embedded import gguf_file
from engine.embedded.tokenizer import Tokenizer
from engine.errors import CheckpointError
from tests.engine.conftest import OpenTiny
from tests.engine.gguf_files import SENTENCEPIECE_TOKENS, write_gemma3_gguf, write_gguf
from tests.engine.logits import all_logits
from tests.engine.tiny_families import write_family
from tests.tiny_model import write_tiny_model

PROMPT = tuple(b"pass phrase is cobalt fig")


def convert(path: Path, folder: Path) -> Path:
    gguf_file.convert(path, folder, lambda what, share: None)
    return folder


def test_a_converted_file_is_the_same_model(tmp_path: Path, open_tiny: OpenTiny) -> None:
    """An fp32 GGUF gives the logits of the safetensors it was written from: names, order and rotary pairs are right."""
    folder = convert(write_gguf(tmp_path / "m.gguf"), tmp_path / "m")

    assert torch.allclose(all_logits(open_tiny(folder=folder), PROMPT), all_logits(open_tiny(), PROMPT), atol=1e-5)


def test_quantised_tensors_are_dequantised(tmp_path: Path, open_tiny: OpenTiny) -> None:
    """A Q8_0 file gives nearly the logits of the original."""
    folder = convert(write_gguf(tmp_path / "m.gguf", quantised=gguf.GGMLQuantizationType.Q8_0), tmp_path / "m")
    exact, near = all_logits(open_tiny(), PROMPT), all_logits(open_tiny(folder=folder), PROMPT)

    assert (near - exact).norm() / exact.norm() < 0.05


def test_a_file_without_an_output_tensor_is_tied(tmp_path: Path) -> None:
    """BUG-41: GGUF has no flag for tied embeddings; the missing tensor says it."""
    folder = convert(write_gguf(tmp_path / "m.gguf", is_tied=True), tmp_path / "m")

    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"llama.rope.scaling.type": "linear"}, "rope.scaling.type is 'linear' with rope.scaling.factor None"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "'longrope'"),
        ({"tokenizer.ggml.pre": "mystery"}, "pre-tokenizer 'mystery' is not supported"),
        ({"llama.embedding_length": None}, "has no embedding_length"),
    ],
)
def test_what_a_file_leaves_open_is_refused(tmp_path: Path, extra: dict[str, Any], words: str) -> None:
    """BUG-41: a scaling type without its factor, or metadata we cannot read, is refused by name and nothing is left."""
    path = write_gguf(tmp_path / "m.gguf", extra=extra)

    with pytest.raises(CheckpointError, match=words):
        convert(path, tmp_path / "m")

    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_rope_scaling_and_windows_are_kept(tmp_path: Path) -> None:
    """BUG-41: a sliding window or a scaling that the file states reaches the config."""
    extra = {
        "llama.attention.sliding_window": 8,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
    }
    config = json.loads(
        (convert(write_gguf(tmp_path / "m.gguf", extra=extra), tmp_path / "m") / "config.json").read_text()
    )

    assert (config["architectures"], config["sliding_window"]) == (["MistralForCausalLM"], 8)
    assert config["rope_parameters"]["factor"] == 4.0
    assert config["rope_parameters"]["original_max_position_embeddings"] == 128


@pytest.mark.parametrize("num_kept", [0, 10, 2000, -100])
def test_a_truncated_file_is_refused(tmp_path: Path, num_kept: int) -> None:
    """A file cut anywhere is refused by its name, and no half-written folder stays."""
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:num_kept])

    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        convert(path, tmp_path / "m")

    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_a_full_disk_is_refused_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little room for the converted model is told with both figures and the remedy."""
    path = write_gguf(tmp_path / "m.gguf")
    usage = type("Usage", (), {"free": 10 * 2**20})()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)

    with pytest.raises(CheckpointError, match=r"10 MiB free, the converted model needs .* WATTFRONT_CACHE_DIR"):
        convert(path, tmp_path / "m")


def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way is told as such, and the half-written folder is removed."""
    path = write_gguf(tmp_path / "m.gguf")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_file, "save_file", fail)

    with pytest.raises(CheckpointError, match="No space left on device"):
        convert(path, tmp_path / "m")
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_a_converted_tokenizer_splits_digits(tmp_path: Path) -> None:
    """The pre-tokenizer that the file names is rebuilt: SmolLM takes digits one by one."""
    tokenizer = Tokenizer(convert(write_gguf(tmp_path / "m.gguf"), tmp_path / "m"))

    assert tokenizer.decode(tokenizer.encode("ab 123")) == "ab 123"


def test_a_tokenizer_beside_the_file_wins(tmp_path: Path) -> None:
    """A tokenizer.json beside a GGUF whose tokenizer we cannot rebuild is used instead."""
    write_tiny_model(tmp_path)
    path = write_gguf(tmp_path / "m.gguf", extra={"tokenizer.ggml.pre": "mystery"})

    folder = convert(path, tmp_path / "converted")

    assert Tokenizer(folder).encode("ab") == Tokenizer(tmp_path).encode("ab")


@pytest.fixture(scope="module", name="gemma3")
def _gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3 folder with the vocabulary of the GGUF files."""
    return write_family(
        tmp_path_factory.mktemp("gemma3"),
        "gemma3",
        vocab_size=len(SENTENCEPIECE_TOKENS),
        query_pre_attn_scalar=32,
        tie_word_embeddings=True,
    )


def test_a_converted_gemma3_file_is_the_same_model(tmp_path: Path, gemma3: Path, open_tiny: OpenTiny) -> None:
    """A Gemma 3 GGUF gives its folder's logits: the 1 in its norms, both rotary embeddings, the local layers."""
    folder = convert(write_gemma3_gguf(tmp_path / "m.gguf", gemma3), tmp_path / "m")

    found = all_logits(open_tiny(folder=folder), PROMPT)

    assert torch.allclose(found, all_logits(open_tiny(folder=gemma3), PROMPT), atol=1e-5)


def test_gemma3_fields_that_a_file_leaves_out(tmp_path: Path, gemma3: Path) -> None:
    """BUG-41: without a pattern every sixth layer is global, and a missing window is refused by name."""
    extra = {"gemma3.attention.sliding_window_pattern": None}
    folder = convert(write_gemma3_gguf(tmp_path / "m.gguf", gemma3, extra=extra), tmp_path / "m")
    bare = write_gemma3_gguf(tmp_path / "b.gguf", gemma3, extra={"gemma3.attention.sliding_window": None})

    assert json.loads((folder / "config.json").read_text())["sliding_window_pattern"] == 6
    with pytest.raises(CheckpointError, match=r"has no attention\.sliding_window"):
        convert(bare, tmp_path / "b")


def test_a_sentencepiece_tokenizer_is_rebuilt(tmp_path: Path, gemma3: Path) -> None:
    """Merges go by score, unknown letters fall back to their bytes, runs of spaces are tokens, and text comes back."""
    tokenizer = Tokenizer(convert(write_gemma3_gguf(tmp_path / "m.gguf", gemma3), tmp_path / "m"))

    def pieces(text: str) -> list[str]:
        return [SENTENCEPIECE_TOKENS[i] for i in tokenizer.encode(text)]

    assert pieces(" abcd") == ["▁abc", "d"]
    assert pieces("bcd") == ["bc", "d"]
    assert pieces("abc") == ["abc"]
    assert pieces("<bos>é") == ["<bos>", "<0xC3>", "<0xA9>"]
    assert pieces("a   b") == ["a", "   ", "b"]
    assert tokenizer.decode(tokenizer.encode(" ab   cé ja")) == " ab   cé ja"


def test_a_sentencepiece_tokenizer_with_a_space_prefix_is_refused(tmp_path: Path, gemma3: Path) -> None:
    """A tokenizer that we could not rebuild exactly is refused by what is the matter with it."""
    path = write_gemma3_gguf(tmp_path / "m.gguf", gemma3, extra={"tokenizer.ggml.add_space_prefix": True})

    with pytest.raises(CheckpointError, match="puts a space before the text"):
        convert(path, tmp_path / "m")
