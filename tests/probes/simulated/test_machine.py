"""Simulated GPUs at work."""

from __future__ import annotations

from itertools import pairwise

import pytest

from probes.errors import DeviceLost, InvalidSetting, NotPermitted, NotSupported
from probes.settings import DeviceSettings
from probes.simulated.accelerators import ACCELERATORS
from probes.simulated.device import SimulatedDevice
from probes.simulated.faults import Fault, FaultKind
from probes.simulated.options import SimulationOptions
from probes.simulated.thermal import Thermal
from tests.probes.simulated.toys import (
    BUSY_W,
    IDLE_W,
    LOADED_W,
    ToyWork,
    make_accelerator,
    make_device,
    watts,
    work_for,
)

HALF = ToyWork(seconds=0.5)


def energy_j(device: SimulatedDevice) -> float:
    mark = device.ledger.energy(device.now_s())
    return mark.past_j + mark.run_j


def scripted(*faults: Fault) -> SimulationOptions:
    return SimulationOptions(faults=faults)


def ends_s(device: SimulatedDevice, label: str, num_steps: int = 200) -> list[float]:
    """Run steps of 10 ms; return when each ends, from the beginning."""
    device.begin(label)
    begun_s = device.now_s()
    ends = []
    for _ in range(num_steps):
        device.advance_to(device.run(ToyWork(seconds=0.01), device.now_s()))
        ends.append(device.now_s() - begun_s)
    return ends


def test_a_step_takes_its_time_and_draws_its_power() -> None:
    """Without chance the response's seconds and watts are those of the device; other GPUs idle and count."""
    device = make_device(num_gpus=2)
    device.begin("run")
    assert device.run(HALF, 0.0) == 0.5
    assert device.now_s() == 0.0
    device.advance_to(0.25)
    assert energy_j(device) == 0.25 * (BUSY_W + LOADED_W)
    device.advance_to(1.5)
    assert energy_j(device) == 0.5 * BUSY_W + 2.5 * LOADED_W


def test_idle_power_rises_with_the_first_model() -> None:
    """Before any run a GPU draws what it does without a model, then what it does with one loaded."""
    device = make_device()
    device.advance_to(10.0)
    device.begin("run")
    device.advance_to(11.0)
    assert energy_j(device) == 10 * IDLE_W + LOADED_W


def test_many_steps_at_once_are_as_many_steps_one_by_one() -> None:
    """A stretch of equal steps takes and draws what they would singly."""
    device = make_device()
    assert device.run(HALF, 0.0, num_steps=8) == 4.0
    device.advance_to(4.0)
    assert energy_j(device) == 4 * BUSY_W


def test_groups_work_side_by_side() -> None:
    """Two groups of GPUs overlap in time, and each waits for itself only."""
    device = make_device(num_gpus=4)
    device.begin("run")
    three, one = ToyWork(seconds=1.0, num_gpus=3), ToyWork(seconds=0.25)
    assert device.run(three, 0.0, lane=0) == 1.0
    assert [device.run(one, 0.0, lane=1) for _ in range(3)] == [0.25, 0.5, 0.75]
    device.advance_to(1.0)
    assert energy_j(device) == 3 * BUSY_W + 0.75 * BUSY_W + 0.25 * LOADED_W


def test_work_begins_neither_in_the_past_nor_before_the_group_is_free() -> None:
    """Whatever start was asked for, the present and the group's last step come first."""
    device = make_device()
    device.advance_to(2.0)
    assert device.run(HALF, 0.0) == 2.5
    assert device.run(HALF, 2.25) == 3.0
    assert device.run(HALF, 4.0) == 4.5


def test_more_gpus_than_there_are_is_an_error() -> None:
    """A group that asks for GPUs of others, or for none, is refused; one may change its size where there is room."""
    device = make_device(num_gpus=4)
    device.run(ToyWork(num_gpus=3), 0.0, lane=0)
    with pytest.raises(ValueError, match="lane 1 asks for 2 GPUs; 1 of 4 are left"):
        device.run(ToyWork(num_gpus=2), 0.0, lane=1)
    with pytest.raises(ValueError, match="lane 0 asks for 0 GPUs"):
        device.run(ToyWork(num_gpus=0), 0.0, lane=0)
    assert device.run(ToyWork(num_gpus=4), 0.0, lane=0) == 1.0
    with pytest.raises(ValueError, match="num_gpus is 0"):
        make_device(num_gpus=0)


