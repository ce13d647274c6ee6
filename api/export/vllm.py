"""A point as `vllm serve`: flags of vLLM 0.32 and 0.33.

vLLM's `--max-num-batched-tokens` counts every token of a step. Our prefill_chunk counts prompt tokens beside one token
of each running decode, so the flag is the sum of prefill_chunk and max_batch.
"""

from __future__ import annotations

from api.export.command import Flag, command, script
from api.export.recipe import Recipe, power_remarks, unsaid
from engine.settings import EngineSettings

NAME = "vllm"
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
KV_DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "int8": "int8_per_token_head", "nvfp4": "nvfp4"}
#: What the checkpoint must be stored in, as the server takes that format from the checkpoint.
CHECKPOINTS = {
    "int8": "int8 weights and activations (compressed-tensors W8A8)",
    "int4": "int4 weights (AWQ, GPTQ or compressed-tensors W4A16)",
    "nvfp4": "NVFP4 (ModelOpt or compressed-tensors)",
    "mxfp4": "MXFP4",
}


def render(recipe: Recipe) -> bytes:
    """Return a script that starts vLLM at the point."""
    settings = recipe.settings
    body = command(["vllm", "serve", recipe.model], flags_of(settings))
    notes = [*unsaid(gaps_of(settings)), *power_remarks(recipe)]
    return script(recipe.remarks(runs=NAME), body, notes=notes).encode()


def flags_of(settings: EngineSettings, *, is_pool: bool = False) -> list[Flag]:
    """Return a point's flags; with `is_pool` of one pool of a deployment that counts replicas itself."""
    flags: list[Flag] = [
        ("--max-num-seqs", settings.max_batch),
        ("--max-num-batched-tokens", settings.prefill_chunk + settings.max_batch),
    ]
    if settings.precision in DTYPES:
        flags.append(("--dtype", DTYPES[settings.precision]))
    if settings.precision == "fp8":
        flags.append(("--quantization", "fp8"))
    if settings.kv_precision in KV_DTYPES:
        flags.append(("--kv-cache-dtype", KV_DTYPES[settings.kv_precision]))
    flags.append(("--tensor-parallel-size", settings.tensor_parallel))
    flags.append(("--pipeline-parallel-size", settings.pipeline_parallel))
    if not is_pool or settings.expert_parallel:
        flags.append(("--data-parallel-size", settings.data_parallel))
    if settings.expert_parallel:
        flags.append(("--enable-expert-parallel",))
    return flags


def gaps_of(settings: EngineSettings) -> list[str]:
    """Return what of a point no flag of vLLM says."""
    gaps = []
    if settings.precision in CHECKPOINTS:
        gaps.append(
            f"precision {settings.precision}: vLLM takes it from the checkpoint; name one in "
            f"{CHECKPOINTS[settings.precision]} in place of the model"
        )
    if settings.policy == "prefill_first":
        gaps.append("policy prefill_first: vLLM takes running decodes first")
    if settings.prefill_gpus:
        gaps.append(
            f"prefill_gpus {settings.prefill_gpus}: one server computes both; the form `dynamo` has a pool for prompts"
        )
    return gaps
