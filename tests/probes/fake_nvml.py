"""A scriptable libnvidia-ml under the unmodified nvidia-ml-py bindings.

It stands where `ctypes.CDLL` would load the driver's library, so the bindings' own loading, pointers and error
classes run as they do on a GPU. Speaks only the calls that `probes.nvml` makes; any other name is missing, as in an
old driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import byref, c_void_p, cast, memmove, sizeof
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pynvml
import pytest

from tests.probes.fake_clock import FakeClock

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
FIRST_UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
SECOND_UUID = "GPU-89aa0000-1111-2222-3333-444455556666"

_FIRST_SLICE_HANDLE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What a field answers: a number in the union's member for its type, and the entry's own code."""

    value: float
    value_type: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    code: int = 0


@dataclass(slots=True, kw_only=True)
class FakeGpu:
    """One GPU; change its attributes to script it."""

    clock: FakeClock
    uuid: str = FIRST_UUID
    name: str = "NVIDIA H100 80GB HBM3"
    pci_id: str = "00000000:18:00.0"
    architecture: int = 9
    is_mig: bool = False
    limits_mw: tuple[int, int] = (200_000, 700_000)
    #: Milliwatts at a time; energy is its sum over the counter's ticks.
    power_mw: float = 300_000
    tick_s: float = 0.1
    base_mj: int = 5_000_000
    #: Replaces the counter, given the monotonic seconds.
    energy_mj: Callable[[float], int] | None = None
    #: Replaces the plain power reading.
    power_usage_mw: Callable[[float], int] | None = None
    #: What fields answer, by (field, scope); those left out are not supported.
    fields: dict[tuple[int, int], Callable[[float], Field]] = field(default_factory=dict)
    #: Error codes by name of the call.
    refusals: dict[str, int] = field(default_factory=dict)
    slices: tuple[str, ...] = ()

    def counted_mj(self) -> int:
        now_s = self.clock.monotonic_s()
        if self.energy_mj is not None:
            return self.energy_mj(now_s)
        # The small addition keeps a reading on a tick from falling before it by rounding.
        ticks = math.floor(now_s / self.tick_s + 1e-6)
        return self.base_mj + round(ticks * self.tick_s * self.power_mw)

    def with_instant_power(self) -> FakeGpu:
        """Let field 186 answer with the present power."""
        self.fields[(186, 0)] = lambda _now_s: Field(value=int(self.power_mw))
        return self


class FakeNvml:
    """The library: names resolve to functions with the C calling convention."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.init_code = 0
        self.num_inits = 0
        self.num_shutdowns = 0
        #: Names that an older driver does not have.
        self.missing: set[str] = set()
        self._functions: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        call = None if name in self.missing else getattr(type(self), f"call_{name}", None)
        if call is None:
            raise AttributeError(name)
        # A partial takes attributes: the bindings set `restype` on some functions.
        return self._functions.setdefault(name, partial(call, self))

    def call_nvmlInitWithFlags(self, _flags: Any) -> int:
        self.num_inits += self.init_code == 0
        return self.init_code

    def call_nvmlShutdown(self) -> int:
        self.num_shutdowns += 1
        return 0

    def call_nvmlErrorString(self, _code: Any) -> bytes:
        return b"an error"

    def call_nvmlSystemGetDriverVersion(self, buffer: Any, _size: Any) -> int:
        buffer.value = b"570.86.10"
        return 0

    def call_nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def call_nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        return self._give_handle(handle, index.value + 1)

    def call_nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        wanted = uuid.value.decode()
        for number, gpu in enumerate(self.gpus):
            if gpu.uuid == wanted:
                return gpu.refusals.get("nvmlDeviceGetHandleByUUID") or self._give_handle(handle, number + 1)
            if wanted in gpu.slices:
                return self._give_handle(handle, _FIRST_SLICE_HANDLE + number)
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    def call_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, slice_handle: Any, handle: Any) -> int:
        return self._give_handle(handle, _address(slice_handle) - _FIRST_SLICE_HANDLE + 1)

    def call_nvmlDeviceGetUUID(self, handle: Any, buffer: Any, _size: Any) -> int:
        buffer.value = self._gpu(handle).uuid.encode()
        return 0

    def call_nvmlDeviceGetName(self, handle: Any, buffer: Any, _size: Any) -> int:
        buffer.value = self._gpu(handle).name.encode()
        return 0

    def call_nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        info._obj.busId = self._gpu(handle).pci_id.encode()
        return 0

    def call_nvmlDeviceGetVbiosVersion(self, handle: Any, buffer: Any, _size: Any) -> int:
        buffer.value = b"96.00.89"
        return self._gpu(handle).refusals.get("nvmlDeviceGetVbiosVersion", 0)

    def call_nvmlDeviceGetArchitecture(self, handle: Any, architecture: Any) -> int:
        architecture._obj.value = self._gpu(handle).architecture
        return 0

    def call_nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        current._obj.value = pending._obj.value = int(self._gpu(handle).is_mig)
        return self._gpu(handle).refusals.get("nvmlDeviceGetMigMode", 0)

    def call_nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, limit: Any) -> int:
        limit._obj.value = self._gpu(handle).limits_mw[1]
        return self._gpu(handle).refusals.get("nvmlDeviceGetEnforcedPowerLimit", 0)

    def call_nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Any, low: Any, high: Any) -> int:
        low._obj.value, high._obj.value = self._gpu(handle).limits_mw
        return self._gpu(handle).refusals.get("nvmlDeviceGetPowerManagementLimitConstraints", 0)

    def call_nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, energy: Any) -> int:
        gpu = self._gpu(handle)
        energy._obj.value = gpu.counted_mj()
        return gpu.refusals.get("nvmlDeviceGetTotalEnergyConsumption", 0)

    def call_nvmlDeviceGetPowerUsage(self, handle: Any, power: Any) -> int:
        gpu = self._gpu(handle)
        now_s = gpu.clock.monotonic_s()
        power._obj.value = gpu.power_usage_mw(now_s) if gpu.power_usage_mw else int(gpu.power_mw)
        return gpu.refusals.get("nvmlDeviceGetPowerUsage", 0)

    def call_nvmlDeviceGetFieldValues(self, handle: Any, _count: Any, values: Any) -> int:
        gpu = self._gpu(handle)
        for entry in values._obj:
            answer = gpu.fields.get((entry.fieldId, entry.scopeId))
            if answer is None:
                entry.nvmlReturn = NOT_SUPPORTED
                entry.value.ullVal = 4_991_201_436_214_789_335  # what papi#564 read from such an entry
            else:
                _fill(entry, answer(gpu.clock.monotonic_s()))
        return gpu.refusals.get("nvmlDeviceGetFieldValues", 0)

    def _gpu(self, handle: Any) -> FakeGpu:
        return self.gpus[_address(handle) - 1]

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


def _address(handle: Any) -> int:
    address = cast(handle, c_void_p).value
    assert address is not None
    return address
