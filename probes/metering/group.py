"""Several GPUs of one server as one device: what a tensor-parallel engine runs on.

Every figure is of all members or of none: the sum of those that happen to answer would look like a better operating
point. Knows members only as devices, nothing of drivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce

from probes.clock import Clock
from probes.device import (
    UNSET,
    Capability,
    Device,
    DeviceInfo,
    DeviceKind,
    Meter,
    PowerSource,
    Status,
)
from probes.errors import NotSupported, UnknownDevice
from probes.metering.group_meter import GroupMeter, worst_method
from probes.metering.together import together
from probes.settings import DeviceSettings, Settable

#: Between the members' UUIDs in a group's.
UUID_SEPARATOR = "+"


class DeviceGroup:
    """GPUs that work as one; their order is that of the engine's ranks, their UUID does not depend on it."""

    def __init__(self, devices: Sequence[Device], *, clock: Clock) -> None:
        """Group at least two GPUs.

        Raises UnknownDevice where one is named twice (two MIG slices of a card are one card, whose power is measured
        once), and NotSupported where one is no GPU.
        """
        self.members = tuple(devices)
        self._clock = clock
        uuids = self.member_uuids
        if len(uuids) < 2:
            raise UnknownDevice("a group has at least two GPUs")
        if len(set(uuids)) < len(uuids):
            raise UnknownDevice(f"a GPU is named twice in {', '.join(uuids)}: its power must be counted once")
        others = [member.info.name for member in self.members if member.info.kind is not DeviceKind.GPU]
        if others:
            raise NotSupported(f"only GPUs can be grouped, not {', '.join(others)}")

    @property
    def member_uuids(self) -> tuple[str, ...]:
        """UUIDs of all members, in order of the ranks."""
        return tuple(member.info.uuid for member in self.members)

    @property
    def info(self) -> DeviceInfo:
        """All members: UUIDs sorted and joined, names counted, each member's details under its UUID."""
        infos = [member.info for member in self.members]
        names = Counter(info.name for info in infos)
        return DeviceInfo(
            uuid=UUID_SEPARATOR.join(sorted(self.member_uuids)),
            name=" + ".join(f"{number} x {name}" for name, number in names.items()),
            kind=DeviceKind.GPU,
            driver=", ".join(dict.fromkeys(info.driver for info in infos)),
            details=tuple((f"{info.uuid} {key}", value) for info in infos for key, value in info.details),
        )

    @property
    def power_source(self) -> PowerSource | None:
        """The members' sources as one, as good as the worst of them; None where any member has none.

        Raises NotSupported where their scopes differ: a module's joules hold its CPU and memory, a board's do not.
        """
        found = probe_all_of(self.members, self._clock)
        sources = [source for source in found if source is not None]
        if len(sources) < len(found):
            return None
        scopes = {source.scope for source in sources}
        if len(scopes) > 1:
            raise NotSupported(
                f"{self.info.name}: energies of the scopes {', '.join(sorted(scopes))} cannot be added; "
                "group GPUs of one kind"
            )
        resolutions_s = [source.resolution_s for source in sources if source.resolution_s is not None]
        return PowerSource(
            scope=scopes.pop(),
            method=worst_method(source.method for source in sources),
            detail=f"sum over {len(sources)} GPUs of: {', '.join(dict.fromkeys(source.detail for source in sources))}",
            resolution_s=max(resolutions_s) if len(resolutions_s) == len(sources) else None,
        )

    def capabilities(self) -> Sequence[Capability]:
        """Return each member's capabilities under its UUID."""
        probed = together([member.capabilities for member in self.members], self._clock)
        return [
            replace(capability, name=f"{uuid}: {capability.name}")
            for uuid, capabilities in zip(self.member_uuids, probed, strict=True)
            for capability in capabilities
        ]

    def settables(self) -> Sequence[Settable]:
        """Return the knobs that every member has, with the values that every member takes."""
        knobs = [{knob.name: knob for knob in member.settables()} for member in self.members]
        names = [name for name in knobs[0] if all(name in others for others in knobs)]
        shared = (reduce(_both, (others[name] for others in knobs)) for name in names)
        return [knob for knob in shared if knob.values]

    def status(self) -> Status:
        """Look at every member: powers and limits added, the lowest clock, the highest temperature, all events.

        Raises DeviceLost when a member no longer answers. What one member does not tell is None.
        """
        seen = [member.status() for member in self.members]
        return Status(
            time_s=max(status.time_s for status in seen),
            power_w=_over_all(sum, [status.power_w for status in seen]),
            clock_mhz=_over_all(min, [status.clock_mhz for status in seen]),
            memory_clock_mhz=_over_all(min, [status.memory_clock_mhz for status in seen]),
            temperature_c=_over_all(max, [status.temperature_c for status in seen]),
            power_limit_w=_over_all(sum, [status.power_limit_w for status in seen]),
            events=tuple(dict.fromkeys(event for status in seen for event in status.events)),
        )

    def meter(self, pids: Sequence[int], *, settings: DeviceSettings = UNSET) -> Meter:
        """Open a meter over all members; `settings` are those of each member.

        Raises NotSupported when any of them offers neither energy nor power, or when their scopes differ.
        """
        source = self.power_source
        if source is None:
            raise NotSupported(f"{self.info.name}: not every GPU offers energy or power")
        meters = [member.meter(pids, settings=settings) for member in self.members]
        return GroupMeter(dict(zip(self.member_uuids, meters, strict=True)), source, clock=self._clock)


def members_of(device: Device) -> tuple[Device, ...]:
    """Return a group's members, or the device itself as its only one."""
    return device.members if isinstance(device, DeviceGroup) else (device,)


def member_uuids(uuid: str) -> tuple[str, ...]:
    """Return the UUIDs of all members from a group's UUID, or that of a single device."""
    return tuple(uuid.split(UUID_SEPARATOR))


def probe_all_of(devices: Sequence[Device], clock: Clock) -> tuple[PowerSource | None, ...]:
    """Return the power source of each device, learned side by side: finding a counter's step takes seconds."""
    return tuple(together([partial(_source_of, device) for device in devices], clock))


def _source_of(device: Device) -> PowerSource | None:
    return device.power_source


def _both(one: Settable, other: Settable) -> Settable:
    """Return the values that both knobs take; none at all where there are no such values."""
    if not one.values:
        return one
    if one.is_range and other.is_range:
        ends = (max(one.lowest, other.lowest), min(one.highest, other.highest))
        return replace(one, values=ends if ends[0] <= ends[1] else ())
    values = [value for value in {*one.values, *other.values} if _takes(one, value) and _takes(other, value)]
    return replace(one, values=tuple(sorted(values)), is_range=False)


def _takes(knob: Settable, value: int) -> bool:
    return knob.lowest <= value <= knob.highest if knob.is_range else value in knob.values


def _over_all(combine: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    """Return one figure of all members; None where any of them lacks it."""
    known = [value for value in values if value is not None]
    return combine(known) if len(known) == len(values) else None
