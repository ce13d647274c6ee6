"""The knobs a job searches: what was asked for, checked against what engine and device allow.

A knob that cannot be set is refused before the job is stored, with the reason; nothing is dropped in silence. Knows
nothing of how points are chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import InvalidSettings
from engine.settings import PRECISIONS, EngineSettings
from probes.device import Device, DeviceKind
from tuner.errors import InvalidRequest
from tuner.point import OperatingPoint
from tuner.request import MAX_TOKENS, KnobRange, KnobValue, TuneRequest
from tuner.workload import max_context

ENGINES = ("embedded",)
#: Knobs of a device's clocks and power; they need control, which this version does not take.
DEVICE_KNOBS = ("sm_clock_cap_mhz", "power_cap_w", "cpu_clock_cap_mhz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One axis of the search."""

    name: str
    values: tuple[KnobValue, ...]
    #: Whether another value needs another launch of the engine.
    needs_launch: bool
    #: What an untuned deployment uses: the reference that gains are told against.
    default: KnobValue


#: Knobs of the embedded engine: name -> (needs launch, default, values tried when a job names none).
_EMBEDDED: dict[str, tuple[bool, KnobValue, tuple[KnobValue, ...]]] = {
    "max_batch": (True, 8, (1, 2, 4, 8, 16, 32)),
    "precision": (True, "fp32", ("fp32", "bf16", "int8")),
    "prefill_chunk": (False, 256, (32, 64, 128, 256, 512)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Every combination of the knobs' values."""

    knobs: tuple[Knob, ...]

    @property
    def size(self) -> int:
        """Number of points."""
        return math.prod(len(knob.values) for knob in self.knobs)

    @property
    def default_point(self) -> OperatingPoint:
        """The engine's own defaults, or the nearest value the space has; measured first."""
        return OperatingPoint.of({knob.name: _nearest(knob) for knob in self.knobs})

    def __contains__(self, point: OperatingPoint) -> bool:
        """Tell whether a point has these knobs, no others, and a value of each."""
        chosen = point.as_dict()
        return len(chosen) == len(self.knobs) and all(chosen.get(knob.name) in knob.values for knob in self.knobs)

    def points(self) -> Iterator[OperatingPoint]:
        """Yield every point, the last knob changing fastest."""
        names = [knob.name for knob in self.knobs]
        for values in itertools.product(*(knob.values for knob in self.knobs)):
            yield OperatingPoint.of(dict(zip(names, values, strict=True)))


def search_space(request: TuneRequest, device: Device) -> SearchSpace:
    """Build the space of a request on a device.

    Raises InvalidRequest for an unknown engine or knob, a value the engine refuses, or a knob the device lacks.
    """
    if request.engine not in ENGINES:
        raise InvalidRequest("engine", request.engine, f"this version has {', '.join(ENGINES)}")
    knobs = tuple(_knob(knob_range, device) for knob_range in request.knobs or _all_knobs(device))
    for knob in knobs:  # the engine judges each knob by itself, so that every combination need not be tried
        for value in knob.values:
            settings_of(request, OperatingPoint.of({knob.name: value}))
    return SearchSpace(knobs=knobs)


def settings_of(request: TuneRequest, point: OperatingPoint) -> EngineSettings:
    """Return the engine settings of a point; knobs the job does not search keep their defaults.

    Raises InvalidRequest naming the knob when the engine refuses a value.
    """
    chosen = {name: default for name, (_, default, _) in _EMBEDDED.items()} | point.as_dict()
    try:
        return EngineSettings(
            model=request.model,
            precision=str(chosen["precision"]),
            max_batch=_whole("max_batch", chosen["max_batch"]),
            prefill_chunk=_whole("prefill_chunk", chosen["prefill_chunk"]),
            max_context=max_context(request.workload),
        )
    except InvalidSettings as error:
        raise InvalidRequest("knobs", str(point), str(error)) from error


def concurrency_of(request: TuneRequest, point: OperatingPoint) -> int:
    """Return the offered load: the workload's concurrency, or as many requests as the engine runs at once."""
    return request.workload.concurrency or settings_of(request, point).max_batch


def _all_knobs(device: Device) -> tuple[KnobRange, ...]:
    """Return what is tried when a job names no knob: every default value that the device can run."""
    return tuple(
        KnobRange(name=name, values=tuple(value for value in values if _can_run(value, device)))
        for name, (_, _, values) in _EMBEDDED.items()
    )


def _can_run(value: KnobValue, device: Device) -> bool:
    return not (value == "int8" and device.info.kind is DeviceKind.GPU)


def _knob(asked: KnobRange, device: Device) -> Knob:
    if asked.name in DEVICE_KNOBS:
        raise InvalidRequest(
            f"knobs.{asked.name}",
            list(asked.values),
            f"{device.info.name} is only observed: this version sets no clocks or power limits; remove the knob",
        )
    if asked.name not in _EMBEDDED:
        raise InvalidRequest(
            "knobs", asked.name, f"the embedded engine has no such knob; it has {', '.join(_EMBEDDED)}"
        )
    needs_launch, default, _ = _EMBEDDED[asked.name]
    if asked.name == "precision":
        _require_precisions(asked, device)
    return Knob(name=asked.name, values=asked.values, needs_launch=needs_launch, default=default)


def _require_precisions(asked: KnobRange, device: Device) -> None:
    for value in asked.values:
        if value not in PRECISIONS:
            raise InvalidRequest("knobs.precision", value, f"choose from {', '.join(PRECISIONS)}")
        if not _can_run(value, device):
            raise InvalidRequest("knobs.precision", value, "int8 weights run on CPUs only in this version; remove it")


def _whole(name: str, value: KnobValue) -> int:
    if not isinstance(value, int) or value > MAX_TOKENS:
        raise InvalidRequest(f"knobs.{name}", value, f"give whole numbers up to {MAX_TOKENS}")
    return value


def _nearest(knob: Knob) -> KnobValue:
    if knob.default in knob.values:
        return knob.default
    if isinstance(knob.default, str):
        return knob.values[0]
    default = knob.default
    return min(knob.values, key=lambda value: abs(float(value) - default))
