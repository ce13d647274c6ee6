"""Build the fake libnvidia-ml.so.1, script its GPUs, and put it in a child process's way.

The GPUs live in a file; here and in every child they are the same memory. Layout and meaning: libnvidia_ml.c.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import Structure, c_char, c_int32, c_uint32, c_uint64, sizeof
from pathlib import Path

import pytest

LIBRARY_NAME = "libnvidia-ml.so.1"
STATE_VARIABLE = "WATTFRONT_FAKE_NVML_STATE"
PRIVILEGE_VARIABLE = "WATTFRONT_FAKE_NVML_PRIVILEGED"
FIRST_UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
SECOND_UUID = "GPU-89aa0000-1111-2222-3333-444455556666"

_SOURCE = Path(__file__).with_name("libnvidia_ml.c")
_STATE_VERSION = 1
_MAX_GPUS = 8
_MAX_PIDS = 16
_BUILD_TIMEOUT_S = 60


class NativeGpu(Structure):
    """One GPU; setting an attribute sets it for every process. Change what it draws within `NativeNvml.changing`."""

    uuid: bytes
    name: bytes
    busid: bytes
    event_bits: int
    counted_uj: int
    since_us: int
    tick_us: int
    #: How many setting calls took effect.
    num_writes: int
    architecture: int
    virtualization: int
    is_persistent: int
    is_lost: int
    is_active: int
    idle_mw: int
    #: At the highest clock; less in proportion at a lower one.
    active_mw: int
    lowest_clock_mhz: int
    highest_clock_mhz: int
    clock_step_mhz: int
    memory_clock_mhz: int
    #: 0 and 0 while the clock is free.
    locked_min_mhz: int
    locked_max_mhz: int
    is_lock_effective: int
    limit_mw: int
    lowest_limit_mw: int
    highest_limit_mw: int
    default_limit_mw: int
    #: Replaces the limit in force; 0: it is the one that is set.
    enforced_mw: int
    temperature_c: int
    #: Codes that calls answer with; 0: they work.
    lock_refusal: int
    reset_refusal: int
    limit_refusal: int
    counter_refusal: int
    num_pids: int

    _fields_ = (
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("busid", c_char * 32),
        *((name, c_uint64) for name in ("event_bits", "counted_uj", "since_us", "tick_us", "num_writes")),
        *(
            (name, c_uint32)
            for name in (
                *("architecture", "virtualization", "is_persistent", "is_lost", "is_active", "idle_mw", "active_mw"),
                *("lowest_clock_mhz", "highest_clock_mhz", "clock_step_mhz", "memory_clock_mhz"),
                *("locked_min_mhz", "locked_max_mhz", "is_lock_effective"),
                *("limit_mw", "lowest_limit_mw", "highest_limit_mw", "default_limit_mw", "enforced_mw"),
            )
        ),
        ("temperature_c", c_int32),
        *((name, c_uint32) for name in ("lock_refusal", "reset_refusal", "limit_refusal", "counter_refusal")),
        ("num_pids", c_uint32),
        ("pids", c_uint32 * _MAX_PIDS),
    )

    @property
    def locked(self) -> tuple[int, int] | None:
        """The range that the SM clock is locked into; None while it is free."""
        return (self.locked_min_mhz, self.locked_max_mhz) if self.locked_max_mhz else None

    @property
    def sm_clock_mhz(self) -> int:
        """The present SM clock."""
        if not self.is_active:
            return self.lowest_clock_mhz
        is_capped = self.locked_max_mhz and self.is_lock_effective
        ceiling_mhz = min(self.highest_clock_mhz, self.locked_max_mhz) if is_capped else self.highest_clock_mhz
        return ceiling_mhz - (ceiling_mhz - self.lowest_clock_mhz) % self.clock_step_mhz

    @property
    def power_mw(self) -> int:
        """What it draws now."""
        if not self.is_active:
            return self.idle_mw
        return self.idle_mw + (self.active_mw - self.idle_mw) * self.sm_clock_mhz // self.highest_clock_mhz

    def settle(self) -> None:
        """Count what was drawn up to now."""
        now_us = time.monotonic_ns() // 1000
        self.counted_uj += max(0, now_us - self.since_us) * self.power_mw // 1000
        self.since_us = now_us


class _State(Structure):
    version: int
    size: int
    num_gpus: int
    needs_privilege: int

    _fields_ = (
        *((name, c_uint32) for name in ("version", "size", "num_gpus", "needs_privilege")),
        ("gpus", NativeGpu * _MAX_GPUS),
    )


def build(folder: Path) -> Path:
    """Compile the library into a folder and return its path; skip the test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the fake driver with")
    library = folder / LIBRARY_NAME
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-Wl,-soname,{LIBRARY_NAME}"]
    subprocess.run([compiler, *options, "-o", library, _SOURCE], check=True, timeout=_BUILD_TIMEOUT_S)
    return library