def test_the_same_seed_and_label_take_the_same_time() -> None:
    """A run depends on the device's seed and its own label, to the last bit, and not on what ran before it."""
    device = make_device(seed=3, noise=1.0)
    first = ends_s(device, "a")
    ends_s(device, "b", num_steps=77)
    device.advance_to(device.now_s() + 12345.678)
    assert ends_s(device, "a") == first
    assert ends_s(make_device(seed=3, noise=1.0), "a") == first
    assert ends_s(make_device(seed=4, noise=1.0), "a") != first


def test_runs_energy_does_not_depend_on_what_ran_before() -> None:
    """The joules of equal runs are equal to the last bit."""
    device = make_device(seed=3, noise=1.0)
    measured = []
    for label in ("a", "b", "a"):
        device.begin(label)
        before = device.ledger.energy(device.now_s())
        work_for(device, ToyWork(seconds=0.013), 500)
        measured.append(device.ledger.energy(device.now_s()).since(before))
    assert measured[0] == measured[2] != measured[1]


def test_seeds_differ_within_the_stated_noise() -> None:
    """Runs of 200 steps differ by half a percent in time and power, and not by more than a few times that."""
    totals = [ends_s(make_device(seed=seed, noise=1.0), "run")[-1] for seed in range(40)]
    assert len(set(totals)) == 40
    assert totals == pytest.approx([2.0] * 40, rel=4 * 0.0052)


def test_a_stretch_scatters_less_than_a_step() -> None:
    """The chance of 100 steps given at once evens out as that of 100 steps does."""
    device = make_device(noise=1.0)
    lengths = [later - earlier for earlier, later in pairwise(ends_s(device, "run"))]
    device.begin("run")
    stretches = [(device.run(ToyWork(seconds=0.01), 0.0, num_steps=100) - device.now_s()) / 100]
    assert max(lengths) - min(lengths) > 10 * abs(stretches[0] - sum(lengths) / len(lengths))


def test_a_power_cap_lowers_the_clock_and_shows_why() -> None:
    """A cap below the draw slows steps to the clock that it leaves, with the event; one above it does nothing."""
    device = make_device()
    device.configure(DeviceSettings(power_cap_w=400))
    device.advance_to(device.run(HALF, 0.0))
    assert device.now_s() == pytest.approx(0.5 * 1800 / 1200)
    assert device.shown_clock() == (1200.0, ("sw_power_cap",))
    assert energy_j(device) == pytest.approx(device.now_s() * 400)
    device.configure(DeviceSettings(power_cap_w=551))
    device.advance_to(device.run(HALF, device.now_s()))
    assert device.shown_clock() == (1800.0, ())


def test_no_run_draws_more_than_the_cap() -> None:
    """Chance does not lift power above the cap: where it would, the clock steps further down."""
    for seed in range(20):
        device = make_device(seed=seed, noise=1.0)
        device.configure(DeviceSettings(power_cap_w=400))
        device.begin("run")
        device.run(HALF, 0.0)
        assert 396 < device.ledger.power_w(0.1) <= 400 + 1e-9


def test_a_clock_cap_holds_without_an_event() -> None:
    """At a clock cap steps are slower and draw less; no event tells of it, as on a real GPU."""
    device = make_device()
    device.configure(DeviceSettings(sm_clock_cap_mhz=900))
    assert device.run(HALF, 0.0) == 1.0
    assert device.ledger.power_w(0.5) == watts(900)
    assert device.shown_clock() == (900.0, ())


def test_only_values_of_the_device_are_set() -> None:
    """A clock between two steps, a limit out of range and a knob of a CPU are refused, and nothing is changed."""
    device = make_device()
    before = DeviceSettings(sm_clock_cap_mhz=900, power_cap_w=400)
    device.configure(before)
    for settings in (DeviceSettings(sm_clock_cap_mhz=901), DeviceSettings(power_cap_w=701)):
        with pytest.raises(InvalidSetting):
            device.configure(settings)
    with pytest.raises(InvalidSetting):
        device.configure(DeviceSettings(power_cap_w=199))
    with pytest.raises(NotSupported, match="cpu_clock_cap_mhz"):
        device.configure(DeviceSettings(cpu_clock_cap_mhz=2000))
    assert device.settings == before


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        (FaultKind.SW_THERMAL, ("sw_thermal",)),
        (FaultKind.HW_THERMAL, ("hw_slowdown", "hw_thermal")),
        (FaultKind.HW_SLOWDOWN, ("hw_slowdown",)),
        (FaultKind.POWER_BRAKE, ("hw_slowdown", "power_brake")),
    ],
)
def test_a_throttle_lowers_the_clock_with_its_events(kind: FaultKind, events: tuple[str, ...]) -> None:
    """From the scripted instant on steps run at the throttle's clock, or the next below, until it ends."""
    device = make_device(options=scripted(Fault(kind=kind, from_s=0.5, until_s=1.5, clock_mhz=910)))
    assert device.run(HALF, 0.0) == 0.5
    device.advance_to(device.run(HALF, 0.5))
    assert device.now_s() == pytest.approx(1.5, abs=0.01)
    assert device.shown_clock() == (900.0, events)
    assert device.run(HALF, 1.5) == 2.0


