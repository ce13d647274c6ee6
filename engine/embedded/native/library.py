"""The kernels as a shared library: compiled for this very CPU at first use, kept by the hash of all that went into it.

A plain C interface instead of torch's extension mechanism: nothing of torch's headers is compiled, which takes a
minute, and a library serves every version of torch (docs/adr/0012). Where no compiler is found, or it fails, there is
no library and a warning tells why once; WATTFRONT_NATIVE=off does without it, and WATTFRONT_NATIVE=require makes its
absence an error.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

import structlog
import torch

from engine.embedded.models import default_cache_dir
from engine.embedded.native.compiler import find_compiler
from engine.errors import InvalidSettings, NativeKernelsMissing

#: No -ffast-math: NaN and infinity must come through, as they end a request by name.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-w")
_TIMEOUT_S = 300.0
_FOLDER = Path(__file__).parent
_WISHES = ("auto", "off", "require")
#: What `cache.h` calls the formats that keys and values are stored in.
STORED = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 3}
_log = structlog.get_logger()


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the kernels, or None where there are none.

    Raises NativeKernelsMissing where WATTFRONT_NATIVE is `require` and there are none, InvalidSettings where it is a
    word that means nothing.
    """
    wish = os.environ.get("WATTFRONT_NATIVE", "auto")
    if wish not in _WISHES:
        raise InvalidSettings(f"WATTFRONT_NATIVE is {wish!r}; choose one of {', '.join(_WISHES)}")
    if wish == "off":
        return None
    try:
        return ctypes.CDLL(str(_built()))
    except (NativeKernelsMissing, OSError) as error:
        if wish == "require":
            raise NativeKernelsMissing(f"WATTFRONT_NATIVE is 'require', but {error}") from error
        _log.warning("native_kernels_missing", why=str(error), effect="torch computes instead, more slowly")
        return None


def kernels_for(device: torch.device) -> ctypes.CDLL | None:
    """Return the kernels where they can serve a device."""
    return library() if device.type == "cpu" else None


def kernels_dir() -> Path:
    """Return where compiled kernels are kept: WATTFRONT_KERNELS_DIR, else a folder in the cache directory."""
    configured = os.environ.get("WATTFRONT_KERNELS_DIR")
    return Path(configured) if configured else default_cache_dir() / "native"


def instructions() -> str:
    """Return what computes on this CPU, for the record of measurements: torch's instruction set, and the kernels."""
    isa, kernels = torch.backends.cpu.get_cpu_capability(), library()
    if kernels is None:
        return isa
    return f"{isa}, kernels with bf16 products" if kernels.wf_makes_pairs() else f"{isa}, kernels"


def reads(kernels: ctypes.CDLL, stored: torch.dtype, head_dim: int) -> bool:
    """Tell whether the kernels read a cache: its format, and heads of whole vectors."""
    return stored in STORED and head_dim % (kernels.wf_panel() // 2) == 0


def _built() -> Path:
    """Return the library's path, compiling it unless that was done before; one process does, others wait for it."""
    compiler = find_compiler()
    path = kernels_dir() / f"kernels-{_fingerprint(compiler)[:16]}.so"
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (path.parent / "building").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                _compile(compiler, path)
    except OSError as error:
        raise NativeKernelsMissing(f"the kernels cannot be kept in {path.parent}: {error.strerror}") from error
    return path


def _compile(compiler: tuple[str, ...], path: Path) -> None:
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build.", dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        command = [*compiler, *_FLAGS, *(str(source) for source in sorted(_FOLDER.glob("*.cpp"))), "-o", str(made)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise NativeKernelsMissing(f"{compiler[0]} took more than {_TIMEOUT_S:.0f} s") from None
        if run.returncode:
            raise NativeKernelsMissing(f"{compiler[0]} failed: {run.stderr.strip()[-500:]}")
        made.replace(path)
    _log.info("native_kernels_built", compiler=compiler[0], seconds=round(time.monotonic() - begun_s, 1))


def _fingerprint(compiler: tuple[str, ...]) -> str:
    """Hash sources, flags, compiler and CPU: a library of another machine may have instructions that this one lacks."""
    digest = hashlib.sha256()
    for path in sorted([*_FOLDER.glob("*.cpp"), *_FOLDER.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    digest.update(repr((_FLAGS, compiler, version, _cpu())).encode())
    return digest.hexdigest()


def _cpu() -> list[str]:
    """Return what names the CPU's instructions on Linux; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
