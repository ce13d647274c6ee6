"""One knob of one GPU."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from probes.control.actuators import actuators_of
from probes.control.gpu_actuators import PowerCap, SmClockCap
from probes.cpu.cpu_device import describe_cpu
from probes.errors import (
    DeviceLost,
    ImplausibleReading,
    InvalidSetting,
    NotPermitted,
    NotSupported,
    ProbeError,
    UnknownDevice,
)
from probes.nvidia.nvml import Nvml
from probes.settings import Settable
from tests.probes.control.kept_gpus import NO_PERMISSION, RESET_CLOCK, SET_CLOCK, KeptGpus, make_kept_gpus
from tests.probes.fake_gpu import FIRST_UUID, SECOND_UUID, FakeGpu


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@pytest.fixture
def gpu(machine: KeptGpus) -> FakeGpu:
    return machine.gpus[0]


@pytest.fixture
def nvml(machine: KeptGpus) -> Nvml:
    return machine.host.nvml


def test_a_clock_cap_locks_from_the_lowest_clock_up(gpu: FakeGpu, nvml: Nvml) -> None:
    """A cap leaves the GPU free to idle below it."""
    SmClockCap(nvml, FIRST_UUID, None).set(1005)
    assert gpu.locked == (210, 1005)


def test_a_clock_lock_is_undone_where_no_prior_cap_was_declared(gpu: FakeGpu, nvml: Nvml) -> None:
    """Nothing is found, for there is no getter, and putting that back is a reset."""
    actuator = SmClockCap(nvml, FIRST_UUID, None)
    found = actuator.look()
    actuator.set(1005)
    actuator.put_back(found)
    assert found == {}
    assert gpu.locked is None
    assert gpu.writes[-1] == (RESET_CLOCK,)


def test_a_declared_cap_is_locked_again(gpu: FakeGpu, nvml: Nvml) -> None:
    """What the operator declared is found, snapped to the clocks there are, and put back."""
    actuator = SmClockCap(nvml, FIRST_UUID, 1500)
    found = actuator.look()
    actuator.set(1005)
    actuator.put_back(found)
    assert found == {"cap_mhz": 1500}
    assert gpu.locked == (210, 1500)


def test_a_declared_cap_below_all_clocks_is_refused(nvml: Nvml) -> None:
    """A declaration that cannot be true is refused before anything is set."""
    with pytest.raises(InvalidSetting, match="lowest value of this device is 210"):
        SmClockCap(nvml, FIRST_UUID, 100).look()


def test_a_clock_lock_cannot_be_read_back(nvml: Nvml) -> None:
    """The driver has no getter, so no deviation is ever claimed."""
    assert SmClockCap(nvml, FIRST_UUID, None).deviation(1005) is None


def test_clock_caps_are_the_supported_clocks(gpu: FakeGpu, nvml: Nvml) -> None:
    """The values are those that the driver lists, ascending."""
    gpu.clocks_mhz = (1980, 210, 1005, 990)
    assert (
        Settable(name="sm_clock_cap_mhz", values=(210, 990, 1005, 1980))
        == SmClockCap(nvml, FIRST_UUID, None).settable()
    )


def test_power_caps_are_a_range_of_whole_watts(gpu: FakeGpu, nvml: Nvml) -> None:
    """The lowest limit is rounded up, since the driver refuses what is below it."""
    gpu.limits_mw = (200_500, 700_000)
    assert Settable(name="power_cap_w", values=(201, 700), is_range=True) == PowerCap(nvml, FIRST_UUID).settable()


def test_an_administrators_limit_is_found_and_put_back(machine: KeptGpus, nvml: Nvml) -> None:
    """What is put back is what was set, not what the board came with."""
    actuator = PowerCap(nvml, SECOND_UUID)
    found = actuator.look()
    actuator.set(300)
    assert machine.gpus[1].limit_mw == 300_000
    actuator.put_back(found)
    assert found == {"limit_mw": 500_000}
    assert machine.gpus[1].limit_mw == 500_000


def test_a_reset_sets_the_default_limit(machine: KeptGpus, nvml: Nvml) -> None:
    """Resetting, and putting back a limit that nobody noted, give what the board came with."""
    gpu = machine.gpus[1]
    gpu.default_limit_mw = 650_000
    PowerCap(nvml, SECOND_UUID).reset()
    assert gpu.limit_mw == 650_000
    gpu.limit_mw = 300_000
    PowerCap(nvml, SECOND_UUID).put_back({})
    assert gpu.limit_mw == 650_000


@pytest.mark.parametrize(
    ("limit_mw", "enforced_mw", "deviation"),
    [
        (400_000, None, None),
        (700_000, None, "external_change: the power limit reads 700 W instead of 400 W"),
        (400_000, 350_000, "limit_overridden: a limit of 350 W is enforced instead of 400 W"),
        (400_000, 700_000, None),
    ],
)
def test_a_limit_is_read_back(
    gpu: FakeGpu, nvml: Nvml, limit_mw: int, enforced_mw: int | None, deviation: str | None
) -> None:
    """Another limit is told apart from a lower one in force beside it."""
    gpu.limit_mw, gpu.enforced_mw = limit_mw, enforced_mw
    assert deviation == PowerCap(nvml, FIRST_UUID).deviation(400)


def test_a_limit_that_does_not_come_back_is_an_error(gpu: FakeGpu, nvml: Nvml) -> None:
    """Success of the call is not enough: the limit must read as it was found."""
    actuator = PowerCap(nvml, FIRST_UUID)
    gpu.limits_mw = (200_000, 800_000)

    def set_by_others() -> int:
        gpu.limit_mw = 650_000
        return 0

    gpu.refusals["nvmlDeviceGetPowerManagementLimit"] = set_by_others
    with pytest.raises(ImplausibleReading, match="was set to 700000 mW and reads 650000 mW"):
        actuator.put_back({"limit_mw": 700_000})


@pytest.mark.parametrize("script", [{"is_mig": True}, {"virtualization": pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU}])
def test_what_others_share_is_not_set(gpu: FakeGpu, nvml: Nvml, script: dict[str, int]) -> None:
    """On a card in slices, and on a guest's share of one, no knob is offered, looked at or set."""
    for name, value in script.items():
        setattr(gpu, name, value)
    for actuator in (SmClockCap(nvml, FIRST_UUID, None), PowerCap(nvml, FIRST_UUID)):
        for ask in (actuator.settable, actuator.look, lambda actuator=actuator: actuator.set(400)):
            with pytest.raises(NotSupported, match=r"MIG is on|vGPU"):
                ask()
    assert gpu.writes == []


