"""Which devices this machine has, and which one or which group of them a name means.

Knows the kinds of device there are; nothing of how each is read. What cannot be had is told with its reason
(`diagnose`) and stops nothing: a GPU that does not answer hides no other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from probes.amd.amd_gpu import list_amd_gpus
from probes.amd.amd_smi import AmdSmi
from probes.clock import Clock, SystemClock
from probes.cpu.cpu_device import CpuDevice
from probes.cpu.cpu_estimate import CpuPowerModel
from probes.cpu.paths import HostPaths
from probes.device import Capability, Device, DeviceKind, PowerSource
from probes.errors import ProbeError, UnknownDevice
from probes.metering.gpu_meter import look_rounds
from probes.metering.group import DeviceGroup, probe_all_of
from probes.nvidia.cuda_visible import VisibleCards, visible_cards
from probes.nvidia.gpu import GpuDevice
from probes.nvidia.nvml import Card, Nvml

NVML_NAME = "NVML"
ALL_GPUS = "gpu:all"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Everything detection asks; the defaults are this machine."""

    nvml: Nvml = field(default_factory=Nvml)
    amd_smi: AmdSmi = field(default_factory=AmdSmi)
    clock: Clock = field(default_factory=SystemClock)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    paths: HostPaths = field(default_factory=HostPaths)
    cpu_power: CpuPowerModel = field(default_factory=CpuPowerModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a machine has, seen once."""

    #: The GPUs that CUDA would show, in its order, then the CPU.
    devices: tuple[Device, ...]
    #: Each driver, and each GPU that does not answer.
    drivers: tuple[Capability, ...]


def survey(host: Host | None = None) -> Survey:
    """Look at the machine. Without a driver there are no GPUs and no error, and the reason is in `drivers`."""
    host = host or Host()
    gpus, drivers = _list_gpus(host)
    cpu = CpuDevice(paths=host.paths, model=host.cpu_power, clock=host.clock)
    return Survey(devices=(*gpus, cpu), drivers=drivers)


def list_devices(host: Host | None = None) -> tuple[Device, ...]:
    """Return the GPUs that CUDA would show, in its order, then the CPU; what is missing is in the log."""
    seen = survey(host)
    for driver in seen.drivers:
        if not driver.is_available:
            log.info("gpus_missing", source=driver.name, reason=driver.reason)
    return seen.devices


def find_device(name: str, devices: Sequence[Device], *, clock: Clock | None = None) -> Device:
    """Return the device that `name` means among `devices`, or the group of GPUs.

    `auto` is the first GPU, else the CPU; `cpu` and `gpu` are the first of their kind; `cuda:N` is what CUDA calls
    so; anything else is a UUID or the beginning of exactly one, with or without its GPU- or CPU- and in any case.
    Several of these with commas between are a group in that order, `gpu:all` is all GPUs of the first one's maker; a
    group of one is the device itself. `clock` times what a group does at once. Raises UnknownDevice with the list of
    what there is, also where a name repeats a GPU, and NotSupported where one of several is no GPU.
    """
    is_all = name.strip().lower() == ALL_GPUS
    found = _all_gpus(devices) if is_all else [_find_one(part, devices) for part in name.split(",")]
    return found[0] if len(found) == 1 else _grouped(found, clock or SystemClock())


def probe_all(devices: Sequence[Device], *, clock: Clock | None = None) -> tuple[PowerSource | None, ...]:
    """Return the power source of each device, all learned at the same time: one takes seconds on its first asking."""
    return probe_all_of(devices, clock or SystemClock())


def diagnose(host: Host | None = None) -> tuple[Capability, ...]:
    """Return every candidate source of power readings, with what was seen or why it cannot be had."""
    host = host or Host()
    return capabilities_of(survey(host), clock=host.clock)


def capabilities_of(seen: Survey, *, clock: Clock | None = None) -> tuple[Capability, ...]:
    """Return the same of a machine that was surveyed already."""
    probe_all(seen.devices, clock=clock)
    found = list(seen.drivers)
    for device in seen.devices:
        is_gpu = device.info.kind is DeviceKind.GPU
        found += [
            replace(capability, name=f"{device.info.uuid}: {capability.name}") if is_gpu else capability
            for capability in device.capabilities()
        ]
    return tuple(found)


def _find_one(name: str, devices: Sequence[Device]) -> Device:
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


def _all_gpus(devices: Sequence[Device]) -> list[Device]:
    gpus = _of_kind(devices, DeviceKind.GPU)
    if not gpus:
        raise UnknownDevice(f"there is no GPU; {_listed(devices)}")
    return [gpu for gpu in gpus if type(gpu) is type(gpus[0])]


def _grouped(devices: Sequence[Device], clock: Clock) -> DeviceGroup:
    """Return the devices as a group; each card then knows that the engine may be on the others as well."""
    uuids = [device.info.uuid for device in devices]
    rounds = look_rounds(clock)
    members = [device.beside(uuids, rounds) if isinstance(device, GpuDevice) else device for device in devices]
    return DeviceGroup(members, clock=clock)


def _list_gpus(host: Host) -> tuple[tuple[Device, ...], tuple[Capability, ...]]:
    """Return all GPUs, NVIDIA's first, and what was seen of each driver and of each GPU that does not answer."""
    nvidia_gpus, nvidia = _list_nvidia_gpus(host)
    amd_gpus, amd = list_amd_gpus(host.clock, smi=host.amd_smi, proc=host.paths.proc)
    return (*nvidia_gpus, *amd_gpus), (*nvidia, amd)


def _list_nvidia_gpus(host: Host) -> tuple[tuple[Device, ...], tuple[Capability, ...]]:
    try:
        cards, failures = _answering(host.nvml)
        visible = visible_cards(
            host.environ.get("CUDA_VISIBLE_DEVICES"),
            cards,
            is_pci_order=host.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID",
            mig_parent=host.nvml.mig_parent,
            is_complete=not failures,
        )
        gpus = _open_gpus(host, visible)
    except ProbeError as error:
        return (), (Capability(name=NVML_NAME, is_available=False, reason=str(error)),)
    seen = f"{len(gpus)} of {len(cards) + len(failures)} GPUs visible"
    reason = f"{seen}; {visible.reason}" if visible.reason else seen
    lost = (
        Capability(
            name=f"GPU that does not answer ({number} of {len(failures)})", is_available=False, reason=str(error)
        )
        for number, error in enumerate(failures, start=1)
    )
    return gpus, (Capability(name=NVML_NAME, is_available=bool(gpus), reason=reason), *lost)


def _answering(nvml: Nvml) -> tuple[tuple[Card, ...], tuple[ProbeError, ...]]:
    """Return the cards that can be opened and one error for each other: a lost card may still tell its name."""
    named, unnamed = nvml.cards_and_failures()
    cards: list[Card] = []
    failures = list(unnamed)
    for card in named:
        try:
            nvml.is_mig_enabled(card.uuid)
        except ProbeError as error:
            failures.append(error)
        else:
            cards.append(card)
    return tuple(cards), tuple(failures)


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
            proc=host.paths.proc,
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
