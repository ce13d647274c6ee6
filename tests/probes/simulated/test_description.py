"""How simulated devices introduce themselves."""

from __future__ import annotations

from probes.simulated.description import VERSION, capabilities_of, info_of, source_of, uncertainty_of
from probes.simulated.options import Sensor, SimulationOptions
from tests.probes.simulated.toys import make_accelerator


def test_one_gpu_is_not_counted() -> None:
    """The name tells the number from two on, the UUID always; the driver is the simulation's version."""
    one, two = (info_of(make_accelerator(), num_gpus=number, seed=0, noise=1.0) for number in (1, 2))
    assert (one.name, two.name) == ("Toy (simulated)", "2x Toy (simulated)")
    assert (one.uuid, two.uuid) == ("SIM-TOY-X1", "SIM-TOY-X2")
    assert one.driver == f"simulation {VERSION}"


def test_details_tell_what_figures_rest_on() -> None:
    """Sources and the origin of the coefficients go with every result."""
    accelerator = make_accelerator(is_preliminary=True)
    details = dict(info_of(accelerator, num_gpus=1, seed=0, noise=0.0).details)
    assert (details["coefficients_from"], details["sources"]) == (accelerator.coefficients_from, accelerator.sources)
    assert (details["is_preliminary"], details["noise"]) == ("True", "0.0")


def test_what_is_only_announced_is_less_certain() -> None:
    """A preliminary accelerator has the wider uncertainty, and its source says why."""
    known, announced = make_accelerator(), make_accelerator(is_preliminary=True)
    assert uncertainty_of(known) < uncertainty_of(announced)
    assert "only announced" in source_of(announced, Sensor.EXACT).detail
    assert "only announced" not in source_of(known, Sensor.EXACT).detail


def test_each_sensor_has_its_words_and_its_step() -> None:
    """The source tells which sensor is read, and in what steps it moves."""
    sources = [source_of(make_accelerator(counter_tick_s=0.02), sensor) for sensor in Sensor]
    assert len({source.detail for source in sources}) == len(Sensor)
    assert [source.resolution_s for source in sources] == [None, 0.02, 0.1, 0.1]


def test_sensors_are_available_when_switched_on() -> None:
    """Everything else always is, and each says that it is simulated."""
    for has_sensors in (True, False):
        found = capabilities_of(make_accelerator(), SimulationOptions(has_sensors=has_sensors))
        assert {capability.name: capability.is_available for capability in found} == {
            "energy": True,
            "sensors": has_sensors,
            "sm_clock_cap_mhz": True,
            "power_cap_w": True,
        }
        assert all("simulated" in capability.reason for capability in found)