def test_what_was_set_before_mig_came_on_is_still_put_back(gpu: FakeGpu, nvml: Nvml) -> None:
    """Not offering a knob does not keep it from being given back."""
    actuator = SmClockCap(nvml, FIRST_UUID, None)
    actuator.set(1005)
    gpu.is_mig = True
    actuator.put_back({})
    assert gpu.locked is None


def test_a_refusal_is_named(gpu: FakeGpu, nvml: Nvml) -> None:
    """Without permission the error is NotPermitted, and nothing is set."""
    gpu.refusals[SET_CLOCK] = NO_PERMISSION
    with pytest.raises(NotPermitted, match="CAP_SYS_ADMIN"):
        SmClockCap(nvml, FIRST_UUID, None).set(1005)
    assert gpu.locked is None


def test_a_gpu_has_a_power_cap_and_a_clock_cap(machine: KeptGpus) -> None:
    """By a GPU's UUID come its two actuators; the declared cap is that of this GPU alone."""
    actuators = actuators_of(SECOND_UUID, machine.host, {FIRST_UUID: 1500})
    assert [(actuator.knob, actuator.device_uuid) for actuator in actuators] == [
        ("power_cap_w", SECOND_UUID),
        ("sm_clock_cap_mhz", SECOND_UUID),
    ]
    assert actuators[1].look() == {}
    assert actuators_of(FIRST_UUID, machine.host, {FIRST_UUID: 1500})[1].look() == {"cap_mhz": 1500}


def test_the_cpu_has_a_clock_cap(machine: KeptGpus) -> None:
    """By the CPU's UUID comes its one actuator."""
    uuid = describe_cpu(machine.host.paths, frozenset({0})).uuid
    assert [("cpu_clock_cap_mhz", uuid)] == [
        (actuator.knob, actuator.device_uuid) for actuator in actuators_of(uuid, machine.host, {})
    ]


def test_an_unknown_device_has_no_knobs(machine: KeptGpus) -> None:
    """A UUID that no device has is refused."""
    with pytest.raises(UnknownDevice, match="no device GPU-nobody answers"):
        actuators_of("GPU-nobody", machine.host, {})


def test_a_lost_gpu_is_told_as_such(machine: KeptGpus) -> None:
    """A GPU that fell off the bus is not called unknown, and the other one still has its knobs."""
    machine.gpus[0].lost_from_s = 0.0
    with pytest.raises(DeviceLost, match="fallen off the bus"):
        actuators_of(FIRST_UUID, machine.host, {})
    assert len(actuators_of(SECOND_UUID, machine.host, {})) == 2


def test_without_a_driver_there_are_no_gpus(machine: KeptGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NVML does not answer at all, the reason is in the error."""

    def refuse() -> None:
        raise ProbeError("no driver")

    monkeypatch.setattr(machine.host.nvml, "cards_and_failures", refuse)
    with pytest.raises(UnknownDevice, match="no driver"):
        actuators_of(FIRST_UUID, machine.host, {})
