"""The knobs a job searches: what was asked for, checked against what engine and device allow.

A knob that cannot be set is refused before the job is stored, with the reason; nothing is dropped in silence. The
values of clock and power caps are those that the device takes, so that a point names what was set. Knows nothing of
how points are chosen.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.embedded.precision import require_native
from engine.errors import InvalidSettings, NotNative
from engine.settings import AS_STORED, EngineSettings
from engine.simulated.machine import Limits
from engine.simulated.shapes import load_shape
from probes.device import Device, DeviceKind, Method
from probes.errors import InvalidSetting
from probes.settings import CPU_CLOCK_CAP, DEVICE_KNOBS, POWER_CAP, DeviceSettings, Settable
from tuner.errors import InvalidRequest
from tuner.knobs import EMBEDDED, SERVERS, SHARE_KNOBS, SIMULATED, SWITCH_KNOBS, rules_of
from tuner.layout import default_tensor_parallel, filled_data_parallel, limits_of, refuse_unusable
from tuner.point import OperatingPoint
from tuner.request import MAX_TOKENS, KnobRange, KnobValue, TuneRequest
from tuner.workload import max_context

#: Values of a clock cap that are tried when a job names none, and the share of the highest clock they begin at: below
#: half of it the clock costs more time than it saves power (arXiv 2605.11999 finds the knee between 50 and 80 %).
NUM_CLOCK_CAPS = 6
LOWEST_CLOCK_SHARE = 0.5
#: What the embedded engine serves in on a GPU unless a job says otherwise: its fp32 units are few.
GPU_PRECISION = "bf16"
#: Precisions in which some models are published: those are served so unless a job says otherwise.
PUBLISHED = ("fp8", "nvfp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One axis of the search."""

    name: str
    values: tuple[KnobValue, ...]
    #: Whether another value needs another launch of the engine.
    needs_launch: bool
    #: What an untuned deployment uses: the reference that gains are told against.
    default: KnobValue


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
    Raises InvalidRequest for an unknown engine or knob, an engine, a load or a quality gate that the device has no use
    for, a value that no point could use, or a knob the device lacks; UnknownModel or CheckpointError for a shape that
    there is not.
    """
    rules_of(request.engine)
    _require_engine(request, device)
    limits = limits_of(device)
    settables = device.settables() if settables is None else settables
    asked = request.knobs or _all_knobs(request, device, settables)
    knobs = tuple(_knob(request, knob_range, device, settables) for knob_range in asked)
    if request.engine == EMBEDDED and device.info.kind is DeviceKind.GPU:
        knobs = _with_default(knobs, "precision", GPU_PRECISION)
    for knob in knobs:  # the engine judges each knob by itself, so that every combination need not be tried
        for value in knob.values:
            settings_of(request, OperatingPoint.of({knob.name: value}))
    return SearchSpace(knobs=knobs if limits is None else _laid_out(request, knobs, limits))


def settings_of(request: TuneRequest, point: OperatingPoint, *, num_gpus: int = 1) -> EngineSettings:
    """Return the engine settings of a point; knobs the job does not search keep their defaults.

    Replicas that nobody named fill the device's `num_gpus`. Raises InvalidRequest naming the knob when the engine
    refuses a value.
    """
    try:
        return _settings_of(request, point, num_gpus)
    except InvalidSettings as error:
        raise InvalidRequest("knobs", str(point), str(error)) from error


def capacity_of(settings: EngineSettings) -> int:
    """Return how many requests run at once, over all replicas."""
    return settings.max_batch * settings.data_parallel


def device_settings_of(point: OperatingPoint) -> DeviceSettings:
    """Return the device settings of a point; knobs the job does not search are left as they are found."""
    return DeviceSettings(**{name: int(value) for name, value in point.as_dict().items() if name in DEVICE_KNOBS})


def _require_engine(request: TuneRequest, device: Device) -> None:
    """Refuse an engine that the device has no use for, and a load that the engine has none for."""
    is_simulated = device.info.kind is DeviceKind.SIMULATED
    if is_simulated and request.engine != SIMULATED:
        remedy = f"{device.info.name} computes nothing; leave the engine out, or choose {SIMULATED!r}"
        raise InvalidRequest("engine", request.engine, remedy)
    if request.engine == SIMULATED and not is_simulated:
        remedy = f"{device.info.name} is real; choose device 'simulated:h100-sxm' or its like, or another engine"
        raise InvalidRequest("engine", request.engine, remedy)
    if request.server and request.engine not in SERVERS:
        remedy = f"the {request.engine} engine is no server; leave it out, or choose an engine of {', '.join(SERVERS)}"
        raise InvalidRequest("server", request.server, remedy)
    if is_simulated:
        _refuse_gate(request, device)


def _refuse_gate(request: TuneRequest, device: Device) -> None:
    """Refuse limits on the answers of an engine that gives none: they would be accepted and never applied."""
    for field in dataclasses.fields(request.quality):
        value = getattr(request.quality, field.name)
        if value != field.default:
            remedy = f"{device.info.name} computes no answers that could be judged; remove it, or tune a real device"
            raise InvalidRequest(f"quality.{field.name}", value, remedy)


def _settings_of(request: TuneRequest, point: OperatingPoint, num_gpus: int) -> EngineSettings:
    rules = rules_of(request.engine)
    chosen = {name: rule.default for name, rule in rules.items()}
    chosen |= {name: value for name, value in point.as_dict().items() if name in rules}
    words: dict[str, Any] = {name: str(chosen.pop(name)) for name, rule in rules.items() if rule.words}
    if "precision" not in rules:
        words["precision"] = AS_STORED
    switches = {name: words.pop(name) == "on" for name in SWITCH_KNOBS if name in words}
    shares: dict[str, Any] = {
        name: _number(f"knobs.{name}", chosen.pop(name)) for name in SHARE_KNOBS if name in chosen
    }
    counts: dict[str, Any] = {name: _whole(name, value) for name, value in chosen.items()}
    if request.engine == SIMULATED and "data_parallel" not in point.as_dict():
        sizes = {name: counts[name] for name in ("tensor_parallel", "pipeline_parallel", "prefill_gpus")}
        counts["data_parallel"] = filled_data_parallel(num_gpus, **sizes)
    return EngineSettings(
        model=request.model,
        max_context=max_context(request.workload),
        **switches,
        **words,
        **shares,
        **counts,
    )


def _all_knobs(request: TuneRequest, device: Device, settables: Sequence[Settable]) -> tuple[KnobRange, ...]:
    """Return what is tried when a job names no knob: every default value that the device can run.

    A power cap is not among them: decoding draws so much less than the board may that caps rarely bind, and a clock
    cap reaches the same points (arXiv 2605.11999).
    """
    of_engine = tuple(
        KnobRange(name=name, values=tuple(value for value in rule.tried if _can_run(request, value, device)))
        for name, rule in rules_of(request.engine).items()
        if rule.tried
    )
    if not _may_set(request, device):
        return of_engine
    caps = [settable for settable in settables if settable.name != POWER_CAP and not _is_blind(device)]
    return (*of_engine, *(KnobRange(name=cap.name, values=_spread(cap)) for cap in caps))


def _laid_out(request: TuneRequest, knobs: tuple[Knob, ...], limits: Limits) -> tuple[Knob, ...]:
    """Return the knobs with the model's own precision and a layout of several GPUs among them: every point names them.

    Raises InvalidRequest for a value that works with no other, as a precision that the device lacks.
    """
    shape = load_shape(request.model)
    if shape.native_precision in PUBLISHED and shape.native_precision in limits.arithmetics:
        knobs = _with_default(knobs, "precision", shape.native_precision)
    if limits.num_gpus > 1:
        knobs = _with_default_layout(request, knobs, limits)
    refuse_unusable(
        {knob.name: knob.values for knob in knobs},
        lambda chosen: _settings_of(request, OperatingPoint.of(chosen), limits.num_gpus),
        shape,
        limits,
    )
    return knobs


def _with_default_layout(request: TuneRequest, knobs: tuple[Knob, ...], limits: Limits) -> tuple[Knob, ...]:
    """Add the layout knobs that nobody named, with the one value that they have, and set the defaults of the others."""
    of_default = _settings_of(request, SearchSpace(knobs=knobs).default_point, limits.num_gpus)
    smallest = default_tensor_parallel(load_shape(request.model), of_default.precision, limits)
    knobs = _with_default(knobs, "tensor_parallel", smallest)
    sizes = [knob for knob in knobs if knob.name in ("tensor_parallel", "pipeline_parallel", "prefill_gpus")]
    if all(len(knob.values) == 1 for knob in sizes) or any(knob.name == "data_parallel" for knob in knobs):
        others = tuple(knob for knob in knobs if knob.name != "data_parallel")
        of_default = _settings_of(request, SearchSpace(knobs=others).default_point, limits.num_gpus)
        knobs = _with_default(knobs, "data_parallel", of_default.data_parallel)
    return knobs


def _with_default(knobs: tuple[Knob, ...], name: str, default: KnobValue) -> tuple[Knob, ...]:
    if any(knob.name == name for knob in knobs):
        return tuple(dataclasses.replace(knob, default=default) if knob.name == name else knob for knob in knobs)
    return (*knobs, Knob(name=name, values=(default,), needs_launch=True, default=default))


def _spread(settable: Settable) -> tuple[int, ...]:
    """Return clock caps spread evenly from LOWEST_CLOCK_SHARE of the highest to the highest itself."""
    lowest = max(settable.lowest, LOWEST_CLOCK_SHARE * settable.highest)
    step = (settable.highest - lowest) / (NUM_CLOCK_CAPS - 1)
    return tuple(sorted({settable.snapped(lowest + step * i) for i in range(NUM_CLOCK_CAPS)}))


def _is_blind(device: Device) -> bool:
    """Return whether the device's energy figure cannot see a clock."""
    return device.power_source is not None and device.power_source.method is Method.ESTIMATE