def test_a_lost_device_takes_no_work_and_no_settings() -> None:
    """From the scripted run on both raise DeviceLost."""
    device = make_device(options=scripted(Fault(kind=FaultKind.DEVICE_LOST, from_run=2)))
    device.begin("first")
    device.run(HALF, 0.0)
    device.begin("second")
    with pytest.raises(DeviceLost):
        device.run(HALF, 0.0)
    with pytest.raises(DeviceLost):
        device.configure(DeviceSettings())


def test_an_ignored_cap_is_accepted_without_effect() -> None:
    """The cap is set, and the clock stays up."""
    device = make_device(options=scripted(Fault(kind=FaultKind.CAP_IGNORED)))
    device.configure(DeviceSettings(sm_clock_cap_mhz=900))
    assert device.run(HALF, 0.0) == 0.5
    assert device.shown_clock() == (1800.0, ())


def test_a_refusing_device_keeps_its_settings() -> None:
    """While writes are refused nothing can be set or freed."""
    device = make_device(options=scripted(Fault(kind=FaultKind.WRITE_REFUSED, from_s=1.0)))
    device.configure(DeviceSettings(power_cap_w=400))
    device.advance_to(1.0)
    with pytest.raises(NotPermitted):
        device.configure(DeviceSettings())
    assert device.power_cap_w() == 400


def test_power_drifts_with_temperature_until_it_has_settled() -> None:
    """With a time constant a cold GPU draws less than its settled power, then approaches both temperature and power."""
    device = make_device(options=SimulationOptions(thermal=Thermal(tau_s=40.0)))
    device.begin("run")
    shown = []
    for until_s in (0.1, 40.0, 400.0):
        work_for(device, ToyWork(seconds=0.1), until_s=until_s)
        shown.append((device.temperature_c(), device.ledger.power_w(device.now_s())))
    (cold_c, cold_w), (_, warm_w), (settled_c, settled_w) = shown
    assert cold_c == pytest.approx(30 + 40 * LOADED_W / 700, abs=2.5)
    assert settled_c == pytest.approx(30 + 40 * BUSY_W / 700, abs=0.1)
    assert cold_w == pytest.approx(BUSY_W * (1 - 0.002 * (settled_c - cold_c)), rel=1e-3)
    assert cold_w < warm_w < settled_w == pytest.approx(BUSY_W, rel=1e-3)
    device.advance_to(device.now_s() + 40)
    cooling_c = device.temperature_c()
    device.begin("next")
    assert device.temperature_c() == cooling_c
    assert 30 + 40 * LOADED_W / 700 < cooling_c < settled_c


def test_without_a_time_constant_power_is_settled_from_the_first_step() -> None:
    """The first step draws what the last does, at the temperature that goes with it."""
    device = make_device()
    device.run(HALF, 0.0)
    device.advance_to(0.25)
    assert device.ledger.power_w(0.25) == BUSY_W
    assert device.temperature_c() == 30 + 40 * BUSY_W / 700


def test_limits_leave_memory_to_spare() -> None:
    """An engine may fill nine tenths of each GPU's memory, and is told what runs at speed."""
    limits = make_device(num_gpus=8).limits
    assert limits.memory_bytes == pytest.approx(0.9 * ACCELERATORS["h100-sxm"].memory_bytes)
    assert limits.arithmetics == frozenset(ACCELERATORS["h100-sxm"].flops)
    assert (limits.num_gpus, limits.domain_size) == (8, 8)


def test_handing_over_goes_at_the_rate_of_the_link() -> None:
    """Inside one domain the scale-up link counts, in a device of several domains the one between them."""
    accelerator = make_accelerator(scale_up_bytes_s=4e11, scale_out_bytes_s=5e10)
    assert make_device(num_gpus=8, accelerator=accelerator).transfer_s(4e9) == pytest.approx(0.01)
    assert make_device(num_gpus=16, accelerator=accelerator).transfer_s(4e9) == pytest.approx(0.08)
