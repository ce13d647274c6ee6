"""A GGUF copy of a folder holds the same weights: what llama.cpp is compared on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from benchmarks.peers.gguf_copy import gguf_copy
from tests.engine.gguf_files import write_gguf
from tests.tiny_model import write_tiny_model


def contents(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Return a file's metadata of the architecture, and its tensors in fp32."""
    reader = gguf.GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items() if name.startswith("llama.")}
    return metadata, {tensor.name: np.array(tensor.data, dtype=np.float32) for tensor in reader.tensors}


@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 0.0), ("f16", 1e-3)])
def test_a_copy_is_what_the_converter_of_llama_cpp_writes(precision: str, tolerance: float, tmp_path: Path) -> None:
    """Tensors have llama.cpp's names, layout and values, rounded to 16 bit or exactly, and so has the shape."""
    _, expected = contents(write_gguf(tmp_path / "converted.gguf", is_tied=True))
    shape, found = contents(gguf_copy(write_tiny_model(tmp_path / "tiny", tie_word_embeddings=True), precision))

    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        np.testing.assert_allclose(found[name], weights, rtol=tolerance, atol=tolerance)
    assert (shape["llama.embedding_length"], shape["llama.attention.head_count_kv"]) == (64, 2)


def test_a_copy_is_written_once(tmp_path: Path) -> None:
    """It lies beside the folder and is found there the next time."""
    folder = write_tiny_model(tmp_path / "tiny")
    copy = gguf_copy(folder, "f16")
    written_ns = copy.stat().st_mtime_ns

    assert gguf_copy(folder, "f16") == copy == tmp_path / "tiny-f16.gguf"
    assert copy.stat().st_mtime_ns == written_ns
