"""A folder's safetensors, checked before and while they are read: sizes, index, shapes, completeness.

Nothing is left at a random value: a tensor that is missing is an error that names the file to look at.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.embedded.config import read_json
from engine.errors import CheckpointError

#: Tensors that old exporters wrote although they follow from the config, and the copy of a tied head.
_DERIVED = ("rotary_emb.inv_freq", "lm_head.weight")


class Weights:
    """Tensors by name, read from disk when asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_of = _locate(folder)
        self._handles: dict[Path, Any] = {}
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Return a tensor in fp32; raise CheckpointError when it is missing or has another shape."""
        if name not in self._file_of:
            raise CheckpointError(f"{self.folder}: no file has the tensor {name}; the checkpoint is incomplete")
        self._taken.add(name)
        path = self._file_of[name]
        if path not in self._handles:
            self._handles[path] = safe_open(path, framework="pt")
        try:
            tensor: torch.Tensor = self._handles[path].get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{path}: the index says it has {name}, but it has not; fetch both again") from error
        if tuple(tensor.shape) != tuple(shape):
            raise CheckpointError(f"{path}: {name} has shape {tuple(tensor.shape)}, the config asks for {tuple(shape)}")
        return tensor.to(torch.float32)

    def require_all_taken(self) -> None:
        """Raise CheckpointError when the checkpoint has tensors that nobody took: it is of another model then."""
        left = [name for name in self._file_of if name not in self._taken and not name.endswith(_DERIVED)]
        if left:
            raise CheckpointError(
                f"{self._file_of[left[0]]}: has the tensor {left[0]} ({len(left)} such), for which the architecture in "
                "config.json has no use; the two are of different models"
            )


def _locate(folder: Path) -> dict[str, Path]:
    """Map tensor names to files: by the index where there is one, else from the only file."""
    index_path = folder / "model.safetensors.index.json"
    if index_path.is_file():
        return _locate_by_index(folder, index_path)
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: has no *.safetensors file")
    if len(files) > 1:
        raise CheckpointError(
            f"{folder}: has {len(files)} safetensors files ({files[0].name}, {files[1].name}, ...) and no "
            "model.safetensors.index.json that says which belong together"
        )
    return dict.fromkeys(_tensor_names(files[0]), files[0])


def _locate_by_index(folder: Path, index_path: Path) -> dict[str, Path]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_path}: has no weight_map")
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise CheckpointError(f"{folder}: the index names files that are not there: {', '.join(missing)}")
    present = {shard: _tensor_names(folder / shard) for shard in shards}
    stale = [name for name, shard in weight_map.items() if name not in present[shard]]
    if stale:
        raise CheckpointError(
            f"{index_path}: says {stale[0]} is in {weight_map[stale[0]]}, which does not have it "
            f"({len(stale)} such entries); index and files are of different checkpoints"
        )
    return {name: folder / shard for name, shard in weight_map.items()}


def _tensor_names(path: Path) -> set[str]:
    """Read a file's header, and check that the file has all the bytes that the header promises.

    Format: 8 bytes little-endian header length, JSON header, tensor data (safetensors' README).
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= size - 8:
            raise CheckpointError(f"{path}: truncated or not safetensors (header of {length} bytes, file of {size})")
        try:
            header = json.loads(file.read(length))
            tensors = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
            end = 8 + length + max((int(offsets[1]) for offsets in tensors.values()), default=0)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise CheckpointError(f"{path}: the safetensors header is damaged ({error}); fetch it again") from error
    if end != size:
        raise CheckpointError(
            f"{path}: truncated: the header promises {end} bytes, the file has {size}; fetch it again"
        )
    return set(tensors)
