"""A scriptable libnvidia-ml under the unmodified nvidia-ml-py bindings.

It stands where `ctypes.CDLL` would load the driver's library, so the bindings' own loading, pointers and error
classes run as they do on a GPU. Speaks only the calls that `probes.nvidia.nvml` makes; any other name is missing, as in
an old driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p, cast, memmove, sizeof
from functools import partial
from typing import Any

import pynvml
import pytest

from tests.probes.fake_gpu import FIRST_UUID, NOT_SUPPORTED, SECOND_UUID, FakeGpu, Field

__all__ = ["FIRST_UUID", "NOT_SUPPORTED", "SECOND_UUID", "FakeGpu", "FakeNvml", "Field", "install"]

UNINITIALIZED: int = pynvml.NVML_ERROR_UNINITIALIZED
INVALID_ARGUMENT: int = pynvml.NVML_ERROR_INVALID_ARGUMENT
NOT_FOUND: int = pynvml.NVML_ERROR_NOT_FOUND
INSUFFICIENT_SIZE: int = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
GPU_IS_LOST: int = pynvml.NVML_ERROR_GPU_IS_LOST

_FIRST_SLICE_HANDLE = 1000


class FakeNvml:
    """The library: names resolve to functions with the C calling convention.

    `call_NAME` is a call to the library, `ask_NAME` one to a GPU: those are refused as the GPU's script says.
    """

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.init_code = 0
        self.num_inits = 0
        self.num_shutdowns = 0
        #: Names that an older driver does not have.
        self.missing: set[str] = set()
        self._functions: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name in self.missing or name.startswith("_"):
            raise AttributeError(name)
        call = getattr(type(self), f"call_{name}", None)
        ask = getattr(type(self), f"ask_{name}", None)
        # A partial takes attributes: the bindings set `restype` on some functions.
        if call is not None:
            return self._functions.setdefault(name, partial(call, self))
        if ask is not None:
            return self._functions.setdefault(name, partial(self._ask, name, ask))
        raise AttributeError(name)

    def call_nvmlInitWithFlags(self, _flags: Any) -> int:
        self.num_inits += self.init_code == 0
        return self.init_code

    def call_nvmlShutdown(self) -> int:
        self.num_shutdowns += 1
        if self.num_shutdowns < self.num_inits:
            return 0
        for gpu in self.gpus:
            gpu.catch_up()
            if not gpu.is_persistent:  # its last client is gone
                gpu.reload_driver()
        return 0 if self.num_shutdowns == self.num_inits else UNINITIALIZED

    def call_nvmlErrorString(self, _code: Any) -> bytes:
        return b"an error"

    def call_nvmlSystemGetDriverVersion(self, buffer: Any, _size: Any) -> int:
        buffer.value = b"570.86.10"
        return 0

    def call_nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def call_nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        code = self._refusal(self.gpus[index.value], "nvmlDeviceGetHandleByIndex_v2")
        return code or self._give_handle(handle, index.value + 1)

    def call_nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        wanted = uuid.value.decode()
        for number, gpu in enumerate(self.gpus):
            if gpu.uuid == wanted:
                return self._refusal(gpu, "nvmlDeviceGetHandleByUUID") or self._give_handle(handle, number + 1)
            if wanted in gpu.slices:
                return self._give_handle(handle, _FIRST_SLICE_HANDLE + number)
        return NOT_FOUND

    def call_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, slice_handle: Any, handle: Any) -> int:
        return self._give_handle(handle, _address(slice_handle) - _FIRST_SLICE_HANDLE + 1)

    def ask_nvmlDeviceGetUUID(self, gpu: FakeGpu, buffer: Any, _size: Any) -> int:
        buffer.value = gpu.uuid.encode()
        return 0

    def ask_nvmlDeviceGetName(self, gpu: FakeGpu, buffer: Any, _size: Any) -> int:
        buffer.value = gpu.name.encode()
        return 0

    def ask_nvmlDeviceGetPciInfo_v3(self, gpu: FakeGpu, info: Any) -> int:
        info._obj.busId = gpu.pci_id.encode()
        return 0

    def ask_nvmlDeviceGetVbiosVersion(self, _gpu: FakeGpu, buffer: Any, _size: Any) -> int:
        buffer.value = b"96.00.89"
        return 0

    def ask_nvmlDeviceGetArchitecture(self, gpu: FakeGpu, architecture: Any) -> int:
        return _give(architecture, gpu.architecture)

    def ask_nvmlDeviceGetMigMode(self, gpu: FakeGpu, current: Any, pending: Any) -> int:
        return _give(current, gpu.is_mig) or _give(pending, gpu.is_mig)

    def ask_nvmlDeviceGetVirtualizationMode(self, gpu: FakeGpu, mode: Any) -> int:
        return _give(mode, gpu.virtualization)

    def ask_nvmlDeviceGetPersistenceMode(self, gpu: FakeGpu, mode: Any) -> int:
        return _give(mode, gpu.is_persistent)

    def ask_nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu, count: Any, rows: Any) -> int:
        pids = sorted(gpu.compute_pids)
        for row, pid in zip(rows or (), pids, strict=False):
            row.pid = pid
        return _give_count(count, rows, len(pids))

    def ask_nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu, limit: Any) -> int:
        return _give(limit, gpu.present_enforced_mw())

    def ask_nvmlDeviceGetPowerManagementLimit(self, gpu: FakeGpu, limit: Any) -> int:
        return _give(limit, gpu.limit_mw)

    def ask_nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: FakeGpu, limit: Any) -> int:
        return _give(limit, gpu.default_limit_mw)

    def ask_nvmlDeviceGetPowerManagementLimitConstraints(self, gpu: FakeGpu, low: Any, high: Any) -> int:
        return _give(low, gpu.limits_mw[0]) or _give(high, gpu.limits_mw[1])

    def ask_nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu, energy: Any) -> int:
        return _give(energy, gpu.counted_mj())

    def ask_nvmlDeviceGetPowerUsage(self, gpu: FakeGpu, power: Any) -> int:
        now_s = gpu.clock.monotonic_s()
        return _give(power, int(gpu.power_usage_mw(now_s) if gpu.power_usage_mw else gpu.present_power_mw()))

    def ask_nvmlDeviceGetFieldValues(self, gpu: FakeGpu, _count: Any, values: Any) -> int:
        for entry in values._obj:
            answer = gpu.fields.get((entry.fieldId, entry.scopeId))
            if answer is None:
                entry.nvmlReturn = NOT_SUPPORTED
                entry.value.ullVal = 4_991_201_436_214_789_335  # what papi#564 read from such an entry
            else:
                _fill(entry, answer(gpu.clock.monotonic_s()))
        return 0

    def ask_nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: Any, clock: Any) -> int:
        is_memory = kind.value == pynvml.NVML_CLOCK_MEM
        return _give(clock, gpu.memory_clock_mhz if is_memory else gpu.present_sm_clock_mhz())

    def ask_nvmlDeviceGetTemperatureV(self, gpu: FakeGpu, reading: Any) -> int:
        if reading._obj.version != pynvml.nvmlTemperature_v1:
            return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        reading._obj.temperature = gpu.present_temperature_c()
        return 0

    def ask_nvmlDeviceGetTemperature(self, gpu: FakeGpu, _sensor: Any, temperature: Any) -> int:
        return _give(temperature, gpu.present_temperature_c())

    def ask_nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu, bits: Any) -> int:
        return _give(bits, gpu.present_event_bits())

    def ask_nvmlDeviceGetSupportedMemoryClocks(self, gpu: FakeGpu, count: Any, clocks: Any) -> int:
        return _give_clocks(count, clocks, gpu.memory_clocks_mhz)

    def ask_nvmlDeviceGetSupportedGraphicsClocks(self, gpu: FakeGpu, memory_mhz: Any, count: Any, clocks: Any) -> int:
        if memory_mhz.value not in gpu.memory_clocks_mhz:
            return NOT_FOUND
        return _give_clocks(count, clocks, gpu.clocks_mhz)

    def ask_nvmlDeviceSetGpuLockedClocks(self, gpu: FakeGpu, lowest: Any, highest: Any) -> int:
        low, high = lowest.value, highest.value
        if not gpu.clocks_mhz or not gpu.clocks_mhz[0] <= low <= high <= gpu.clocks_mhz[-1]:
            return INVALID_ARGUMENT
        gpu.locked = (low, high)
        return 0

    def ask_nvmlDeviceResetGpuLockedClocks(self, gpu: FakeGpu) -> int:
        gpu.locked = None
        return 0

    def ask_nvmlDeviceSetPowerManagementLimit(self, gpu: FakeGpu, limit: Any) -> int:
        if not gpu.limits_mw[0] <= limit.value <= gpu.limits_mw[1]:
            return INVALID_ARGUMENT
        gpu.limit_mw = limit.value
        return 0

    def _ask(self, name: str, ask: Callable[..., int], handle: Any, *arguments: Any) -> int:
        gpu = self.gpus[_address(handle) - 1]
        code = self._refusal(gpu, name) or ask(self, gpu, *arguments)
        if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset")):
            journal = gpu.refused_writes if code else gpu.writes
            journal.append((name, *(argument.value for argument in arguments)))
        return code

    def _refusal(self, gpu: FakeGpu, name: str) -> int:
        if self.num_inits <= self.num_shutdowns:
            return UNINITIALIZED
        gpu.catch_up()
        return GPU_IS_LOST if gpu.is_lost else gpu.refusal(name)

    def _give_handle(self, handle: Any, address: int) -> int:
        memmove(byref(handle._obj), byref(c_void_p(address)), sizeof(c_void_p))
        return 0


def install(monkeypatch: pytest.MonkeyPatch, library: FakeNvml | None) -> None:
    """Let the bindings load `library`, or find none; they remember function pointers, which is undone too."""

    def load(name: str) -> FakeNvml:
        if library is None:
            raise OSError(f"{name}: cannot open shared object file")
        return library

    monkeypatch.setattr(pynvml, "CDLL", load)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _fill(entry: Any, answer: Field) -> None:
    entry.nvmlReturn = answer.code
    entry.valueType = answer.value_type
    entry.value.ullVal = 2**64 - 1  # the bytes beyond the member in use are rubbish on a real driver too
    if answer.value_type < len(_MEMBERS):
        member = _MEMBERS[answer.value_type]
        setattr(entry.value, member, answer.value if member == "dVal" else int(answer.value))


def _give(pointer: Any, value: int) -> int:
    pointer._obj.value = int(value)
    return 0


def _give_clocks(count: Any, clocks: Any, supported: Sequence[int]) -> int:
    if clocks is not None:
        clocks[: len(supported)] = sorted(supported, reverse=True)  # the driver's order
    return _give_count(count, clocks, len(supported))


def _give_count(count: Any, rows: Any, num_rows: int) -> int:
    """The driver is asked twice: without room it says how much it needs, and success means that there is nothing."""
    _give(count, num_rows)
    return INSUFFICIENT_SIZE if rows is None and num_rows else 0


def _address(handle: Any) -> int:
    address = cast(handle, c_void_p).value
    assert address is not None
    return address
