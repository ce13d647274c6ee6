"""llama.cpp: `llama-server`, or the server of llama-cpp-python where the profile's command names `llama_cpp.server`.

`llama-server` has slots, each with its share of the context, and a logical batch (`-b`) that is computed in physical
ones (`-ub`); both are set to prefill_chunk and max_batch together, so that a step is one of them. Precision is the
file's. The Python server answers one request after the other, has no metrics and does not tell token counts of streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from engine.errors import InvalidSettings, NotScored
from engine.servers.dialect import Dialect
from engine.servers.flags import Flag, Gap, KnobTable, own_gaps, refuse, words_of
from engine.servers.metrics import MetricNames, Sample
from engine.servers.paths import Paths, Tokenize
from engine.servers.profile import HOST, Command, Place, ServerProfile, Start, filled, gpus_of
from engine.serving import TokenScores
from engine.settings import EngineSettings

KV_TYPES = {"bf16": "bf16", "int8": "q8_0"}
_PYTHON_SERVER = "llama_cpp.server"
#: Without it a slot's state is copied to memory between requests, though no request asks for it.
_ENV = (("LLAMA_ARG_CACHE_RAM", "0"),)
#: More layers than any model has: all go to the GPU.
_ALL_LAYERS = 999


class LlamaCpp:
    """`llama-server` or `python -m llama_cpp.server`."""

    kind = "llamacpp"
    knobs: ClassVar[KnobTable] = {
        "max_batch": (4, (1, 2, 4, 8, 16, 32), ()),
        "prefill_chunk": (512, (64, 128, 256, 512, 1024, 2048), ()),
        "kv_precision": ("auto", (), ("auto", *KV_TYPES)),
    }
    #: Prompt tokens are those that were computed: cached ones come on top.
    metrics = MetricNames(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        kv_use=("llamacpp:kv_cache_usage_ratio",),
        prefix_hits=("llamacpp:prompt_tokens_cached_total",),
        prefix_queries=("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",),
        prompt_tokens=("llamacpp:prompt_tokens_total",),
        generated_tokens=("llamacpp:tokens_predicted_total",),
    )

    def paths(self, profile: ServerProfile) -> Paths:
        """Return where it answers what."""
        if _is_python(profile):
            return Paths(health=None, metrics=None)
        tokenize = Tokenize(path="/tokenize", field="content", more=(("add_special", False),))
        return Paths(version=("/props", "build_info"), tokenize=tokenize)

    def dialect(self, profile: ServerProfile) -> Dialect:
        """Return what it takes beside the plain fields: no prompt is served from the cache of a slot."""
        is_text = profile.api == "chat"
        if _is_python(profile):
            return Dialect(api=profile.api, takes_token_ids=not is_text, usage_options=(), ignore_eos_body=())
        return Dialect(api=profile.api, takes_token_ids=not is_text, extra_body=(("cache_prompt", False),))

    def served_name(self, model: str, profile: ServerProfile) -> str:
        """Return what it calls the model: the alias that it is started with."""
        return profile.served_model or model

    def start(self, settings: EngineSettings, profile: ServerProfile, *, model: str, place: Place) -> Start:
        """Return what a launch runs. Raises InvalidSettings for a setting that the server would not serve at."""
        refuse(self.kind, gaps_of(settings, is_python=_is_python(profile)))
        gpus = gpus_of(settings.device)
        words = filled(profile.command or ("llama-server",), place=place, model=model, gpus=gpus)
        named = self.served_name(model, profile)
        flags = _python_flags(settings, model, named, place) if _is_python(profile) else [
            *_model_flags(model),
            ("--alias", named),
            ("--host", HOST),
            ("--port", place.port),
            ("--metrics",),
            *flags_of(settings),
        ]  # fmt: skip
        extra = filled(profile.extra_args, place=place, model=model, gpus=gpus)
        env = (*_ENV, ("CUDA_VISIBLE_DEVICES", gpus), *profile.env)
        return Start(commands=(Command(words=(*words, *words_of(flags), *extra), env=env),))

    def num_kv_blocks(self, samples: Sequence[Sample]) -> int | None:
        """Return None: its cache has cells, not blocks."""
        return None

    def score_request(self, token_ids: tuple[int, ...], model: str) -> tuple[str, dict[str, Any]] | None:
        """Return None: it gives no probabilities of a prompt."""
        return None

    def scores_of(self, answer: Mapping[str, Any], num_tokens: int) -> TokenScores:
        """Raise NotScored."""
        raise NotScored(f"{self.kind} gives no probabilities of a prompt")


def flags_of(settings: EngineSettings) -> list[Flag]:
    """Return a point's flags of `llama-server`."""
    step = settings.prefill_chunk + settings.max_batch
    flags: list[Flag] = [("-np", settings.max_batch), ("-b", step), ("-ub", step)]
    if settings.max_context is not None:
        flags.append(("-c", settings.max_context * settings.max_batch))
    if settings.kv_precision in KV_TYPES:
        kept = KV_TYPES[settings.kv_precision]
        flags += [("-ctk", kept), ("-ctv", kept), ("-fa", "on")]  # quantised values need flash attention
    if settings.num_threads is not None:
        flags.append(("-t", settings.num_threads))
    if settings.device != "cpu":
        flags.append(("-ngl", _ALL_LAYERS))
    return flags


