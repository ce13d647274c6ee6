"""Memory that may still be filled, of the machine, of control groups and of a GPU; and how some is given back."""

from __future__ import annotations

import ctypes
from pathlib import Path

import psutil
import torch

from engine.embedded.memory import Budget, gpu_budget, host_budget

#: Files of a control group with a memory limit: the limit, what is used, and in `memory.stat` the page cache that the
#: kernel gives up first.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def budget_of(device: torch.device, gpu_memory_fraction: float) -> Budget:
    """Return what a launch on the device may fill now."""
    if device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        return gpu_budget(free_bytes, total_bytes, gpu_memory_fraction)
    return host_budget(psutil.virtual_memory().available, group_free_bytes())


def trim_heap() -> None:
    """Give the system back what was freed: glibc keeps holes between what is in use, of any size.

    After loading SmolLM2-135M these were 120 to 240 MB (docs/log.md, 2026-12-01). Does nothing with another C library.
    """
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(ctypes.c_size_t(0))


def group_free_bytes(mount: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return what the tightest memory limit of this process's control groups leaves; None where nothing limits it.

    Reads both versions of the kernel's interface. In a container the group that is seen at the mount is its own.
    """
    if not membership.is_file():
        return None
    rooms: list[int] = []
    for line in membership.read_text(encoding="utf-8").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            rooms.extend(_rooms(mount, path, _VERSION_2))
        elif "memory" in controllers.split(","):
            rooms.extend(_rooms(mount / "memory", path, _VERSION_1))
    return min(rooms, default=None)


def _rooms(root: Path, path: str, files: tuple[str, str, str]) -> list[int]:
    """Return what each limit from the process's group up to the root leaves."""
    group = root / path.lstrip("/")
    above = [folder for folder in group.parents if root in (folder, *folder.parents)]
    found = (_room(folder, files) for folder in {group, root, *above})
    return [room for room in found if room is not None]


def _room(folder: Path, files: tuple[str, str, str]) -> int | None:
    limit_name, used_name, droppable_name = files
    try:
        limit = (folder / limit_name).read_text(encoding="utf-8").strip()
        used = int((folder / used_name).read_text(encoding="utf-8"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # the root has no limit, and a container may not show the groups above its own
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(stat.get(droppable_name, 0)))
