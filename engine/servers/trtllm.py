"""TensorRT-LLM: options of `trtllm-serve` 1.2 and of its YAML file, endpoints, names of its metrics.

`max_num_tokens` counts every token of a step, as vLLM's budget does, so it is the sum of prefill_chunk and max_batch.
Weights are in what the checkpoint is stored in. Options of the YAML win over flags; each setting stands in one of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from engine.errors import NotScored
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
from engine.servers.paths import Paths
from engine.servers.profile import HOST, Command, Place, ServerProfile, Start, filled, gpus_of
from engine.serving import TokenScores
from engine.settings import EngineSettings

FILE_NAME = "wattfront-trtllm.yaml"
KV_DTYPES = {"fp8": "fp8", "nvfp4": "nvfp4"}


class Trtllm:
    """`trtllm-serve` with its YAML file."""

    kind = "trtllm"
    knobs: ClassVar[KnobTable] = {
        "max_batch": (256, BATCHES, ()),
        "precision": ("bf16", (), (*DTYPES, "fp8", *CHECKPOINTS)),
        "prefill_chunk": (8192, CHUNKS, ()),
        "kv_precision": ("auto", (), ("auto", *KV_DTYPES)),
        **LAYOUT_KNOBS,
    }
    #: What runs and waits, and how often sequences were thrown out, is in no metric of it. Its hit rate is a gauge
    #: over its whole life, of which no window can be told.
    metrics = MetricNames(kv_use=("trtllm_kv_cache_utilization",))

    def paths(self, profile: ServerProfile) -> Paths:
        """Return where it answers what. `/metrics` itself has statistics of steps as JSON."""
        return Paths(metrics="/prometheus/metrics", version=("/version", "version"))

    def dialect(self, profile: ServerProfile) -> Dialect:
        """Return what it takes beside the plain fields."""
        return Dialect(
            api=profile.api,
            takes_token_ids=profile.api == "completions",
            usage_options=(("include_usage", True), ("continuous_usage_stats", True)),
        )

    def served_name(self, model: str, profile: ServerProfile) -> str:
        """Return what it calls the model: the last part of a folder's path, any other model as it is."""
        folder = Path(model)
        return profile.served_model or (folder.name if folder.is_dir() else model)

    def start(self, settings: EngineSettings, profile: ServerProfile, *, model: str, place: Place) -> Start:
        """Return what a launch runs. Raises InvalidSettings for a setting that TensorRT-LLM would not serve at."""
        import yaml  # a service that starts no server needs none

        refuse(self.kind, gaps_of(settings))
        gpus = gpus_of(settings.device)
        words = filled(profile.command or ("trtllm-serve",), place=place, model=model, gpus=gpus)
        flags = [("--host", HOST), ("--port", place.port), *flags_of(settings, file=str(place.folder / FILE_NAME))]
        if settings.max_context is not None:
            flags.append(("--max_seq_len", settings.max_context))
        extra = filled(profile.extra_args, place=place, model=model, gpus=gpus)
        env = (("CUDA_VISIBLE_DEVICES", gpus), *profile.env)
        options = {**options_of(settings), "return_perf_metrics": True}  # without it there is no /prometheus/metrics
        return Start(
            commands=(Command(words=(*words, model, *words_of(flags), *extra), env=env),),
            files=((place.folder / FILE_NAME, yaml.safe_dump(options, sort_keys=False)),),
        )

    def num_kv_blocks(self, samples: Sequence[Sample]) -> int | None:
        """Return None: it does not say how many blocks its cache has."""
        return None

    def score_request(self, token_ids: tuple[int, ...], model: str) -> tuple[str, dict[str, Any]] | None:
        """Return None: it gives no probabilities of a prompt."""
        return None

    def scores_of(self, answer: Mapping[str, Any], num_tokens: int) -> TokenScores:
        """Raise NotScored."""
        raise NotScored(f"{self.kind} gives no probabilities of a prompt")


def flags_of(settings: EngineSettings, *, file: str = FILE_NAME) -> list[Flag]:
    """Return what of a point the command says, and the file that says the rest."""
    shared = settings.data_parallel if settings.expert_parallel else 1
    flags: list[Flag] = [
        ("--max_batch_size", settings.max_batch),
        ("--max_num_tokens", settings.prefill_chunk + settings.max_batch),
        ("--tp_size", settings.tensor_parallel * shared),
        ("--pp_size", settings.pipeline_parallel),
    ]
    if settings.expert_parallel:
        flags.append(("--ep_size", settings.tensor_parallel * shared))
    return [*flags, ("--config", file)]


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


def gaps_of(settings: EngineSettings) -> list[Gap]:
    """Return what of a point neither flag nor file says."""
    gaps = own_gaps(settings)
    checkpoint = {**CHECKPOINTS, "fp8": "FP8 (ModelOpt)"}.get(settings.precision)
    if checkpoint is not None:
        words = f"TensorRT-LLM takes it from the checkpoint; name one in {checkpoint}"
        gaps.append(Gap(knob="precision", value=settings.precision, words=words, is_said_elsewhere=True))
    if settings.kv_precision in ("bf16", "int8"):
        words = "the cache is in what the model computes in"
        gaps.append(Gap(knob="kv_precision", value=settings.kv_precision, words=words))
    if settings.kv_precision == "nvfp4":
        words = "the checkpoint must have been quantised for it, too (ModelOpt)"
        gaps.append(Gap(knob="kv_precision", value="nvfp4", words=words, is_said_elsewhere=True))
    if settings.policy == "prefill_first":
        gaps.append(Gap(knob="policy", value="prefill_first", words="prompts ride beside running decodes here"))
    if settings.data_parallel > 1 and not settings.expert_parallel:
        words = "start so many servers, each on GPUs of its own"
        gaps.append(Gap(knob="data_parallel", value=settings.data_parallel, words=words))
    if settings.prefill_gpus:
        gaps.append(Gap(knob="prefill_gpus", value=settings.prefill_gpus, words="one server computes both"))
    return gaps
