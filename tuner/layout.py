"""How a model is laid over a simulated device's GPUs: the layout a job gets by default, and what no point could use.

What a layout costs is the engine's to say; layouts that only some points get wrong fail there, as trials.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from engine.errors import InvalidSettings
from engine.settings import EngineSettings
from engine.simulated.layout import WorkModel
from engine.simulated.machine import Limits
from engine.simulated.shapes import ModelShape
from probes.device import Device
from probes.simulated.device import SimulatedDevice
from tuner.errors import InvalidRequest
from tuner.knobs import LAYOUT_KNOBS
from tuner.request import KnobValue

#: Weights may take this share of the memory by default, so that keys and values have room beside them.
WEIGHTS_SHARE = 0.75
#: Combinations that are tried out before a job is stored; with more of them, trials find out.
MAX_CHECKED = 2_000
#: Knobs whose values can be impossible for a model on a device, alone or together.
_CHECKED = (*LAYOUT_KNOBS, "precision", "kv_precision")


def limits_of(device: Device) -> Limits | None:
    """Return what a simulated device has of what an engine needs; None of a real one."""
    return device.limits if isinstance(device, SimulatedDevice) else None


def default_tensor_parallel(shape: ModelShape, precision: str, limits: Limits) -> int:
    """Return the smallest power of two of GPUs that holds the weights in WEIGHTS_SHARE of their memory.

    Where none does, the largest that the model can be cut into.
    """
    usable = 1
    for num_gpus in (2**power for power in range(limits.num_gpus.bit_length())):
        settings = EngineSettings(model=shape.name, precision=precision, tensor_parallel=num_gpus)
        try:
            work = WorkModel(shape, settings, limits)
        except InvalidSettings:
            continue
        usable = num_gpus
        if work.weight_bytes_resident <= WEIGHTS_SHARE * limits.memory_bytes:
            break
    return usable


def filled_data_parallel(num_gpus: int, *, tensor_parallel: int, pipeline_parallel: int, prefill_gpus: int) -> int:
    """Return how many replicas the GPUs have room for beside those for prompts, at least one."""
    return max(1, (num_gpus - prefill_gpus) // max(1, tensor_parallel * pipeline_parallel))


def require_room(settings: EngineSettings, limits: Limits) -> None:
    """Raise InvalidSettings where a layout takes more GPUs than there are."""
    if settings.num_gpus > limits.num_gpus:
        raise InvalidSettings(
            f"the layout takes {settings.num_gpus} GPUs (tensor_parallel {settings.tensor_parallel} x "
            f"pipeline_parallel {settings.pipeline_parallel} x data_parallel {settings.data_parallel} + prefill_gpus "
            f"{settings.prefill_gpus}), the device has {limits.num_gpus}; choose smaller ones"
        )


def refuse_unusable(
    values: Mapping[str, Sequence[KnobValue]],
    settings_of: Callable[[Mapping[str, KnobValue]], EngineSettings],
    shape: ModelShape,
    limits: Limits,
) -> None:
    """Refuse a value that works in no combination with the others, as fp8 on a device without it.

    Raises InvalidRequest naming knob and value, with what was wrong with the last combination.
    """
    names = [name for name in _CHECKED if name in values]
    if math.prod(len(values[name]) for name in names) > MAX_CHECKED:
        return
    wrong: dict[tuple[str, KnobValue], str] = {}
    usable: set[tuple[str, KnobValue]] = set()
    for chosen in itertools.product(*(values[name] for name in names)):
        pairs = list(zip(names, chosen, strict=True))
        try:
            settings = settings_of(dict(pairs))
            require_room(settings, limits)
            WorkModel(shape, settings, limits)
        except InvalidSettings as error:
            wrong |= dict.fromkeys(pairs, str(error))
        else:
            usable |= set(pairs)
    for (name, value), words in wrong.items():
        if (name, value) not in usable:
            raise InvalidRequest(f"knobs.{name}", value, words)
