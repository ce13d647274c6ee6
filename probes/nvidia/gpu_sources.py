"""Where the energy of one NVIDIA card can be learned, found out by asking, and in words for people.

Nothing is concluded from the architecture except what the oldest power call means. Knows NVML only through
`probes.nvidia.nvml`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from probes.clock import Clock
from probes.device import Capability, Method, PowerSource, Scope
from probes.errors import ProbeError
from probes.metering.gpu_meter import LOOK_INTERVAL_S
from probes.metering.ticks import is_final, measure_tick
from probes.nvidia.nvml import Card, Nvml
from probes.nvidia.nvml_values import MODULE_CEILING_W, Architecture, PowerField, PowerScope, board_ceiling_w

COUNTER_DETAIL = "NVML total energy counter"
#: The longest step seen on data-centre boards, for a counter whose own cannot be measured.
ASSUMED_TICK_S = 0.1
#: How often, and how long after another, a card is asked whose driver is "not ready".
NUM_ATTEMPTS = 5
RETRY_S = 0.1
#: On these the energy counter covers GPU, CPU and memory of the module (GH200, GB200, GB300, GB10).
SUPERCHIP = re.compile(r"\bG[HB]\d+")

_SCOPES = {PowerScope.GPU: Scope.GPU, PowerScope.MODULE: Scope.MODULE, PowerScope.MEMORY: Scope.MEMORY}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReader:
    """One way to read power."""

    source: PowerSource
    #: Returns watts; raises ProbeError.
    read_w: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where energy and power come from, each the best that there is."""

    counter: PowerSource | None
    power: PowerReader | None
    #: Every way that was tried.
    capabilities: tuple[Capability, ...]

    @property
    def best(self) -> PowerSource | None:
        """The counter, else the power readings; None where there is neither."""
        return self.counter or (self.power.source if self.power else None)

    @property
    def check(self) -> PowerSource | None:
        """The power readings if they can judge the counter: of the same scope, and not trailing averages."""
        power = self.power.source if self.power else None
        can_check = power and self.counter and power.scope is self.counter.scope and power.method is Method.INTEGRATED
        return power if can_check else None


class SourceProbe:
    """Asks one card."""

    def __init__(self, nvml: Nvml, card: Card, *, clock: Clock) -> None:
        self._nvml = nvml
        self._card = card
        self._clock = clock

    def sources(self) -> Sources:
        """Try every way to learn energy and power; up to two seconds pass while the counter's steps are measured."""
        counter, counted = self._counter()
        power, powers = self._power()
        return Sources(counter=counter, power=power, capabilities=(counted, *powers, *self._memory_power()))

    def _counter(self) -> tuple[PowerSource | None, Capability]:
        try:
            tick = measure_tick(lambda: self._nvml.energy_mj(self._card.uuid), self._clock)
        except ProbeError as error:
            return None, Capability(name=COUNTER_DETAIL, is_available=False, reason=str(error))
        assumed = f", steps of {ASSUMED_TICK_S:g} s assumed" if tick.period_s is None else ""
        source = PowerSource(
            scope=Scope.MODULE if self._is_superchip else Scope.GPU,
            method=Method.COUNTER,
            detail=f"{COUNTER_DETAIL}{assumed}",
            resolution_s=tick.period_s or ASSUMED_TICK_S,
        )
        seen = (
            f"is there, but stands still{assumed}"
            if tick.period_s is None
            else f"steps every {tick.period_s * 1000:.0f} ms, rose by {tick.rise} mJ within {tick.watched_s:.1f} s"
        )
        return source, Capability(name=COUNTER_DETAIL, is_available=True, reason=seen)

    def _power(self) -> tuple[PowerReader | None, list[Capability]]:
        chosen: PowerReader | None = None
        capabilities = []
        for candidate in self._power_candidates():
            capability = self._tried(candidate)
            capabilities.append(capability)
            if capability.is_available and chosen is None:
                chosen = candidate
        return chosen, capabilities

    def _memory_power(self) -> list[Capability]:
        """What the memory alone draws, for people to see: a part of the card is never a source."""
        readers = [self._field(field, PowerScope.MEMORY) for field in (PowerField.INSTANT, PowerField.AVERAGE)]
        return [self._tried(reader) for reader in readers]

    def _tried(self, reader: PowerReader) -> Capability:
        return tried(reader.source.detail, reader.read_w, "reads {:.1f} W".format, self._clock)

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
            scope=_SCOPES[scope],
            method=Method.INTEGRATED if is_instant else Method.INTEGRATED_AVERAGE,
            detail=f"NVML {field.name.lower()} power of the {scope.name.lower()}, field {field:d}",
            resolution_s=LOOK_INTERVAL_S,
        )
        return PowerReader(
            source=source,
            read_w=lambda: self._nvml.power_field_w(uuid, field, scope, ceiling_w=ceiling_w),
        )

    def _plain_power(self) -> PowerReader:
        """The oldest call: instantaneous before Ampere, a mean over the last second since (GA100 excepted)."""
        uuid, ceiling_w = self._card.uuid, self._board_ceiling_w()
        try:
            is_instant = self._nvml.architecture(uuid) < Architecture.AMPERE
        except ProbeError:
            is_instant = False
        source = PowerSource(
            scope=Scope.GPU,
            method=Method.INTEGRATED if is_instant else Method.INTEGRATED_AVERAGE,
            detail="NVML power usage",
            resolution_s=LOOK_INTERVAL_S,
        )
        return PowerReader(source=source, read_w=lambda: self._nvml.power_w(uuid, ceiling_w=ceiling_w))

    def _board_ceiling_w(self) -> float:
        return board_ceiling_w(self._nvml.max_power_limit_w(self._card.uuid))

    @property
    def _is_superchip(self) -> bool:
        return SUPERCHIP.search(self._card.name) is not None


def tried(name: str, ask: Callable[[], T], in_words: Callable[[T], str], clock: Clock) -> Capability:
    """Ask, and return what was seen, or why there is nothing.

    A driver that is "not ready" is asked again NUM_ATTEMPTS times: what it says then holds for as long as we run.
    """
    never = Event()
    for attempt in range(NUM_ATTEMPTS):
        if attempt:
            clock.wait(never, RETRY_S)
        try:
            return Capability(name=name, is_available=True, reason=in_words(ask()))
        except ProbeError as error:
            refusal = Capability(name=name, is_available=False, reason=str(error))
            if is_final(error):
                break
    return refusal
