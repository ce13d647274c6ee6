"""Which devices this machine has, and which one a name means.

Knows the kinds of device there are; nothing of how each is read. What cannot be had is told with its reason
(`diagnose`) and stops nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from probes.clock import Clock, SystemClock
from probes.cpu import CpuDevice
from probes.cpu_estimate import CpuPowerModel
from probes.cuda_visible import VisibleCards, visible_cards
from probes.device import Capability, Device, DeviceKind
from probes.errors import ProbeError, UnknownDevice
from probes.gpu import GpuDevice
from probes.nvml import Nvml
from probes.paths import HostPaths

NVML_NAME = "NVML"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Everything detection asks; the defaults are this machine."""

    nvml: Nvml = field(default_factory=Nvml)
    clock: Clock = field(default_factory=SystemClock)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    paths: HostPaths = field(default_factory=HostPaths)
    cpu_power: CpuPowerModel = field(default_factory=CpuPowerModel)


def list_devices(host: Host | None = None) -> tuple[Device, ...]:
    """Return the GPUs that CUDA would show, in its order, then the CPU.

    Without a driver there are no GPUs and no error; the reason is in the log and in `diagnose`.
    """
    host = host or Host()
    gpus, nvml = _list_gpus(host)
    if not nvml.is_available:
        log.info("no_gpus", reason=nvml.reason)
    return (*gpus, CpuDevice(paths=host.paths, model=host.cpu_power, clock=host.clock))


def find_device(name: str, devices: Sequence[Device]) -> Device:
    """Return the device that `name` means among `devices`.

    `auto` is the first GPU, else the CPU; `cpu` and `gpu` are the first of their kind; `cuda:N` is what CUDA calls
    so; anything else is a UUID or the beginning of exactly one, with or without its GPU- or CPU- and in any case.
    Raises UnknownDevice with the list of what there is.
    """
    wanted = name.strip().lower()
    if wanted == "auto":
        found = _of_kind(devices, DeviceKind.GPU) or _of_kind(devices, DeviceKind.CPU)
    elif wanted in (DeviceKind.GPU, DeviceKind.CPU):
        found = _of_kind(devices, DeviceKind(wanted))
    elif ordinal := re.fullmatch(r"cuda(?::(\d+))?", wanted):
        found = [device for device in devices if ("cuda_ordinal", ordinal[1] or "0") in device.info.details]
    else:
        found = [device for device in devices if _is_called(device, wanted)]
        if len(found) > 1:
            raise UnknownDevice(f"{name!r} is the beginning of {len(found)} UUIDs; {_listed(devices)}")
    if not found:
        raise UnknownDevice(f"there is no device {name!r}; {_listed(devices)}")
    return found[0]


def diagnose(host: Host | None = None) -> tuple[Capability, ...]:
    """Return every candidate source of power readings, with what was seen or why it cannot be had."""
    host = host or Host()
    gpus, nvml = _list_gpus(host)
    cpu = CpuDevice(paths=host.paths, model=host.cpu_power, clock=host.clock)
    of_gpus = (
        Capability(
            name=f"{gpu.info.uuid}: {capability.name}",
            is_available=capability.is_available,
            reason=capability.reason,
        )
        for gpu in gpus
        for capability in gpu.capabilities()
    )
    return (nvml, *of_gpus, *cpu.capabilities())


def _list_gpus(host: Host) -> tuple[tuple[Device, ...], Capability]:
    try:
        cards = host.nvml.cards()
        visible = visible_cards(
            host.environ.get("CUDA_VISIBLE_DEVICES"),
            cards,
            is_pci_order=host.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID",
            mig_parent=host.nvml.mig_parent,
        )
        gpus = _open_gpus(host, visible)
    except ProbeError as error:
        return (), Capability(name=NVML_NAME, is_available=False, reason=str(error))
    seen = f"{len(gpus)} of {len(cards)} GPUs visible"
    reason = f"{seen}; {visible.reason}" if visible.reason else seen
    return gpus, Capability(name=NVML_NAME, is_available=bool(gpus), reason=reason)


def _open_gpus(host: Host, visible: VisibleCards) -> tuple[Device, ...]:
    # The second slice named may be CUDA's device 1 and yet lie on the first card.
    has_ordinals = visible.has_certain_order and len(visible.sliced) <= 1
    return tuple(
        GpuDevice(
            host.nvml,
            card,
            clock=host.clock,
            cuda_ordinal=ordinal if has_ordinals else None,
            is_slice=card.uuid in visible.sliced,
        )
        for ordinal, card in enumerate(visible.cards)
    )


def _of_kind(devices: Sequence[Device], kind: DeviceKind) -> list[Device]:
    return [device for device in devices if device.info.kind is kind]


def _is_called(device: Device, wanted: str) -> bool:
    uuid = device.info.uuid.lower()
    return bool(wanted) and (uuid.startswith(wanted) or uuid.partition("-")[2].startswith(wanted))


def _listed(devices: Sequence[Device]) -> str:
    lines = [f"{device.info.uuid} ({device.info.name})" for device in devices]
    return "there is " + ", ".join(lines) if lines else "there is no device at all"
