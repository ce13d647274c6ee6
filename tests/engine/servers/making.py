"""Settings of every kind that an adapter is started with, and the words of what it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from engine.servers.adapter import ADAPTERS
from engine.servers.profile import Command, Place, ServerProfile
from engine.settings import KV_PRECISIONS, POLICIES, EngineSettings
from tests.api.export.known_flags import Known

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
GPUS = "GPU-8f6bc1d2,GPU-8f6bc1d3"
PLACE = Place(port=8100, folder=Path("/run/launch"), server_id="7-1.00-abc")
#: What only a launch says, of vLLM; beside the flags that exports have.
VLLM_PLACE = (
    Known(names=("--host",), kind=str),
    Known(names=("--port",), kind=int),
    Known(names=("--served-model-name",), kind=str),
    Known(names=("--max-model-len",), kind=int),
    Known(names=("--num-gpu-blocks-override",), kind=int),
)


def settings_of(*, policy: bool = True, **changes: Any) -> st.SearchStrategy[EngineSettings]:
    """Return settings of every kind but a pool for prompts; with `policy` False only those that decode first."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "model": st.just(MODEL),
        "device": st.sampled_from(("cpu", GPUS)),
        "max_batch": st.integers(1, 4096),
        "prefill_chunk": st.integers(1, 100_000),
        "precision": st.sampled_from(("bf16", "fp16", "fp32", "fp8", "int8", "int4", "nvfp4", "mxfp4")),
        "kv_precision": st.sampled_from(KV_PRECISIONS),
        "policy": st.sampled_from(POLICIES if policy else ("decode_first",)),
        "tensor_parallel": st.sampled_from((1, 2, 4)),
        "pipeline_parallel": st.integers(1, 3),
        "data_parallel": st.integers(1, 3),
        "expert_parallel": st.booleans(),
        "max_context": st.one_of(st.none(), st.integers(1, 200_000)),
    }
    return st.builds(EngineSettings, **(drawn | changes))


def commands_of(settings: EngineSettings, *, model: str = MODEL, **profile: Any) -> tuple[Command, ...]:
    """Return the processes that a launch of a kind runs."""
    made = ServerProfile(**profile)
    return ADAPTERS[made.kind].start(settings, made, model=model, place=PLACE).commands


def plain_settings(**changes: Any) -> EngineSettings:
    fields: dict[str, Any] = {"model": MODEL, "precision": "bf16", "max_batch": 8, "prefill_chunk": 100}
    return EngineSettings(**fields | changes)
