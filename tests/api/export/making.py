"""Recipes of every point that an engine's settings allow, and the words of an exported command."""

from __future__ import annotations

import shlex
from typing import Any

from hypothesis import strategies as st

from api.export.recipe import Recipe, recipe_of
from db.result import Result, results_of
from engine.settings import KV_PRECISIONS, POLICIES
from tests.db.factories import START, make_measurement, make_reading, make_trial
from tuner.pareto import front_of
from tuner.point import OperatingPoint
from tuner.request import KnobValue, TuneRequest

SIMULATED_PRECISIONS = ("bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp4")
GPU = "GPU-8f6bc1d2-0000-4000-8000-000000000001"


def make_result(knobs: dict[str, KnobValue], *, engine: str = "simulated", **changes: Any) -> Result:
    """Return what a job with one trial at these knobs found."""
    request = make_request(engine=engine)
    figures = make_measurement(reading=make_reading(device_uuids=(GPU,)), **changes)
    trial = make_trial(number=3, point=OperatingPoint.of(knobs), measurement=figures)
    front = front_of([trial], request.latency_metric, created_at=START)
    (result,) = results_of("f8c3794cd26446e09f0a3fc8734edf6a", request, [trial], front)
    return result


def make_request(*, engine: str = "simulated", model: str = "llama-3.1-8b") -> TuneRequest:
    return TuneRequest(model=model, engine=engine, device="simulated:h100-sxm:8")


def make_recipe(*, engine: str = "simulated", model: str = "llama-3.1-8b", **knobs: KnobValue) -> Recipe:
    chosen: dict[str, KnobValue] = {"max_batch": 64, "prefill_chunk": 2048, "precision": "bf16", **knobs}
    return recipe_of(make_request(engine=engine, model=model), make_result(chosen, engine=engine))


#: Points of the simulated engine, which has every knob that an engine of ours has, and of its device.
recipes = st.builds(
    make_recipe,
    max_batch=st.integers(1, 4096),
    prefill_chunk=st.integers(1, 100_000),
    precision=st.sampled_from(SIMULATED_PRECISIONS),
    kv_precision=st.sampled_from(KV_PRECISIONS),
    policy=st.sampled_from(POLICIES),
    max_prefill_fraction=st.sampled_from((0.25, 0.5, 1.0)),
    tensor_parallel=st.sampled_from((1, 2, 4, 8)),
    pipeline_parallel=st.integers(1, 4),
    data_parallel=st.integers(1, 8),
    expert_parallel=st.sampled_from(("off", "on")),
    prefill_gpus=st.sampled_from((0, 32)),
    sm_clock_cap_mhz=st.integers(200, 3000),
    power_cap_w=st.integers(100, 1500),
)


def command_of(script: bytes, *, begins: str) -> list[str]:
    """Return the words of the command that a script runs, as a shell would split them."""
    text = script.decode()
    start = text.index(f"\n{begins}") + 1
    return shlex.split(text[start:].replace("\\\n", " "))


def comments_of(export: bytes) -> str:
    """Return the comment lines of an export."""
    return "\n".join(line for line in export.decode().splitlines() if line.startswith("#"))
