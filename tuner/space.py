"""The knobs a job searches: what was asked for, checked against what engine and device allow.

A knob that cannot be set is refused before the job is stored, with the reason; nothing is dropped in silence. The
values of clock and power caps are those that the device takes, so that a point names what was set. Knows nothing of
how points are chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.errors import InvalidSettings
from engine.settings import PRECISIONS, EngineSettings
from probes.device import Device, DeviceKind, Method
from probes.errors import InvalidSetting
from probes.settings import CPU_CLOCK_CAP, DEVICE_KNOBS, POWER_CAP, DeviceSettings, Settable
from tuner.errors import InvalidRequest
from tuner.point import OperatingPoint
from tuner.request import MAX_TOKENS, KnobRange, KnobValue, TuneRequest
from tuner.workload import max_context

ENGINES = ("embedded",)
#: Values of a clock cap that are tried when a job names none, and the share of the highest clock they begin at: below
#: half of it the clock costs more time than it saves power (arXiv 2605.11999 finds the knee between 50 and 80 %).
NUM_CLOCK_CAPS = 6
LOWEST_CLOCK_SHARE = 0.5


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


def search_space(request: TuneRequest, device: Device, *, settables: Sequence[Settable] | None = None) -> SearchSpace:
    """Build the space of a request on a device.

    `settables` are the device's knobs as far as they may be set here; without them, all that the device offers.
    Raises InvalidRequest for an unknown engine or knob, a value the engine refuses, or a knob the device lacks.
    """
    if request.engine not in ENGINES:
        raise InvalidRequest("engine", request.engine, f"this version has {', '.join(ENGINES)}")
    settables = device.settables() if settables is None else settables
    asked = request.knobs or _all_knobs(request, device, settables)
    knobs = tuple(_knob(request, knob_range, device, settables) for knob_range in asked)
    for knob in knobs:  # the engine judges each knob by itself, so that every combination need not be tried
        for value in knob.values:
            settings_of(request, OperatingPoint.of({knob.name: value}))
    return SearchSpace(knobs=knobs)


def settings_of(request: TuneRequest, point: OperatingPoint) -> EngineSettings:
    """Return the engine settings of a point; knobs the job does not search keep their defaults.

    Raises InvalidRequest naming the knob when the engine refuses a value.
    """
    of_engine = {name: value for name, value in point.as_dict().items() if name in _EMBEDDED}
    chosen = {name: default for name, (_, default, _) in _EMBEDDED.items()} | of_engine
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


def device_settings_of(point: OperatingPoint) -> DeviceSettings:
    """Return the device settings of a point; knobs the job does not search are left as they are found."""
    return DeviceSettings(**{name: int(value) for name, value in point.as_dict().items() if name in DEVICE_KNOBS})


def _all_knobs(request: TuneRequest, device: Device, settables: Sequence[Settable]) -> tuple[KnobRange, ...]:
    """Return what is tried when a job names no knob: every default value that the device can run.

    A power cap is not among them: decoding draws so much less than the board may that caps rarely bind, and a clock
    cap reaches the same points (arXiv 2605.11999).
    """
    of_engine = tuple(
        KnobRange(name=name, values=tuple(value for value in values if _can_run(value, device)))
        for name, (_, _, values) in _EMBEDDED.items()
    )
    if not request.allow_device_control:
        return of_engine
    caps = [settable for settable in settables if settable.name != POWER_CAP and not _is_blind(device)]
    return (*of_engine, *(KnobRange(name=cap.name, values=_spread(cap)) for cap in caps))


def _spread(settable: Settable) -> tuple[int, ...]:
    """Return clock caps spread evenly from LOWEST_CLOCK_SHARE of the highest to the highest itself."""
    lowest = max(settable.lowest, LOWEST_CLOCK_SHARE * settable.highest)
    step = (settable.highest - lowest) / (NUM_CLOCK_CAPS - 1)
    return tuple(sorted({settable.snapped(lowest + step * i) for i in range(NUM_CLOCK_CAPS)}))


def _is_blind(device: Device) -> bool:
    """Return whether the device's energy figure cannot see a clock."""
    return device.power_source is not None and device.power_source.method is Method.ESTIMATE


def _can_run(value: KnobValue, device: Device) -> bool:
    return not (value == "int8" and device.info.kind is DeviceKind.GPU)


def _knob(request: TuneRequest, asked: KnobRange, device: Device, settables: Sequence[Settable]) -> Knob:
    if asked.name in DEVICE_KNOBS:
        return _device_knob(request, asked, device, settables)
    if asked.name not in _EMBEDDED:
        raise InvalidRequest(
            "knobs",
            asked.name,
            f"there is no such knob; the engine has {', '.join(_EMBEDDED)}, a device {', '.join(DEVICE_KNOBS)}",
        )
    needs_launch, default, _ = _EMBEDDED[asked.name]
    if asked.name == "precision":
        _require_precisions(asked, device)
    return Knob(name=asked.name, values=asked.values, needs_launch=needs_launch, default=default)


def _device_knob(request: TuneRequest, asked: KnobRange, device: Device, settables: Sequence[Settable]) -> Knob:
    """Return a knob of clocks or power, its values snapped down to those that the device takes."""
    field, given = f"knobs.{asked.name}", list(asked.values)
    if not request.allow_device_control:
        raise InvalidRequest(
            field, given, f"{device.info.name} is only observed unless the job says `allow_device_control: true`"
        )
    settable = next((one for one in settables if one.name == asked.name), None)
    if settable is None:
        raise InvalidRequest(
            field, given, f"{device.info.name} has no such knob; remove it (wattfront doctor says why)"
        )
    if asked.name == CPU_CLOCK_CAP and _is_blind(device):
        raise InvalidRequest(
            field, given, "this CPU's energy is an estimate from CPU time, which cannot see a clock; remove the knob"
        )
    try:
        values = tuple(dict.fromkeys(settable.snapped(_number(field, value)) for value in asked.values))
    except InvalidSetting as error:
        raise InvalidRequest(field, given, str(error)) from error
    return Knob(name=asked.name, values=values, needs_launch=False, default=settable.highest)


def _number(field: str, value: KnobValue) -> float:
    if isinstance(value, str):
        raise InvalidRequest(field, value, "give numbers")
    return value


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
