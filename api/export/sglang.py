"""A point as SGLang's server: flags of SGLang 0.5.23.

With experts spread over replicas SGLang calls the replicas attention groups inside one tensor-parallel group:
`--tp-size` is then the GPUs of all replicas, and `--max-running-requests` and `--chunked-prefill-size` are divided by
`--attn-dp-size` by the server itself. Without `--enable-mixed-chunk` prompts are computed alone while decodes wait.
"""

from __future__ import annotations

from api.export.command import Flag, command, script
from api.export.recipe import Recipe, power_remarks, unsaid
from api.export.vllm import CHECKPOINTS, DTYPES
from engine.settings import EngineSettings

NAME = "sglang"
KV_DTYPES = {"bf16": "bf16", "fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def render(recipe: Recipe) -> bytes:
    """Return a script that starts SGLang at the point."""
    settings = recipe.settings
    body = command(["python3", "-m", "sglang.launch_server"], [("--model-path", recipe.model), *flags_of(settings)])
    notes = [*unsaid(gaps_of(settings)), *power_remarks(recipe)]
    return script(recipe.remarks(runs=NAME), body, notes=notes).encode()


def flags_of(settings: EngineSettings) -> list[Flag]:
    """Return a point's flags."""
    replicas = settings.data_parallel
    shared = replicas if settings.expert_parallel else 1
    flags: list[Flag] = [
        ("--max-running-requests", settings.max_batch * shared),
        ("--chunked-prefill-size", settings.prefill_chunk * shared),
    ]
    if settings.policy == "decode_first":
        flags.append(("--enable-mixed-chunk",))
    if settings.precision in DTYPES:
        flags.append(("--dtype", DTYPES[settings.precision]))
    if settings.precision == "fp8":
        flags.append(("--quantization", "fp8"))
    if settings.kv_precision in KV_DTYPES:
        flags.append(("--kv-cache-dtype", KV_DTYPES[settings.kv_precision]))
    flags.append(("--tp-size", settings.tensor_parallel * shared))
    flags.append(("--pp-size", settings.pipeline_parallel))
    if settings.expert_parallel:
        flags += [("--attn-dp-size", replicas), ("--ep-size", settings.tensor_parallel * shared)]
    else:
        flags.append(("--dp-size", replicas))
    return flags


def gaps_of(settings: EngineSettings) -> list[str]:
    """Return what of a point no flag of SGLang says."""
    gaps = []
    if settings.precision in CHECKPOINTS:
        gaps.append(
            f"precision {settings.precision}: name a checkpoint in {CHECKPOINTS[settings.precision]} in place of the "
            "model; SGLang takes the format from it"
        )
    if settings.kv_precision == "int8":
        gaps.append("kv_precision int8: SGLang has no such cache; left at auto")
    if settings.prefill_gpus:
        gaps.append(
            f"prefill_gpus {settings.prefill_gpus}: one server computes both; the form `dynamo` has a pool for prompts"
        )
    return gaps
