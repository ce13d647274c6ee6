"""The knobs of a device, by its UUID.

Knows which kinds of device have which actuators; sets nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from probes.amd.amd_smi import UUID_PREFIX as AMD_PREFIX
from probes.control.actuator import Actuator
from probes.control.cpu_actuators import CpuClockCap
from probes.control.gpu_actuators import PowerCap, SmClockCap
from probes.cpu.cpu_device import describe_cpu
from probes.detect import Host
from probes.errors import DeviceLost, ProbeError, UnknownDevice


def actuators_of(uuid: str, host: Host, prior_caps_mhz: Mapping[str, int]) -> tuple[Actuator, ...]:
    """Return an actuator for each knob that a device's kind has; whether this one has it, they tell.

    `prior_caps_mhz` are the clock caps in MHz that the operator set before us, by GPU. Raises UnknownDevice, or
    DeviceLost where a GPU no longer answers that may be this one.
    """
    if uuid == describe_cpu(host.paths, frozenset(os.sched_getaffinity(0))).uuid:
        return (CpuClockCap(host.paths, uuid),)
    if uuid.startswith(AMD_PREFIX):
        return ()  # only observed in this version
    try:
        cards, failures = host.nvml.cards_and_failures()
    except ProbeError as error:
        raise UnknownDevice(f"there is no device {uuid}: {error}") from error
    if uuid not in {card.uuid for card in cards}:
        # One that does not answer does not tell its UUID either.
        kind = DeviceLost if any(isinstance(error, DeviceLost) for error in failures) else UnknownDevice
        raise kind("; ".join([f"no device {uuid} answers", *map(str, failures)]))
    # The limit first: where both go up, as when they are put back, it must not be what holds the clock.
    return (PowerCap(host.nvml, uuid), SmClockCap(host.nvml, uuid, prior_caps_mhz.get(uuid)))