def _may_set(request: TuneRequest, device: Device) -> bool:
    """Return whether the job may set clocks and limits; of a simulated device nothing real is set."""
    return request.allow_device_control or device.info.kind is DeviceKind.SIMULATED


def _can_run(request: TuneRequest, value: KnobValue, device: Device) -> bool:
    """Return whether a precision is worth a try by default; what a server lacks only the server itself knows."""
    limits = limits_of(device)
    if limits is not None:
        return not isinstance(value, str) or value in limits.arithmetics
    # On a GPU int8 weights are unpacked before every product: more traffic than 16-bit weights, not less.
    return not (request.engine == EMBEDDED and value == "int8" and device.info.kind is DeviceKind.GPU)


def _require_native(request: TuneRequest, value: KnobValue, device: Device) -> None:
    """Refuse a precision that a CPU lacks; what a GPU lacks the engine on it says, of each trial."""
    if request.engine == EMBEDDED and device.info.kind is DeviceKind.CPU:
        try:
            require_native(str(value), capability=None)
        except NotNative as error:
            raise InvalidRequest("knobs.precision", value, f"{error}; remove it") from error


def _knob(request: TuneRequest, asked: KnobRange, device: Device, settables: Sequence[Settable]) -> Knob:
    if asked.name in DEVICE_KNOBS:
        return _device_knob(request, asked, device, settables)
    rules = rules_of(request.engine)
    if asked.name not in rules:
        raise InvalidRequest(
            "knobs",
            asked.name,
            f"there is no such knob; the engine has {', '.join(rules)}, a device {', '.join(DEVICE_KNOBS)}",
        )
    rule = rules[asked.name]
    for value in asked.values if rule.words else ():
        if value not in rule.words:
            raise InvalidRequest(f"knobs.{asked.name}", value, f"choose from {', '.join(rule.words)}")
        if asked.name == "precision":
            _require_native(request, value, device)
    return Knob(name=asked.name, values=asked.values, needs_launch=rule.needs_launch, default=rule.default)


def _device_knob(request: TuneRequest, asked: KnobRange, device: Device, settables: Sequence[Settable]) -> Knob:
    """Return a knob of clocks or power, its values snapped down to those that the device takes."""
    field, given = f"knobs.{asked.name}", list(asked.values)
    if not _may_set(request, device):
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