class NativeNvml:
    """The GPUs that every process given `environ` sees."""

    def __init__(self, library: Path, state_path: Path, *, uuids: tuple[str, ...] = (FIRST_UUID,)) -> None:
        self._library = library
        self._state_path = state_path
        state_path.write_bytes(bytes(sizeof(_State)))
        self._file = state_path.open("r+b")
        self._state = _State.from_buffer(mmap.mmap(self._file.fileno(), sizeof(_State)))
        self._state.version, self._state.size = _STATE_VERSION, sizeof(_State)
        self._state.num_gpus, self._state.needs_privilege = len(uuids), 1
        for number, uuid in enumerate(uuids):
            _fill(self.gpu(number), uuid, number)

    def gpu(self, number: int = 0) -> NativeGpu:
        """Return one GPU, live."""
        gpu: NativeGpu = self._state.gpus[number]
        return gpu

    @property
    def needs_privilege(self) -> bool:
        """Whether setting calls ask for the privilege that `environ` hands out."""
        return bool(self._state.needs_privilege)

    @needs_privilege.setter
    def needs_privilege(self, needs: bool) -> None:
        self._state.needs_privilege = needs

    @contextmanager
    def changing(self, number: int = 0) -> Iterator[NativeGpu]:
        """Count what a GPU drew until now, and let nobody look until what it draws is changed."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            self.gpu(number).settle()
            yield self.gpu(number)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def show_pids(self, *pids: int, number: int = 0) -> None:
        """Let these processes compute on a GPU."""
        gpu = self.gpu(number)
        gpu.pids[: len(pids)] = pids
        gpu.num_pids = len(pids)

    def environ(self, *, is_privileged: bool) -> dict[str, str]:
        """Return a child's whole environment: this one, with the fake driver found first.

        CUDA_VISIBLE_DEVICES names the fake GPUs, so that a machine with real ones behaves as any other.
        """
        uuids = [self.gpu(number).uuid.decode() for number in range(self._state.num_gpus)]
        folders = [str(self._library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
            STATE_VARIABLE: str(self._state_path),
            PRIVILEGE_VARIABLE: "1" if is_privileged else "0",
        }

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        self._file.close()


def _fill(gpu: NativeGpu, uuid: str, number: int) -> None:
    gpu.uuid, gpu.name = uuid.encode(), b"NVIDIA H100 80GB HBM3"
    gpu.busid = f"00000000:{0x18 + number:02X}:00.0".encode()
    gpu.architecture, gpu.is_persistent, gpu.is_active, gpu.is_lock_effective = 9, 1, 1, 1
    gpu.tick_us, gpu.since_us = 10_000, time.monotonic_ns() // 1000
    gpu.counted_uj = 5_000_000_000
    gpu.idle_mw, gpu.active_mw = 70_000, 400_000
    gpu.lowest_clock_mhz, gpu.highest_clock_mhz, gpu.clock_step_mhz, gpu.memory_clock_mhz = 210, 1980, 15, 2619
    gpu.lowest_limit_mw, gpu.highest_limit_mw = 200_000, 700_000
    gpu.limit_mw = gpu.default_limit_mw = 700_000
    gpu.temperature_c = 45
