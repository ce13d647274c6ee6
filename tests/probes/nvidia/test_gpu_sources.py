"""Where a card's energy can be learned, found out by asking."""

from __future__ import annotations

import pytest

from probes.device import Method, Scope
from probes.errors import NotSupported, ProbeError
from probes.nvidia.gpu_sources import ASSUMED_TICK_S, NUM_ATTEMPTS, RETRY_S, SourceProbe, Sources, tried
from probes.nvidia.nvml import Nvml
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_gpu import NOT_SUPPORTED, FakeGpu, Field
from tests.probes.fake_nvml import FakeNvml, install

COUNTER_CALL = "nvmlDeviceGetTotalEnergyConsumption"


@pytest.fixture
def gpu(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu(clock=clock).with_instant_power()
    install(monkeypatch, FakeNvml(gpu))
    return gpu


def find_sources(clock: FakeClock) -> Sources:
    nvml = Nvml()
    (card,) = nvml.cards()
    return SourceProbe(nvml, card, clock=clock).sources()


@pytest.mark.parametrize("tick_s", [0.01, 0.05, 0.1])
def test_the_counters_step_is_measured(clock: FakeClock, gpu: FakeGpu, tick_s: float) -> None:
    """The resolution is this board's own, and the capability names it."""
    gpu.tick_s = tick_s
    sources = find_sources(clock)
    assert sources.counter is not None
    assert pytest.approx(tick_s, abs=0.002) == sources.counter.resolution_s
    assert sources.counter.detail == "NVML total energy counter"
    assert f"steps every {tick_s * 1000:.0f} ms" in sources.capabilities[0].reason


def test_a_counter_that_stands_still_while_idle_is_still_taken(clock: FakeClock, gpu: FakeGpu) -> None:
    """The call being supported is enough; that it did not move is said, and so is the step that is assumed."""
    gpu.energy_mj = lambda _now_s: 77
    sources = find_sources(clock)
    assert sources.counter is not None
    assert (sources.best, sources.counter.resolution_s) == (sources.counter, ASSUMED_TICK_S)
    assert "steps of 0.1 s assumed" in sources.counter.detail
    assert "stands still" in sources.capabilities[0].reason


def test_a_counter_that_goes_back_while_it_is_tried_is_no_source(clock: FakeClock, gpu: FakeGpu) -> None:
    """A counter that falls is not taken, and the capability says by how much."""
    gpu.energy_mj = lambda now_s: 9000 if now_s < 1001.0 else 4000
    sources = find_sources(clock)
    assert sources.counter is None
    assert (sources.capabilities[0].is_available, "went back by 5000" in sources.capabilities[0].reason) == (
        False,
        True,
    )


@pytest.mark.parametrize(("architecture", "method"), [(6, Method.INTEGRATED), (7, Method.INTEGRATED_AVERAGE)])
def test_plain_power_is_last_and_an_average_since_ampere(
    clock: FakeClock, gpu: FakeGpu, architecture: int, method: Method
) -> None:
    """Without fields the plain call is taken, labelled by what it means on that generation."""
    gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    gpu.fields, gpu.architecture = {}, architecture
    best = find_sources(clock).best
    assert best is not None
    assert (best.detail, best.method) == ("NVML power usage", method)


def test_plain_power_of_an_unknown_generation_is_an_average(clock: FakeClock, gpu: FakeGpu) -> None:
    """Where the driver does not tell the generation, the worse meaning is assumed."""
    gpu.fields = {}
    gpu.refusals["nvmlDeviceGetArchitecture"] = NOT_SUPPORTED
    power = find_sources(clock).power
    assert power is not None
    assert power.source.method is Method.INTEGRATED_AVERAGE


def test_every_way_is_tried_and_told(clock: FakeClock, gpu: FakeGpu) -> None:
    """Counter, both fields and the plain call are listed, each with what came of it."""
    seen = {capability.name: capability.is_available for capability in find_sources(clock).capabilities}
    assert seen == {
        "NVML total energy counter": True,
        "NVML instant power of the gpu, field 186": True,
        "NVML average power of the gpu, field 185": False,
        "NVML power usage": True,
        "NVML instant power of the memory, field 186": False,
        "NVML average power of the memory, field 185": False,
    }


@pytest.mark.parametrize(
    ("milliwatts", "is_available", "words"), [(55_000, True, "reads 55.0 W"), (0, False, "reads 0 mW")]
)
def test_power_of_the_memory_is_told(
    clock: FakeClock, gpu: FakeGpu, milliwatts: int, is_available: bool, words: str
) -> None:
    """What the memory draws is listed with its value; 0 W means that the card does not measure it."""
    gpu.fields[(186, 2)] = lambda _now_s: Field(value=milliwatts)
    seen = {capability.name: capability for capability in find_sources(clock).capabilities}
    found = seen["NVML instant power of the memory, field 186"]
    assert (found.is_available, words in found.reason) == (is_available, True)


@pytest.mark.parametrize("name", ["NVIDIA H100", "NVIDIA GH200 480GB"])
@pytest.mark.parametrize("has_counter", [True, False])
def test_power_of_the_memory_is_never_used(clock: FakeClock, gpu: FakeGpu, name: str, has_counter: bool) -> None:
    """A card that tells nothing else has no power, and its counter no check: a part is not the whole."""
    gpu.name = name
    gpu.fields = {(field, 2): lambda _now_s: Field(value=55_000) for field in (185, 186)}
    gpu.refusals["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    if not has_counter:
        gpu.refusals[COUNTER_CALL] = NOT_SUPPORTED
    sources = find_sources(clock)
    assert (sources.power, sources.check) == (None, None)
    assert sources.best is sources.counter
    assert (sources.counter is not None) is has_counter


@pytest.mark.parametrize(
    ("name", "fields", "can_check"),
    [
        ("NVIDIA H100", {(186, 0): 300_000}, True),
        ("NVIDIA H100", {(185, 0): 300_000}, False),
        ("NVIDIA GH200 480GB", {(186, 0): 300_000}, False),
        ("NVIDIA GH200 480GB", {(186, 0): 300_000, (186, 1): 900_000}, True),
    ],
)
def test_a_check_is_instant_power_of_the_counters_scope(
    clock: FakeClock, gpu: FakeGpu, name: str, fields: dict[tuple[int, int], int], can_check: bool
) -> None:
    """Neither averages nor the power of a part can judge the counter."""
    gpu.name = name
    gpu.fields = {key: lambda _now_s, value=value: Field(value=value) for key, value in fields.items()}  # type: ignore[misc] # default
    sources = find_sources(clock)
    assert sources.counter is not None
    assert (sources.check is not None) is can_check
    assert sources.counter.scope is (Scope.MODULE if "GH200" in name else Scope.GPU)


def test_a_transient_refusal_is_asked_again(clock: FakeClock) -> None:
    """A driver that is "not ready" is asked once more, and its second answer counts."""
    refusals: list[ProbeError] = [ProbeError("not ready")]

    def ask() -> int:
        if refusals:
            raise refusals.pop()
        return 7

    found = tried("it", ask, "{} seen".format, clock)
    assert (found.is_available, found.reason) == (True, "7 seen")


def test_asking_again_has_an_end(clock: FakeClock) -> None:
    """After five refusals the last of them is the reason."""

    def ask() -> int:
        raise ProbeError("not ready")

    found = tried("it", ask, str, clock)
    assert (found.is_available, found.reason) == (False, "not ready")
    assert pytest.approx(1000.0 + (NUM_ATTEMPTS - 1) * RETRY_S) == clock.monotonic_s()


def test_a_final_refusal_costs_no_time(clock: FakeClock) -> None:
    """What the card does not have is not asked for twice."""

    def ask() -> int:
        raise NotSupported("none")

    assert not tried("it", ask, str, clock).is_available
    assert clock.monotonic_s() == 1000.0
