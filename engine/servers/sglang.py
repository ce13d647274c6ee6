"""SGLang: flags of 0.5.23, endpoints, names of its metrics.

With experts spread over replicas SGLang calls the replicas attention groups inside one tensor-parallel group:
`--tp-size` is then the GPUs of all replicas, and `--max-running-requests` and `--chunked-prefill-size` are divided by
`--attn-dp-size` by the server itself. Without `--enable-mixed-chunk` prompts are computed alone while decodes wait.
"""

from __future__ import annotations

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
from engine.servers.metrics import MetricNames, Sample
from engine.servers.paths import Paths, Tokenize
from engine.servers.profile import HOST, Command, Place, ServerProfile, Start, filled, gpus_of
from engine.serving import TokenScores
from engine.settings import POLICIES, EngineSettings

KV_DTYPES = {"bf16": "bf16", "fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


class Sglang:
    """`python3 -m sglang.launch_server`."""

    kind = "sglang"
    knobs: ClassVar[KnobTable] = {
        "max_batch": (256, BATCHES, ()),
        "precision": ("bf16", ("bf16", "fp8"), (*DTYPES, "fp8", *CHECKPOINTS)),
        "prefill_chunk": (8192, CHUNKS, ()),
        "kv_precision": ("auto", (), ("auto", *KV_DTYPES)),
        "policy": ("prefill_first", (), POLICIES),
        **LAYOUT_KNOBS,
    }
    #: Prompt tokens are those asked for; of them `cached_tokens` were there.
    metrics = MetricNames(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_use=("sglang:token_usage",),
        preemptions=("sglang:num_retracted_requests_total",),
        prefix_hits=("sglang:cached_tokens_total",),
        prefix_queries=("sglang:prompt_tokens_total",),
        prompt_tokens=("sglang:prompt_tokens_total",),
        generated_tokens=("sglang:generation_tokens_total",),
    )

    def paths(self, profile: ServerProfile) -> Paths:
        """Return where it answers what."""
        return Paths(
            version=("/server_info", "version"),
            reset="/flush_cache",
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
        """Return what a launch runs. Raises InvalidSettings for a setting that SGLang would not serve at."""
        refuse(self.kind, gaps_of(settings))
        gpus = gpus_of(settings.device)
        program = profile.command or ("python3", "-m", "sglang.launch_server")
        words = filled(program, place=place, model=model, gpus=gpus)
        flags = [("--model-path", model), *flags_of(settings), *_place_flags(settings, profile, place)]
        extra = filled(profile.extra_args, place=place, model=model, gpus=gpus)
        env = (("CUDA_VISIBLE_DEVICES", gpus), *profile.env)
        return Start(commands=(Command(words=(*words, *words_of(flags), *extra), env=env),))

    def num_kv_blocks(self, samples: Sequence[Sample]) -> int | None:
        """Return how many pages its cache has; None where it does not say."""
        return next((int(one.value) for one in samples if one.name == "sglang:num_pages"), None)

    def score_request(self, token_ids: tuple[int, ...], model: str) -> tuple[str, dict[str, Any]] | None:
        """Return path and body that ask how likely a given text is."""
        body = {
            "input_ids": list(token_ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 1,
        }
        return "/generate", body

    def scores_of(self, answer: Mapping[str, Any], num_tokens: int) -> TokenScores:
        """Return the scores out of its answer, of every token but the first; KeyError and the like where it has none.

        Each place has (logprob, token id, text); of the first token, which nothing comes before, there is none.
        """
        told = answer["meta_info"]
        tops = told["input_top_logprobs"][1:num_tokens]
        return TokenScores(
            top_token_ids=tuple(int(found[0][1]) for found in tops),
            logprobs=tuple(float(found[0]) for found in told["input_token_logprobs"][1:num_tokens]),
        )


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


def gaps_of(settings: EngineSettings) -> list[Gap]:
    """Return what of a point no flag of SGLang says."""
    gaps = own_gaps(settings)
    if settings.precision in CHECKPOINTS:
        words = (
            f"name a checkpoint in {CHECKPOINTS[settings.precision]} in place of the model; SGLang takes the format "
            "from it"
        )
        gaps.append(Gap(knob="precision", value=settings.precision, words=words, is_said_elsewhere=True))
    if settings.kv_precision == "int8":
        gaps.append(Gap(knob="kv_precision", value="int8", words="SGLang has no such cache; left at auto"))
    if settings.prefill_gpus:
        gaps.append(Gap(knob="prefill_gpus", value=settings.prefill_gpus, words="one server computes both"))
    return gaps


def _place_flags(settings: EngineSettings, profile: ServerProfile, place: Place) -> list[Flag]:
    flags: list[Flag] = [("--host", HOST), ("--port", place.port), ("--enable-metrics",)]
    if settings.device == "cpu":
        flags.append(("--device", "cpu"))
    if profile.served_model is not None:
        flags.append(("--served-model-name", profile.served_model))
    if settings.max_context is not None:
        flags.append(("--context-length", settings.max_context))
    return flags
