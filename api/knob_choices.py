"""What a job may ask of an engine on a device: knobs with values to try, and the reason beside what cannot be had.

A simulated device is opened and asked; of a real one it is known what the operator allows and what was seen when a job
ran on it, and its worker tells the rest. Nothing that a request says becomes a path. Knows nothing of HTTP.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache

from api.knob_schemas import KnobChoiceOut, KnobChoicesOut, KnobValueOut
from api.operator_file import Operator
from api.stores import Stores
from api.submit import require_names
from probes.device import Capability
from probes.settings import DEVICE_KNOBS, Settable
from probes.simulated.device import SimulatedDevice
from probes.simulated.names import is_simulated_name, parse_name
from tuner.errors import InvalidRequest
from tuner.knobs import EMBEDDED, LAYOUT_KNOBS, SIMULATED, KnobRule, launch_s, rules_of, usual_engine
from tuner.request import SCENARIOS, KnobRange, KnobValue, TuneRequest
from tuner.simulation import open_simulation
from tuner.space import Knob, search_space

_UNITS = {"mhz": "MHz", "w": "W"}
_NO_SUCH_KNOB = "this device has no such knob"
_WORKER_TELLS = "what the device takes is known when its worker opens it"


def knob_choices(
    model: str, device: str, engine: str | None, *, operator: Operator, stores: Stores, may_control: bool
) -> KnobChoicesOut:
    """Return what a job may ask for. Raises InvalidRequest, UnknownDevice or CheckpointError naming what to correct."""
    request = TuneRequest(
        model=model,
        device=device,
        engine=usual_engine(device) if engine is None else engine,
        allow_device_control=may_control and not is_simulated_name(device),
    )
    require_names(request, operator)
    rules_of(request.engine)
    is_simulated = is_simulated_name(device)
    return KnobChoicesOut(
        model=model,
        engine=request.engine,
        device=device,
        is_simulated=is_simulated,
        launch_s=launch_s(request.engine),
        knobs=list(
            _of_simulated(request, model in operator.models) if is_simulated else _of_real(request, operator, stores)
        ),
        scenarios=list(SCENARIOS) if is_simulated else ["closed"],
        quality_reason="nothing is computed, so there are no answers to judge" if is_simulated else None,
        control_reason=_control_reason(device, operator),
    )


def _control_reason(device: str, operator: Operator) -> str | None:
    if is_simulated_name(device):
        return "nothing real is set on a simulated device, so it needs no permission"
    if operator.devices[device].allow_device_control:
        return None
    return f"the operator lets nobody set {device} over HTTP"


@lru_cache(maxsize=128)
def _of_simulated(request: TuneRequest, is_operators_model: bool) -> tuple[KnobChoiceOut, ...]:
    """Return the knobs of a simulated device and its engine; those of a model without a shape here, workers judge."""
    if is_operators_model:
        return tuple(_unjudged(name, rule) for name, rule in rules_of(request.engine).items())
    device = open_simulation(request).device
    usual = {knob.name: knob for knob in search_space(request, device).knobs}
    of_engine = tuple(
        _judged(name, rule, request, device, usual.get(name)) for name, rule in rules_of(request.engine).items()
    )
    settables = {one.name: one for one in device.settables()}
    return of_engine + tuple(_of_device(name, settables.get(name), usual.get(name)) for name in DEVICE_KNOBS)


def _judged(
    name: str, rule: KnobRule, request: TuneRequest, device: SimulatedDevice, usual: Knob | None
) -> KnobChoiceOut:
    """Return a knob of the engine with a verdict on each of its words, or of the counts worth trying."""
    candidates: Sequence[KnobValue] = rule.words or _counts(name, parse_name(request.device).num_gpus)
    choices = [_choice(name, value, request, device) for value in candidates]
    possible = [one.value for one in choices if one.is_possible]
    reasons = [one.reason for one in choices if one.reason]
    is_on_one_gpu = name in LAYOUT_KNOBS and parse_name(request.device).num_gpus == 1
    reason = "the device is one GPU" if is_on_one_gpu else reasons[0] if reasons else "there is one value only"
    is_settable = not choices or len(possible) > 1
    default = rule.default if usual is None else usual.default
    return KnobChoiceOut(
        name=name,
        unit="",
        is_settable=is_settable,
        reason=None if is_settable else reason,
        needs_launch=rule.needs_launch,
        default=default,
        is_usual=bool(rule.tried) and usual is not None,
        tried=[default] if usual is None else list(usual.values),
        choices=choices,
        lowest=None,
        highest=None,
    )


def _counts(name: str, num_gpus: int) -> list[KnobValue]:
    """Return numbers of GPUs worth trying for a knob of the layout; none of other knobs."""
    if name not in LAYOUT_KNOBS:
        return []
    powers: list[KnobValue] = [2**power for power in range(num_gpus.bit_length())]
    return [0, *powers] if name == "prefill_gpus" else powers


def _choice(name: str, value: KnobValue, request: TuneRequest, device: SimulatedDevice) -> KnobValueOut:
    try:
        search_space(dataclasses.replace(request, knobs=(KnobRange(name=name, values=(value,)),)), device)
    except InvalidRequest as error:
        return KnobValueOut(value=value, is_possible=False, reason=error.remedy)
    return KnobValueOut(value=value, is_possible=True, reason=None)


def _of_device(name: str, settable: Settable | None, usual: Knob | None) -> KnobChoiceOut:
    return KnobChoiceOut(
        name=name,
        unit=_UNITS[name.rpartition("_")[2]],
        is_settable=settable is not None,
        reason=_NO_SUCH_KNOB if settable is None else None,
        needs_launch=False,
        default=None if settable is None else settable.highest,
        is_usual=usual is not None,
        tried=list(usual.values) if usual is not None else [] if settable is None else [settable.highest],
        choices=[],
        lowest=None if settable is None else settable.lowest,
        highest=None if settable is None else settable.highest,
    )


def _unjudged(name: str, rule: KnobRule) -> KnobChoiceOut:
    """Return a knob of the engine as far as it is known without the device."""
    return KnobChoiceOut(
        name=name,
        unit="",
        is_settable=True,
        reason=None,
        needs_launch=rule.needs_launch,
        default=rule.default,
        is_usual=bool(rule.tried),
        tried=list(rule.tried or (rule.default,)),
        choices=[KnobValueOut(value=word, is_possible=True, reason=None) for word in rule.words],
        lowest=None,
        highest=None,
    )


def _of_real(request: TuneRequest, operator: Operator, stores: Stores) -> list[KnobChoiceOut]:
    """Return the knobs of a device that the operator named: what its worker does not know yet is not promised."""
    if request.engine == SIMULATED:
        remedy = f"{request.device} is real; choose a simulated device, or engine {EMBEDDED!r}"
        raise InvalidRequest("engine", request.engine, remedy)
    entry = operator.devices[request.device]
    seen = next((one for one in stores.devices.list() if one.info.uuid == entry.device), None)
    capabilities = {} if seen is None else {one.name: one for one in seen.capabilities}
    barred = _control_reason(request.device, operator)
    if barred is None and not request.allow_device_control:
        barred = "the job has to ask for it: let it set clocks and power limits"
    return [
        *(_unjudged(name, rule) for name, rule in rules_of(request.engine).items()),
        *(_seen(name, capabilities.get(name), barred) for name in DEVICE_KNOBS),
    ]


def _seen(name: str, capability: Capability | None, barred: str | None) -> KnobChoiceOut:
    can_be_had = capability is None or capability.is_available
    reason = _WORKER_TELLS if capability is None else capability.reason
    return KnobChoiceOut(
        name=name,
        unit=_UNITS[name.rpartition("_")[2]],
        is_settable=barred is None and can_be_had,
        reason=barred if barred is not None and can_be_had else reason,
        needs_launch=False,
        default=None,
        is_usual=False,
        tried=[],
        choices=[],
        lowest=None,
        highest=None,
    )
