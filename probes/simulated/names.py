"""What a simulated device is called on the command line and in jobs.

`simulated:h100-sxm`, `simulated:h100-sxm:8` for eight of them, `simulated:/path/to/twin.json` for a calibrated one, and
`@aic` behind any of these for the kernel times of aiconfigurator-core. Knows which accelerators there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probes.errors import UnknownDevice
from probes.simulated.accelerators import ACCELERATORS, Accelerator
from probes.simulated.twin import SUFFIX, read_twin

if TYPE_CHECKING:
    from probes.simulated.device import SimulatedDevice
    from probes.simulated.options import SimulationOptions

PREFIX = "simulated:"
#: 64 racks of 72.
MOST_GPUS = 4608
#: GPUs of a rack that is one scale-up domain, and sold as one.
_RACK_GPUS = 72
_MEASURED_TIMES = "@aic"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedName:
    """Which accelerator, and how many."""

    #: Of the table of accelerators, or the path of a twin's file.
    key: str
    num_gpus: int
    #: Whether the times of kernels that somebody measured go before the response's own.
    has_measured_times: bool = False

    def __str__(self) -> str:
        return f"{PREFIX}{self.key}:{self.num_gpus}{_MEASURED_TIMES if self.has_measured_times else ''}"

    @property
    def accelerator(self) -> Accelerator:
        """The figures behind the key. Raises UnknownDevice for a file that is none, or was damaged."""
        return _accelerator(self.key)


def is_simulated_name(name: str) -> bool:
    """Return whether a device's name asks for a simulation, be it one that we have or not."""
    return name.strip().lower().startswith(PREFIX)


def parse_name(name: str) -> SimulatedName:
    """Return what a name means; without a number it is one GPU, or a whole rack of those that come in racks.

    Raises UnknownDevice with the names that there are, or with what is wrong with a twin's file.
    """
    if not is_simulated_name(name):
        raise UnknownDevice(f"{name!r} is no simulated device; those begin with {PREFIX}")
    key, number, has_measured_times = _parts(name)
    key = key if key.endswith(SUFFIX) else key.lower()
    accelerator = _accelerator(key)
    if not number:
        num_gpus = _RACK_GPUS if accelerator.domain_size == _RACK_GPUS else 1
    elif number.isascii() and number.isdigit() and 1 <= int(number) <= MOST_GPUS:
        num_gpus = int(number)
    else:
        raise UnknownDevice(f"{name!r} asks for {number!r} GPUs; give 1 to {MOST_GPUS}")
    return SimulatedName(key=key, num_gpus=num_gpus, has_measured_times=has_measured_times)


def located(name: str) -> str:
    """Return a device's name with the path of a twin's file made absolute: a job may run in another folder."""
    if not is_simulated_name(name):
        return name
    key, number, has_measured_times = _parts(name)
    if not key.endswith(SUFFIX):
        return name
    path = Path(key).expanduser().absolute()
    return f"{PREFIX}{path}{':' + number if number else ''}{_MEASURED_TIMES if has_measured_times else ''}"


def open_simulated(
    name: str, *, seed: int = 0, noise: float = 1.0, options: SimulationOptions | None = None
) -> SimulatedDevice:
    """Return the device that a name means, on a clock of its own. Raises UnknownDevice."""
    # Not with the module: whoever only reads names, as a service does, loads no simulation.
    from probes.simulated.device import SimulatedDevice

    wanted = parse_name(name)
    return SimulatedDevice(wanted.accelerator, num_gpus=wanted.num_gpus, seed=seed, noise=noise, options=options)


def _parts(name: str) -> tuple[str, str, bool]:
    """Split a name into key, number (or nothing), and whether measured times are asked for."""
    wanted = name.strip()[len(PREFIX) :]
    has_measured_times = wanted.lower().endswith(_MEASURED_TIMES)
    if has_measured_times:
        wanted = wanted[: -len(_MEASURED_TIMES)]
    head, colon, tail = wanted.rpartition(":")
    return (head, tail, has_measured_times) if colon else (wanted, "", has_measured_times)


def _accelerator(key: str) -> Accelerator:
    if key.endswith(SUFFIX):
        return read_twin(Path(key).expanduser()).accelerator
    if key not in ACCELERATORS:
        raise UnknownDevice(
            f"there is no simulated {key!r}; choose one of {', '.join(ACCELERATORS)}, or give the path of a file that "
            f"`wattfront calibrate` wrote ({SUFFIX})"
        )
    return ACCELERATORS[key]
