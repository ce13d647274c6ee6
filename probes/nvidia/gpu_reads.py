"""What one NVIDIA card tells besides energy, and what could be set on it; found out by asking, and in words for people.

Nothing is changed: whether we may set what could be set is known once it is tried. Knows NVML only through
`probes.nvidia.nvml`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from probes.clock import Clock
from probes.clock_events import events_of
from probes.device import Capability
from probes.errors import NotSupported, ProbeError
from probes.metering.gpu_watch import CardReads
from probes.nvidia.gpu_sources import PowerReader, tried
from probes.nvidia.nvml import Nvml
from probes.settings import POWER_CAP, SM_CLOCK_CAP, Settable

T = TypeVar("T")


@dataclass(slots=True)
class _Tried:
    """Tries reads one by one."""

    clock: Clock
    capabilities: list[Capability] = field(default_factory=list)

    def kept(self, name: str, read: Callable[[], T], in_words: Callable[[T], str]) -> Callable[[], T] | None:
        """Return the read if the card answers it, else None, so that it is not asked ten times a second."""
        capability = tried(name, read, in_words, self.clock)
        self.capabilities.append(capability)
        return read if capability.is_available else None


def find_reads(
    nvml: Nvml, uuid: str, power: PowerReader | None, clock: Clock
) -> tuple[CardReads, tuple[Capability, ...]]:
    """Return how to look at the card, and each figure with what was seen or why it cannot be had."""
    found = _Tried(clock)
    reads = CardReads(
        power_w=power.read_w if power else None,
        clock_mhz=found.kept("SM clock", partial(nvml.sm_clock_mhz, uuid), "{} MHz".format),
        memory_clock_mhz=found.kept("memory clock", partial(nvml.memory_clock_mhz, uuid), "{} MHz".format),
        temperature_c=found.kept("temperature", partial(nvml.temperature_c, uuid), "{} C".format),
        event_bits=found.kept("clock events", partial(nvml.event_bits, uuid), _events_in_words),
        enforced_limit_w=found.kept("power limit", lambda: _given(nvml.power_limit_w(uuid)), "{:.0f} W".format),
        set_limit_w=found.kept("power limit as set", lambda: nvml.power_limits(uuid).set_w, "{} W".format),
        is_persistent=found.kept(
            "persistence mode", lambda: _given(nvml.is_persistent(uuid)), lambda is_on: "on" if is_on else "off"
        ),
    )
    found.kept("compute processes", partial(nvml.compute_pids, uuid), lambda pids: f"{len(pids)} now")
    return reads, tuple(found.capabilities)


def find_knobs(nvml: Nvml, uuid: str, *, barred: str | None) -> tuple[tuple[Settable, ...], tuple[Capability, ...]]:
    """Return what could be set, and each knob in words; `barred` is a reason why nothing of it is ours to set.

    Never a memory clock: on Hopper a lock of it takes hold only after a reset of the GPU.
    """
    knobs: list[Settable] = []
    capabilities = []
    for label, unit, find in (("SM clock cap", "MHz", _clock_cap), ("power cap", "W", _power_cap)):
        try:
            if barred is not None:
                raise NotSupported(barred)
            knob = find(nvml, uuid)
        except ProbeError as error:
            capabilities.append(Capability(name=label, is_available=False, reason=str(error)))
            continue
        knobs.append(knob)
        choice = "any whole number" if knob.is_range else f"{len(knob.values)} values"
        reason = f"{choice} from {knob.lowest} to {knob.highest} {unit}"
        capabilities.append(Capability(name=label, is_available=True, reason=reason))
    return tuple(knobs), tuple(capabilities)


def _clock_cap(nvml: Nvml, uuid: str) -> Settable:
    return Settable(name=SM_CLOCK_CAP, values=nvml.supported_sm_clocks_mhz(uuid))


def _power_cap(nvml: Nvml, uuid: str) -> Settable:
    limits = nvml.power_limits(uuid)
    if limits.lowest_w >= limits.highest_w:
        raise NotSupported(f"NVML: {uuid}: the power limit is fixed at {limits.highest_w} W")
    board = Settable(name=POWER_CAP, values=(limits.lowest_w, limits.highest_w), is_range=True)
    return board.up_to(limits.set_w)  # whoever set a limit meant it for us too


def _given(value: T | None) -> T:
    if value is None:
        raise NotSupported("the driver does not say")
    return value


def _events_in_words(bits: int) -> str:
    return ", ".join(events_of(bits)) or "none now"
