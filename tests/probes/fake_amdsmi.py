"""A fake of ROCm's `amdsmi` bindings, to be put in `sys.modules`, with as much of it as `probes.amd.amd_smi` calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

import pytest

from tests.probes.fake_clock import FakeClock
from tests.probes.fake_sensors import ConstantPower, Counter, PowerSignal

NOT_AVAILABLE = "N/A"
UNIT_UJ = 15.300000190734863  # 15.3 as a C float
FIRST_UUID = "aaff74a1-0000-1000-80c2-0e9a2b5b2b5b"
SECOND_UUID = "bbff74a1-0000-1000-80c2-0e9a2b5b2b5b"
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 2, 10, 31, 34

T = TypeVar("T")


class AmdSmiException(Exception):
    """Root of what the bindings raise."""


class AmdSmiLibraryException(AmdSmiException):
    """A status of the C library."""

    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code

    def get_error_code(self) -> int:
        return self.err_code


class AmdSmiClkType(IntEnum):
    """Clocks; the numbers mean nothing here."""

    GFX = 0
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    """Sensors."""

    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    """What of a sensor."""

    CURRENT = 0


@dataclass(slots=True, kw_only=True)
class FakeCard:
    """One GPU; a test changes its attributes."""

    clock: FakeClock
    uuid: str = FIRST_UUID
    name: str = "AMD Instinct MI300X"
    bdf: str = "0000:0C:00.0"
    signal: PowerSignal = field(default_factory=lambda: ConstantPower(level_w=400.0))
    #: What the counter is said to count, where it truly counts UNIT_UJ.
    stated_unit_uj: float | str = UNIT_UJ
    #: Fields of the power answer that are not the present power; see `power_info`.
    power: dict[str, object] = field(default_factory=dict)
    power_limit: float | str = 750
    gfx_mhz: object = 2100
    memory_mhz: object = 1300
    temperatures_c: dict[str, object] = field(default_factory=lambda: {"HOTSPOT": 62})
    processes: list[Mapping[str, Any]] = field(default_factory=list)
    #: Status by name of a call that is to fail.
    refusals: dict[str, int] = field(default_factory=dict)
    _counter: Counter | None = None

    def counts(self) -> int:
        if self._counter is None:
            self._counter = Counter(signal=self.signal, tick_s=0.01)
        return round(self._counter(self.clock.monotonic_s()) * 1000 / UNIT_UJ)

    def power_info(self) -> dict[str, object]:
        """As MI300 answers: the present power, and no average."""
        present_w = round(self.signal.power_w(self.clock.monotonic_s()))
        answer = {"socket_power": present_w, "current_socket_power": present_w, "average_socket_power": NOT_AVAILABLE}
        return {**answer, "gfx_voltage": NOT_AVAILABLE, "power_limit": self.power_limit, **self.power}


class FakeAmdSmi:
    """The module."""

    AmdSmiException = AmdSmiException
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiClkType = AmdSmiClkType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric

    def __init__(self, *cards: FakeCard) -> None:
        self.cards = list(cards)
        self.init_code = 0
        self.num_open = 0

    def amdsmi_init(self) -> None:
        if self.init_code:
            raise AmdSmiLibraryException(self.init_code)
        self.num_open += 1

    def amdsmi_shut_down(self) -> None:
        self.num_open -= 1

    def amdsmi_get_processor_handles(self) -> list[FakeCard]:
        return list(self.cards)

    def amdsmi_get_gpu_device_uuid(self, handle: FakeCard) -> str:
        return self._answer(handle, "uuid", lambda: handle.uuid)

    def amdsmi_get_gpu_device_bdf(self, handle: FakeCard) -> str:
        return self._answer(handle, "bdf", lambda: handle.bdf)

    def amdsmi_get_gpu_asic_info(self, handle: FakeCard) -> dict[str, object]:
        return self._answer(handle, "asic_info", lambda: {"market_name": handle.name, "vendor_id": 0x1002})

    def amdsmi_get_gpu_driver_info(self, handle: FakeCard) -> dict[str, str]:
        return self._answer(handle, "driver_info", lambda: {"driver_name": "amdgpu", "driver_version": "6.12.12"})

    def amdsmi_get_energy_count(self, handle: FakeCard) -> dict[str, object]:
        return self._answer(
            handle,
            "energy_count",
            lambda: {
                "energy_accumulator": handle.counts(),
                "counter_resolution": handle.stated_unit_uj,
                "timestamp": 7,
            },
        )

    def amdsmi_get_power_info(self, handle: FakeCard) -> dict[str, object]:
        return self._answer(handle, "power_info", handle.power_info)

    def amdsmi_get_clock_info(self, handle: FakeCard, clk_type: IntEnum) -> dict[str, object]:
        clock_mhz = handle.gfx_mhz if clk_type is AmdSmiClkType.GFX else handle.memory_mhz
        return self._answer(handle, "clock_info", lambda: {"clk": clock_mhz, "min_clk": 500, "max_clk": 2100})

    def amdsmi_get_temp_metric(self, handle: FakeCard, sensor: IntEnum, _metric: IntEnum) -> object:
        if sensor.name not in handle.temperatures_c:
            raise AmdSmiLibraryException(NOT_SUPPORTED)
        return self._answer(handle, "temp_metric", lambda: handle.temperatures_c[sensor.name])

    def amdsmi_get_gpu_process_list(self, handle: FakeCard) -> list[Mapping[str, Any]]:
        return self._answer(handle, "process_list", lambda: handle.processes)

    def _answer(self, handle: FakeCard, call: str, answer: Callable[[], T]) -> T:
        if call in handle.refusals:
            raise AmdSmiLibraryException(handle.refusals[call])
        return answer()


def install(monkeypatch: pytest.MonkeyPatch, library: FakeAmdSmi | None) -> None:
    """Let `import amdsmi` find `library`, or nothing."""
    monkeypatch.setitem(sys.modules, "amdsmi", library)


def process(pid: int, *, vram_bytes: int = 2**30) -> dict[str, object]:
    """Return a row of the process list."""
    return {"pid": pid, "name": "N/A", "memory_usage": {"vram_mem": vram_bytes, "gtt_mem": 0, "cpu_mem": 0}}
