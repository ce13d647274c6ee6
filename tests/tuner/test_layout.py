"""Layouts over simulated GPUs: the default one, and what no point could use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import InvalidSettings
from engine.settings import EngineSettings
from engine.simulated.layout import WorkModel
from engine.simulated.machine import MachineLimits
from engine.simulated.shapes import load_shape
from probes.simulated.names import open_simulated
from tests.tuner.scripted import ScriptedDevice
from tuner.layout import (
    WEIGHTS_SHARE,
    default_tensor_parallel,
    filled_data_parallel,
    limits_of,
    refuse_unusable,
    require_room,
)

#: Eight GPUs of 72 GB: Llama-3.1-70B fits two of them, but only four leave room for keys and values.
LIMITS = MachineLimits(num_gpus=8, memory_bytes=72e9, arithmetics=frozenset({"bf16", "fp16", "fp8"}), domain_size=8)


@pytest.mark.parametrize(
    ("model", "precision", "num_gpus"),
    [("llama-3.1-8b", "bf16", 1), ("llama-3.1-70b", "bf16", 4), ("llama-3.1-70b", "fp8", 2), ("qwen3-32b", "bf16", 2)],
)
def test_the_default_is_the_smallest_that_holds_the_model(model: str, precision: str, num_gpus: int) -> None:
    """The weights take at most three quarters of the memory, and would take more on half as many GPUs."""
    shape = load_shape(model)
    assert num_gpus == default_tensor_parallel(shape, precision, LIMITS)
    share = {
        tensor_parallel: WorkModel(
            shape, EngineSettings(model=model, precision=precision, tensor_parallel=tensor_parallel), LIMITS
        ).weight_bytes_resident
        / LIMITS.memory_bytes
        for tensor_parallel in {num_gpus, max(1, num_gpus // 2)}
    }
    assert share[num_gpus] <= WEIGHTS_SHARE
    assert num_gpus == 1 or share[num_gpus // 2] > WEIGHTS_SHARE


def test_a_model_that_is_too_large_takes_all_gpus() -> None:
    """Where nothing holds the weights, all GPUs are tried, and the engine says what is missing."""
    assert default_tensor_parallel(load_shape("llama-3.1-405b"), "bf16", LIMITS) == 8


@pytest.mark.parametrize(
    ("sizes", "num_replicas"), [((2, 1, 0), 4), ((2, 2, 0), 2), ((4, 1, 4), 1), ((3, 1, 0), 2), ((16, 1, 0), 1)]
)
def test_replicas_fill_the_rest(sizes: tuple[int, int, int], num_replicas: int) -> None:
    """As many replicas as fit beside the GPUs for prompts, and never none."""
    tensor, pipeline, prefill = sizes
    assert num_replicas == filled_data_parallel(
        8, tensor_parallel=tensor, pipeline_parallel=pipeline, prefill_gpus=prefill
    )


def test_a_layout_needs_its_gpus() -> None:
    """A layout of more GPUs than there are is refused with both numbers; one that just fits is taken."""
    settings = EngineSettings(model="m", tensor_parallel=4, data_parallel=2)
    require_room(settings, LIMITS)
    with pytest.raises(InvalidSettings, match=r"takes 10 GPUs .* the device has 8"):
        require_room(replace(settings, prefill_gpus=2), LIMITS)


def test_only_simulated_devices_have_limits() -> None:
    """A real device tells nothing of what an engine needs."""
    assert limits_of(ScriptedDevice()) is None
    limits = limits_of(open_simulated("simulated:h100-sxm:8"))
    assert limits is not None
    assert (limits.num_gpus, "fp8" in limits.arithmetics) == (8, True)


def test_too_many_combinations_are_left_to_the_trials() -> None:
    """A space too large to try out is not refused, whatever is in it: its trials say what does not fit."""
    values = {"tensor_parallel": tuple(range(1, 100)), "data_parallel": tuple(range(1, 100))}

    def never(_: object) -> EngineSettings:
        raise AssertionError("no combination is tried")

    refuse_unusable(values, never, load_shape("llama-3.1-8b"), LIMITS)
