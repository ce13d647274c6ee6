"""What NVML offers to set, and setting it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import probes
from probes.errors import (
    DeviceLost,
    NotPermitted,
    NotSupported,
    ProbeError,
)
from probes.nvidia.nvml import Nvml, PowerLimits
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FIRST_UUID, NOT_SUPPORTED, FakeGpu, FakeNvml, install

NOT_AVAILABLE_U32 = 2**32 - 1

LOCK_CALL = "nvmlDeviceSetGpuLockedClocks"

RESET_CALL = "nvmlDeviceResetGpuLockedClocks"

LIMIT_CALL = "nvmlDeviceSetPowerManagementLimit"

#: Their bindings return as if all were well whatever the driver says (seen in nvidia-ml-py 13.615.71).
DEAF_SETTERS = {
    "nvmlDeviceSetPowerManagementLimit_v2",
    "nvmlDeviceSetClockOffsets",
    "nvmlDeviceSetPowerMizerMode_v1",
}


@pytest.fixture
def gpu(clock: FakeClock) -> FakeGpu:
    return FakeGpu(clock=clock)


@pytest.fixture
def library(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    library = FakeNvml(gpu)
    install(monkeypatch, library)
    return library


@pytest.fixture
def nvml(library: FakeNvml) -> Nvml:
    return Nvml()


def test_supported_clocks_ascend(nvml: Nvml, gpu: FakeGpu) -> None:
    """The driver lists the highest first; here the lowest is, each once."""
    gpu.clocks_mhz = (210, 900, 900, 1980)
    assert nvml.supported_sm_clocks_mhz(FIRST_UUID) == (210, 900, 1980)


@pytest.mark.parametrize("empty", ["clocks_mhz", "memory_clocks_mhz"])
def test_an_empty_list_of_clocks_is_not_supported(nvml: Nvml, gpu: FakeGpu, empty: str) -> None:
    """POWER-30: without clocks to choose from, of the SM or of the memory, there is no cap, and no lock to 0 MHz."""
    setattr(gpu, empty, ())
    with pytest.raises(NotSupported, match="list of supported clocks is empty"):
        nvml.supported_sm_clocks_mhz(FIRST_UUID)


def test_limits_are_whole_watts_within_the_bounds(nvml: Nvml, gpu: FakeGpu) -> None:
    """The lowest limit is rounded up and the others down, so that every watt between may be set."""
    gpu.limits_mw = (200_001, 699_999)
    gpu.default_limit_mw, gpu.limit_mw, gpu.enforced_mw = 650_000, 500_000, 450_500
    limits = nvml.power_limits(FIRST_UUID)
    assert limits == PowerLimits(lowest_w=201, highest_w=699, enforced_w=450, default_mw=650_000, set_mw=500_000)


@pytest.mark.parametrize("sentinel", [0, NOT_AVAILABLE_U32])
@pytest.mark.parametrize("which", ["lowest", "highest", "default", "set", "enforced"])
def test_a_limit_without_a_value_is_not_supported(nvml: Nvml, gpu: FakeGpu, which: str, sentinel: int) -> None:
    """POWER-12: a sentinel in place of any of the five limits means that there is no such knob."""
    lowest, highest = gpu.limits_mw
    gpu.limits_mw = (sentinel if which == "lowest" else lowest, sentinel if which == "highest" else highest)
    gpu.default_limit_mw = sentinel if which == "default" else gpu.default_limit_mw
    gpu.limit_mw = sentinel if which == "set" else gpu.limit_mw
    gpu.enforced_mw = sentinel if which == "enforced" else None
    with pytest.raises(NotSupported, match=f"a power limit reads {sentinel} mW"):
        nvml.power_limits(FIRST_UUID)


def test_a_board_without_limits_has_no_bounds(nvml: Nvml, gpu: FakeGpu) -> None:
    """POWER-24: where the driver refuses the bounds, the knob is not supported."""
    gpu.refusals["nvmlDeviceGetPowerManagementLimitConstraints"] = NOT_SUPPORTED
    with pytest.raises(NotSupported):
        nvml.power_limits(FIRST_UUID)


def test_settings_reach_the_driver_in_its_units(nvml: Nvml, gpu: FakeGpu) -> None:
    """A range in MHz, a limit in milliwatts and a reset are written in order, and hold."""
    nvml.set_sm_clock_range(FIRST_UUID, 210, 900)
    nvml.set_power_limit_mw(FIRST_UUID, 450_000)
    assert (nvml.sm_clock_mhz(FIRST_UUID), nvml.power_limits(FIRST_UUID).set_w) == (900, 450)
    nvml.reset_sm_clock_range(FIRST_UUID)
    assert nvml.sm_clock_mhz(FIRST_UUID) == 1980
    assert gpu.writes == [(LOCK_CALL, 210, 900), (LIMIT_CALL, 450_000), (RESET_CALL,)]


WRITES: dict[str, Callable[[Nvml], None]] = {
    LOCK_CALL: lambda nvml: nvml.set_sm_clock_range(FIRST_UUID, 210, 900),
    RESET_CALL: lambda nvml: nvml.reset_sm_clock_range(FIRST_UUID),
    LIMIT_CALL: lambda nvml: nvml.set_power_limit_mw(FIRST_UUID, 450_000),
}


@pytest.mark.parametrize("call", WRITES)
@pytest.mark.parametrize(("code", "kind"), [(3, NotSupported), (4, NotPermitted), (2, ProbeError), (15, DeviceLost)])
def test_a_refused_write_is_named(nvml: Nvml, gpu: FakeGpu, call: str, code: int, kind: type[ProbeError]) -> None:
    """POWER-27: every setting call that the driver refuses raises, and none passes for done."""
    gpu.refusals[call] = code
    with pytest.raises(ProbeError, match=f"code {code}") as caught:
        WRITES[call](nvml)
    assert kind is type(caught.value)
    assert ([], [call]) == (gpu.writes, [write[0] for write in gpu.refused_writes])


@pytest.mark.parametrize(
    "write",
    [
        lambda nvml: nvml.set_sm_clock_range(FIRST_UUID, 210, 1995),
        lambda nvml: nvml.set_sm_clock_range(FIRST_UUID, 0, 0),
        lambda nvml: nvml.set_power_limit_mw(FIRST_UUID, 199_000),
        lambda nvml: nvml.set_power_limit_mw(FIRST_UUID, 701_000),
    ],
)
def test_values_out_of_range_are_refused(nvml: Nvml, gpu: FakeGpu, write: Callable[[Nvml], None]) -> None:
    """POWER-25: the driver's "invalid argument" is an error, and nothing changes."""
    with pytest.raises(ProbeError, match="invalid argument"):
        write(nvml)
    assert (gpu.locked, gpu.limit_mw) == (None, 700_000)


def test_deaf_setters_are_not_used() -> None:
    """POWER-27: no file of the probes names a setter whose binding swallows the driver's error."""
    named = {
        node.attr
        for path in Path(probes.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("nvmlDeviceSet")
    }
    assert named == {LOCK_CALL, LIMIT_CALL}
    assert not named & DEAF_SETTERS
