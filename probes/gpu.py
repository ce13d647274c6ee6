"""An NVIDIA GPU as a device: what it can be asked is found out by asking, not by its architecture.

Knows NVML only through `probes.nvml`, and nothing of other vendors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from probes.clock import Clock
from probes.counting import Counter
from probes.device import Capability, DeviceInfo, DeviceKind, Meter, Method, PowerSource, Scope
from probes.errors import NotSupported, ProbeError
from probes.findings import Subject
from probes.meter import POWER_INTERVAL_S, CounterMeter, PowerMeter, PowerReader
from probes.nvml import Card, Nvml
from probes.nvml_values import (
    MILLIJOULES_PER_JOULE,
    MODULE_CEILING_W,
    Architecture,
    PowerField,
    PowerScope,
    board_ceiling_w,
)
from probes.validity import Note

#: Counter steps differ between boards: 10 ms were seen on a GTX 1650, 100 ms on data-centre boards. Until a board's
#: own step is measured, the longest one seen is assumed.
ASSUMED_TICK_S = 0.1
#: Within this time the counter of a board that draws power has moved.
COUNTER_PROBE_S = 0.3
#: On these the energy counter covers GPU, CPU and memory of the module (GH200, GB200, GB300, GB10).
SUPERCHIP = re.compile(r"\bG[HB]\d+")

T = TypeVar("T")

COUNTER_DETAIL = "NVML total energy counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """What probing found."""

    counter: PowerSource | None
    power: PowerReader | None
    capabilities: tuple[Capability, ...]


class GpuDevice:
    """One card, by UUID."""

    def __init__(
        self,
        nvml: Nvml,
        card: Card,
        *,
        clock: Clock,
        cuda_ordinal: int | None = None,
        is_slice: bool = False,
    ) -> None:
        self._nvml = nvml
        self._card = card
        self._clock = clock
        self._is_shared = is_slice or nvml.is_mig_enabled(card.uuid)
        self._info = self._describe(cuda_ordinal)
        self._sources: _Sources | None = None

    @property
    def info(self) -> DeviceInfo:
        """Which card it is, with PCI id, firmware, power limits and CUDA ordinal in the details."""
        return self._info

    @property
    def power_source(self) -> PowerSource | None:
        """The energy counter, else power readings; None where the card offers neither. Probed once."""
        sources = self._probed()
        return sources.counter or (sources.power.source if sources.power else None)

    def capabilities(self) -> Sequence[Capability]:
        """Every way to read energy or power, with what the driver answered."""
        return self._probed().capabilities

    def meter(self, pids: Sequence[int]) -> Meter:
        """Open a meter for the whole card, whatever processes run on it.

        Raises NotSupported when the card offers neither energy nor power.
        """
        sources = self._probed()
        notes = (Note.WHOLE_GPU_SHARED,) if self._is_shared else ()
        uuid = self._card.uuid
        if sources.counter is not None:
            subject = Subject(source=sources.counter, device_uuids=(uuid,), notes=notes)
            counter = Counter(read=lambda: self._nvml.energy_mj(uuid), counts_per_joule=MILLIJOULES_PER_JOULE)
            check = sources.power if _can_check(sources.power, sources.counter) else None
            return CounterMeter(lambda: counter, subject, clock=self._clock, check=check)
        if sources.power is not None:
            subject = Subject(source=sources.power.source, device_uuids=(uuid,), notes=notes)
            return PowerMeter(sources.power, subject, clock=self._clock)
        raise NotSupported(f"{self._card.name} ({uuid}): the driver offers neither energy nor power")

    def _describe(self, cuda_ordinal: int | None) -> DeviceInfo:
        nvml, uuid = self._nvml, self._card.uuid
        details: dict[str, object] = {
            "pci_id": self._card.pci_id,
            "vbios": _or_none(lambda: nvml.vbios_version(uuid)),
            "power_limit_w": nvml.power_limit_w(uuid),
            "max_power_limit_w": nvml.max_power_limit_w(uuid),
            "is_mig": self._is_shared,
            "cuda_ordinal": cuda_ordinal,
        }
        return DeviceInfo(
            uuid=uuid,
            name=self._card.name,
            kind=DeviceKind.GPU,
            driver=nvml.driver_version(),
            details=tuple((key, str(value)) for key, value in details.items() if value is not None),
        )

    def _probed(self) -> _Sources:
        if self._sources is None:
            self._sources = self._probe()
        return self._sources

    def _probe(self) -> _Sources:
        counter, counter_capability = self._probe_counter()
        power: PowerReader | None = None
        capabilities = [counter_capability]
        for candidate in self._power_candidates():
            try:
                seen = f"reads {candidate.read_w():.1f} W"
            except ProbeError as error:
                capabilities.append(_capability(candidate.source.detail, is_available=False, reason=str(error)))
                continue
            capabilities.append(_capability(candidate.source.detail, is_available=True, reason=seen))
            power = power or candidate
        return _Sources(counter=counter, power=power, capabilities=tuple(capabilities))

    def _probe_counter(self) -> tuple[PowerSource | None, Capability]:
        try:
            before_mj = self._nvml.energy_mj(self._card.uuid)
            self._clock.wait(Event(), COUNTER_PROBE_S)
            step_mj = self._nvml.energy_mj(self._card.uuid) - before_mj
        except ProbeError as error:
            return None, _capability(COUNTER_DETAIL, is_available=False, reason=str(error))
        if step_mj < 0:
            reason = f"went back by {-step_mj} mJ within {COUNTER_PROBE_S} s"
            return None, _capability(COUNTER_DETAIL, is_available=False, reason=reason)
        source = PowerSource(
            scope=Scope.MODULE if self._is_superchip else Scope.GPU,
            method=Method.COUNTER,
            detail=COUNTER_DETAIL,
            resolution_s=ASSUMED_TICK_S,
        )
        seen = f"rose by {step_mj} mJ within {COUNTER_PROBE_S} s" if step_mj else "is there, but stands still"
        return source, _capability(COUNTER_DETAIL, is_available=True, reason=seen)

    def _power_candidates(self) -> list[PowerReader]:
        """Ways to read power, the best first; on a superchip the module's before the GPU's, as the counter's."""
        fields = [
            self._field(field, scope)
            for scope in ([PowerScope.MODULE] if self._is_superchip else []) + [PowerScope.GPU]
            for field in (PowerField.INSTANT, PowerField.AVERAGE)
        ]
        return [*fields, self._plain_power()]

    def _field(self, field: PowerField, scope: PowerScope) -> PowerReader:
        uuid = self._card.uuid
        ceiling_w = MODULE_CEILING_W if scope is PowerScope.MODULE else self._board_ceiling_w()
        is_instant = field is PowerField.INSTANT
        source = PowerSource(
            scope=Scope.MODULE if scope is PowerScope.MODULE else Scope.GPU,
            method=Method.INTEGRATED if is_instant else Method.INTEGRATED_AVERAGE,
            detail=f"NVML {field.name.lower()} power of the {scope.name.lower()}, field {field:d}",
            resolution_s=POWER_INTERVAL_S,
        )
        return PowerReader(
            source=source,
            read_w=lambda: self._nvml.power_field_w(uuid, field, scope, ceiling_w=ceiling_w),
        )

    def _plain_power(self) -> PowerReader:
        """The oldest call: instantaneous before Ampere, a mean over the last second since (GA100 excepted)."""
        uuid, ceiling_w = self._card.uuid, self._board_ceiling_w()
        architecture = _or_none(lambda: self._nvml.architecture(uuid))
        is_instant = architecture is not None and architecture < Architecture.AMPERE
        source = PowerSource(
            scope=Scope.GPU,
            method=Method.INTEGRATED if is_instant else Method.INTEGRATED_AVERAGE,
            detail="NVML power usage",
            resolution_s=POWER_INTERVAL_S,
        )
        return PowerReader(source=source, read_w=lambda: self._nvml.power_w(uuid, ceiling_w=ceiling_w))

    def _board_ceiling_w(self) -> float:
        return board_ceiling_w(self._nvml.max_power_limit_w(self._card.uuid))

    @property
    def _is_superchip(self) -> bool:
        return SUPERCHIP.search(self._card.name) is not None


def _can_check(power: PowerReader | None, counter: PowerSource) -> bool:
    """Return whether power readings can judge the counter: of the same scope, and not trailing averages."""
    return power is not None and power.source.scope is counter.scope and power.source.method is Method.INTEGRATED


def _capability(name: str, *, is_available: bool, reason: str) -> Capability:
    return Capability(name=name, is_available=is_available, reason=reason)


def _or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except ProbeError:
        return None
