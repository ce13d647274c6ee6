"""A point as `trtllm-serve` with its YAML file: options of TensorRT-LLM 1.2.

`max_num_tokens` counts every token of a step, as vLLM's budget does, so it is the sum of prefill_chunk and max_batch.
Weights are in what the checkpoint is stored in. Options of the YAML win over flags; each setting stands in one of both.
"""

from __future__ import annotations

from typing import Any

from api.export.command import Flag, command, script
from api.export.recipe import Recipe, power_remarks, unsaid
from api.export.vllm import CHECKPOINTS, DTYPES
from engine.settings import EngineSettings

NAME = "trtllm"
FILE_NAME = "wattfront-trtllm.yaml"
KV_DTYPES = {"fp8": "fp8", "nvfp4": "nvfp4"}


def render(recipe: Recipe) -> bytes:
    """Return a script that writes the YAML file and starts TensorRT-LLM at the point."""
    import yaml  # when it is needed: a service starts sooner

    settings = recipe.settings
    options = yaml.safe_dump(options_of(settings), sort_keys=False)
    file = f"cat > {FILE_NAME} <<'END_OF_YAML'\n{options}END_OF_YAML\n"
    start = command(["trtllm-serve", recipe.model], flags_of(settings))
    notes = [*unsaid(gaps_of(settings)), *power_remarks(recipe)]
    return script(recipe.remarks(runs=NAME), file + start, notes=notes).encode()


def flags_of(settings: EngineSettings) -> list[Flag]:
    """Return what of a point the command says."""
    shared = settings.data_parallel if settings.expert_parallel else 1
    flags: list[Flag] = [
        ("--max_batch_size", settings.max_batch),
        ("--max_num_tokens", settings.prefill_chunk + settings.max_batch),
        ("--tp_size", settings.tensor_parallel * shared),
        ("--pp_size", settings.pipeline_parallel),
    ]
    if settings.expert_parallel:
        flags.append(("--ep_size", settings.tensor_parallel * shared))
    return [*flags, ("--config", FILE_NAME)]


def options_of(settings: EngineSettings) -> dict[str, Any]:
    """Return what of a point the YAML file says."""
    options: dict[str, Any] = {"enable_chunked_prefill": True}
    if settings.precision in DTYPES:
        options["dtype"] = DTYPES[settings.precision]
    if settings.kv_precision in KV_DTYPES:
        options["kv_cache_config"] = {"dtype": KV_DTYPES[settings.kv_precision]}
    if settings.expert_parallel and settings.data_parallel > 1:
        options["enable_attention_dp"] = True
    return options


def gaps_of(settings: EngineSettings) -> list[str]:
    """Return what of a point neither flag nor file says."""
    gaps = []
    checkpoint = {**CHECKPOINTS, "fp8": "FP8 (ModelOpt)"}.get(settings.precision)
    if checkpoint is not None:
        gaps.append(
            f"precision {settings.precision}: TensorRT-LLM takes it from the checkpoint; name one in {checkpoint}"
        )
    if settings.kv_precision in ("bf16", "int8"):
        gaps.append(f"kv_precision {settings.kv_precision}: the cache is in what the model computes in")
    if settings.kv_precision == "nvfp4":
        gaps.append("kv_precision nvfp4: the checkpoint must have been quantised for it, too (ModelOpt)")
    if settings.policy == "prefill_first":
        gaps.append("policy prefill_first: prompts ride beside running decodes here")
    if settings.data_parallel > 1 and not settings.expert_parallel:
        gaps.append(f"data_parallel {settings.data_parallel}: start so many servers, each on GPUs of its own")
    if settings.prefill_gpus:
        gaps.append(
            f"prefill_gpus {settings.prefill_gpus}: one server computes both; the form `dynamo` has a pool for prompts"
        )
    return gaps