def gaps_of(settings: EngineSettings, *, is_python: bool = False) -> list[Gap]:
    """Return what of a point no flag says."""
    gaps = own_gaps(settings)
    if settings.kv_precision != "auto" and (is_python or settings.kv_precision not in KV_TYPES):
        gaps.append(Gap(knob="kv_precision", value=settings.kv_precision, words="the server has no such cache"))
    if is_python and settings.max_batch > 1:
        words = "this server answers one request after the other; take llama-server"
        gaps.append(Gap(knob="max_batch", value=settings.max_batch, words=words))
    if settings.policy == "prefill_first":
        gaps.append(Gap(knob="policy", value="prefill_first", words="prompts ride beside running decodes here"))
    for knob in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        if getattr(settings, knob) > 1:
            words = "the server itself spreads layers over the GPUs that it sees"
            gaps.append(Gap(knob=knob, value=getattr(settings, knob), words=words))
    if settings.expert_parallel:
        gaps.append(Gap(knob="expert_parallel", value="on", words="experts lie where their layer does"))
    if settings.prefill_gpus:
        gaps.append(Gap(knob="prefill_gpus", value=settings.prefill_gpus, words="one server computes both"))
    return gaps


def _is_python(profile: ServerProfile) -> bool:
    return _PYTHON_SERVER in profile.command


def _model_flags(model: str) -> list[Flag]:
    """Return a file as it is; the one .gguf file of a folder; anything else as an id of Hugging Face."""
    path = Path(model)
    if path.is_dir():
        return [("-m", str(_only_file(path)))]
    return [("-m", model)] if path.suffix == ".gguf" else [("-hf", model)]


def _only_file(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise InvalidSettings(f"model is {str(folder)!r} with {len(files)} .gguf files; name one file")
    return files[0]


def _python_flags(settings: EngineSettings, model: str, named: str, place: Place) -> list[Flag]:
    path = Path(model)
    flags: list[Flag] = [
        ("--model", str(_only_file(path)) if path.is_dir() else model),
        ("--model_alias", named),
        ("--host", HOST),
        ("--port", place.port),
        ("--n_batch", settings.prefill_chunk),
        ("--n_ubatch", settings.prefill_chunk),
    ]
    if settings.max_context is not None:
        flags.append(("--n_ctx", settings.max_context))
    if settings.num_threads is not None:
        flags.append(("--n_threads", settings.num_threads))
    if settings.device != "cpu":
        flags.append(("--n_gpu_layers", -1))
    return flags
