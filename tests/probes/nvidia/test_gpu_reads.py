"""What a card tells besides energy, and what could be set on it."""

from __future__ import annotations

import pytest

from probes.device import Capability
from probes.metering.gpu_watch import CardReads
from probes.nvidia.gpu_reads import find_knobs, find_reads
from probes.nvidia.nvml import Nvml
from probes.settings import POWER_CAP, SM_CLOCK_CAP, Settable
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_gpu import NOT_SUPPORTED, FakeGpu
from tests.probes.fake_nvml import FakeNvml, install


@pytest.fixture
def gpu(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu(clock=clock, event_bits=0x24)
    install(monkeypatch, FakeNvml(gpu))
    return gpu


def reads_of(gpu: FakeGpu, clock: FakeClock) -> tuple[CardReads, dict[str, Capability]]:
    reads, seen = find_reads(Nvml(), gpu.uuid, None, clock)
    return reads, {capability.name: capability for capability in seen}


def knobs_of(gpu: FakeGpu, barred: str | None = None) -> tuple[list[Settable], dict[str, Capability]]:
    knobs, seen = find_knobs(Nvml(), gpu.uuid, barred=barred)
    return list(knobs), {capability.name: capability for capability in seen}


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("SM clock", "1980 MHz"),
        ("memory clock", "2619 MHz"),
        ("temperature", "45 C"),
        ("clock events", "sw_power_cap, sw_thermal"),
        ("power limit", "700 W"),
        ("power limit as set", "700 W"),
        ("persistence mode", "on"),
        ("compute processes", "0 now"),
    ],
)
def test_whatever_can_be_read_is_told_with_its_value(gpu: FakeGpu, clock: FakeClock, name: str, seen: str) -> None:
    """Each figure is listed as it is now."""
    assert Capability(name=name, is_available=True, reason=seen) == reads_of(gpu, clock)[1][name]


@pytest.mark.parametrize(
    ("call", "name", "read"),
    [
        ("nvmlDeviceGetClockInfo", "SM clock", "clock_mhz"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "clock events", "event_bits"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power limit", "enforced_limit_w"),
        ("nvmlDeviceGetPowerManagementLimit", "power limit as set", "set_limit_w"),
        ("nvmlDeviceGetPersistenceMode", "persistence mode", "is_persistent"),
    ],
)
def test_what_the_card_does_not_offer_is_not_asked_again(
    gpu: FakeGpu, clock: FakeClock, call: str, name: str, read: str
) -> None:
    """A refused figure has no read, and the reason is told."""
    gpu.refusals[call] = NOT_SUPPORTED
    reads, seen = reads_of(gpu, clock)
    assert getattr(reads, read) is None
    assert not seen[name].is_available


def test_power_is_read_by_whoever_found_it(gpu: FakeGpu, clock: FakeClock) -> None:
    """Without a source of power there is no power in a look."""
    assert reads_of(gpu, clock)[0].power_w is None


def test_knobs_have_their_values(gpu: FakeGpu) -> None:
    """The SM clock takes what the driver supports, the limit any watt between its ends, the memory clock is no knob."""
    knobs, seen = knobs_of(gpu)
    assert knobs == [
        Settable(name=SM_CLOCK_CAP, values=gpu.clocks_mhz),
        Settable(name=POWER_CAP, values=(200, 700), is_range=True),
    ]
    assert seen["SM clock cap"].reason == "119 values from 210 to 1980 MHz"
    assert seen["power cap"].reason == "any whole number from 200 to 700 W"


@pytest.mark.parametrize(
    ("call", "label", "left"),
    [
        ("nvmlDeviceGetPowerManagementLimitConstraints", "power cap", [SM_CLOCK_CAP]),
        ("nvmlDeviceGetSupportedGraphicsClocks", "SM clock cap", [POWER_CAP]),
    ],
)
def test_a_knob_that_the_driver_does_not_have_is_missing(gpu: FakeGpu, call: str, label: str, left: list[str]) -> None:
    """The other knob stays, and the missing one has its reason."""
    gpu.refusals[call] = NOT_SUPPORTED
    knobs, seen = knobs_of(gpu)
    assert left == [knob.name for knob in knobs]
    assert "not supported by this GPU" in seen[label].reason


def test_an_empty_list_of_clocks_is_no_knob(gpu: FakeGpu) -> None:
    """Where no clock is named, none may be locked."""
    gpu.clocks_mhz = ()
    knobs, seen = knobs_of(gpu)
    assert [knob.name for knob in knobs] == [POWER_CAP]
    assert "empty" in seen["SM clock cap"].reason


def test_a_limit_without_a_range_is_no_knob(gpu: FakeGpu) -> None:
    """Where the lowest and the highest limit are one, there is nothing to choose."""
    gpu.limits_mw = (700_000, 700_000)
    knobs, seen = knobs_of(gpu)
    assert [knob.name for knob in knobs] == [SM_CLOCK_CAP]
    assert "fixed at 700 W" in seen["power cap"].reason


def test_nothing_of_a_shared_card_is_ours_to_set(gpu: FakeGpu) -> None:
    """With a reason why not there are no knobs, and each says so."""
    knobs, seen = knobs_of(gpu, barred="a slice")
    assert knobs == []
    assert [(capability.is_available, capability.reason) for capability in seen.values()] == [(False, "a slice")] * 2
