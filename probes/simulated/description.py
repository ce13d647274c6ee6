"""How a simulated device introduces itself: what it stands for, what its figures rest on, and that none was measured.

Knows nothing of how it works.
"""

from __future__ import annotations

from probes.device import Capability, DeviceInfo, DeviceKind, Method, PowerSource, Scope
from probes.settings import POWER_CAP, SM_CLOCK_CAP
from probes.simulated.accelerators import Accelerator
from probes.simulated.options import Sensor, SimulationOptions

#: To be raised whenever a figure or a formula of the simulation changes: results of two versions are not comparable.
VERSION = "1"
#: Half width of the energy's uncertainty as a share, an assumption above what fitted models missed by on models that
#: they were not fitted to ...
UNCERTAINTY = 0.15
#: ... and where the accelerator itself is only announced.
PRELIMINARY_UNCERTAINTY = 0.50

_SENSOR_WORDS = {
    Sensor.EXACT: "the model's energy itself",
    Sensor.COUNTER: "its energy counter with steps",
    Sensor.INSTANT: "integral of its power, a mean of 25 of each 100 ms",
    Sensor.AVERAGE: "integral of its power, a mean of the last second",
}


def info_of(accelerator: Accelerator, *, num_gpus: int, seed: int, noise: float) -> DeviceInfo:
    """Return the identity of so many GPUs of a kind: the same for the same, on every machine."""
    many = f"{num_gpus}x " if num_gpus > 1 else ""
    details: dict[str, object] = {
        "accelerator": accelerator.key,
        "num_gpus": num_gpus,
        "power_limit_w": accelerator.tdp_w,
        "seed": seed,
        "noise": noise,
        "coefficients_from": accelerator.coefficients_from,
        "sources": accelerator.sources,
        "is_preliminary": accelerator.is_preliminary,
    }
    return DeviceInfo(
        uuid=f"SIM-{accelerator.key.upper()}-X{num_gpus}",
        name=f"{many}{accelerator.name} (simulated)",
        kind=DeviceKind.SIMULATED,
        driver=f"simulation {VERSION}",
        details=tuple((key, str(value)) for key, value in details.items()),
    )


def uncertainty_of(accelerator: Accelerator) -> float:
    """Return the half width of the energy's uncertainty, as a share of it."""
    return PRELIMINARY_UNCERTAINTY if accelerator.is_preliminary else UNCERTAINTY


def source_of(accelerator: Accelerator, sensor: Sensor) -> PowerSource:
    """Return what a meter with this sensor reports from, in words that leave no doubt that nothing was measured."""
    preliminary = " of an accelerator that is only announced" if accelerator.is_preliminary else ""
    return PowerSource(
        scope=Scope.GPU,
        method=Method.SIMULATED,
        detail=(
            f"simulated {accelerator.name}, nothing was measured: {_SENSOR_WORDS[sensor]}, from a time and power model"
            f"{preliminary} (version {VERSION}, coefficients: {accelerator.coefficients_from}), "
            f"within about {uncertainty_of(accelerator):.0%}"
        ),
        resolution_s={Sensor.EXACT: None, Sensor.COUNTER: accelerator.counter_tick_s}.get(sensor, 0.1),
    )


def capabilities_of(accelerator: Accelerator, options: SimulationOptions) -> tuple[Capability, ...]:
    """Return what can be read and set, all of it simulated."""
    clocks_mhz, (lowest_w, highest_w) = accelerator.clocks_mhz, accelerator.power_limit_w
    sensors = "switched on" if options.has_sensors else "switched off: only the model's own energy can be read"
    offers = {
        "energy": (True, source_of(accelerator, options.sensor).detail),
        "sensors": (options.has_sensors, f"simulated counter, instant and average power: {sensors}"),
        SM_CLOCK_CAP: (
            True,
            f"simulated: {clocks_mhz[0]} to {clocks_mhz[-1]} MHz in {len(clocks_mhz)} steps; needs no permission",
        ),
        POWER_CAP: (True, f"simulated: {lowest_w:g} to {highest_w:g} W of each GPU; needs no permission"),
    }
    return tuple(
        Capability(name=name, is_available=is_available, reason=reason)
        for name, (is_available, reason) in offers.items()
    )
