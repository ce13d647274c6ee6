"""Step times from aiconfigurator-core (NVIDIA, Apache-2.0): measured kernels instead of this project's time model.

The package is an optional extra (`aic`) and imported nowhere else. At an engine's launch the times of its steps are
asked for on a grid, and interpolated from then on. Where the package does not know model, accelerator, precision or
layout, the answer is None with the reason, so that the record of a trial can say where its times came from.

The times are sums over kernels measured alone, at the clocks of whoever measured, and vLLM's unless another back end is
named: nothing of the host's work between steps, of clock caps, or of power; a device must add those. Beyond its tables
the package extrapolates without saying so. Set beside the ML.ENERGY leaderboard (v3, vLLM), and with this project's
host terms added, mean steps are off by 10 % in the median on H100 and 15 % on B200 for dense models, by 21 % and 32 %
for mixtures of experts: its vLLM kernels of 8-bit experts take up to 2.3 times as long as those served with.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.errors import UnknownModel
from engine.settings import EngineSettings
from engine.simulated import catalogue
from engine.simulated.measured import TimeSource

PACKAGE = "aiconfigurator-core"

#: The package's names of accelerators in `probes.simulated.accelerators`. H100 PCIe and others have no measured kernels
#: there; the RTX PRO 6000 measured is the server edition.
SYSTEMS = {
    "a100-sxm-80": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}

#: The package's names of models in the catalogue; some share another's shape. Only such as it carries the config of:
#: others it would fetch from the network.
MODELS = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.3-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "llama-4-maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-30b-a3b-2507": "Qwen/Qwen3-30B-A3B",
    "qwen3-coder-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "qwen3-235b-a22b-2507": "Qwen/Qwen3-235B-A22B",
    "qwen3-vl-235b-a22b": "Qwen/Qwen3-VL-235B-A22B-Instruct",
    "qwen3-coder-480b-a35b": "Qwen/Qwen3-Coder-480B-A35B-Instruct",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "deepseek-v3.1": "deepseek-ai/DeepSeek-V3",
}

#: Published with experts in mxfp4 and the rest in bf16, which is what both precisions mean for them.
MXFP4_EXPERTS = frozenset({"gpt-oss-20b", "gpt-oss-120b"})

#: The package's quantisation of matrix products for an engine's precision.
PRODUCTS = {
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "fp8": "fp8",
    "int4": "int4_wo",
    "nvfp4": "nvfp4",
}
#: And of keys and values.
KEYS_AND_VALUES = {"auto": "bfloat16", "bf16": "bfloat16", "fp8": "fp8", "int8": "int8"}

#: From one grid line to the next. With these, 9 of 10 decode steps of Llama-3.1-8B on H100 come out within 1 % of the
#: package's own answer; kernels' sizes make steps that no line falls on.
BATCH_RATIO = 2**0.25
CONTEXT_RATIO = 2.0
SHORTEST_CONTEXT = 64
#: Prompt tokens of a step that the grid goes to at least: the chunk may be changed while an engine runs.
LONGEST_CHUNK = 8192


class Kernels(Protocol):
    """What is used of the package's `EngineHandle`; times in milliseconds."""

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        """Return the time of a step of decodes that attend to `isl + osl // 2 + 1` tokens each."""

    def mixed_step_breakdown(
        self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int, prefix: int
    ) -> tuple[float, float, float, float]:
        """Return total, all but attention, attention of prompts and attention of decodes.

        Prompts have `isl` tokens of which `prefix` are computed already.
        """

    def last_provenance(self) -> str | None:
        """Return None if the last answer came from measured kernels of that very system."""


class StepTimes:
    """How long the steps of one engine take, from measured kernels. A call costs 4 us, with prompts 11 us."""

    def __init__(self, kernels: Kernels, settings: EngineSettings, *, max_context: int) -> None:
        """Ask for the grid; the errors of `kernels` go through, and _Unknown where its answers will not do."""
        self._replicas = settings.data_parallel
        batches = _lines(1, max(settings.max_batch, 2), BATCH_RATIO)
        contexts = _lines(SHORTEST_CONTEXT, max(max_context, 2 * SHORTEST_CONTEXT), CONTEXT_RATIO)
        prompts = _lines(1, max(settings.prefill_chunk, LONGEST_CHUNK), BATCH_RATIO)
        # A first piece goes through other kernels than those that have something before them.
        starts = (0, 1, *contexts)
        ask = _Questions(kernels)
        self._decode = Surface(batches, contexts, ask.decode)
        self._decode_attention = Surface(batches, contexts, ask.decode_attention)
        self._prompt_attention = Surface(prompts, starts, ask.prompt_attention)
        self._rest = Surface(_lines(1, batches[-1] + prompts[-1], BATCH_RATIO), (0, 1), ask.rest)

    def __call__(self, num_decodes: int, mean_context: float, prompt_tokens: int, prompt_start: float = 0.0) -> float:
        """Return the seconds that the kernels of a step take; decodes and prompt tokens are those of all replicas.

        `mean_context` is what a decode attends to, `prompt_start` how many tokens a piece of a prompt has before it,
        both in the mean. Pieces of several prompts count as one, which overrates their attention a little.
        """
        # Replicas wait for one another: one decode among four of them takes as long as one in each.
        decodes, prompts = max(1.0, num_decodes / self._replicas), max(1.0, prompt_tokens / self._replicas)
        if not prompt_tokens:
            return self._decode.at(decodes, mean_context) / 1e3 if num_decodes else 0.0
        latency_ms = self._prompt_attention.at(prompts, prompt_start)
        if not num_decodes:
            return (latency_ms + self._rest.at(prompts, 0.0)) / 1e3
        latency_ms += self._decode_attention.at(decodes, mean_context)
        return (latency_ms + self._rest.at(decodes + prompts, 0.0)) / 1e3


class Surface:
    """A function of two variables, known on a grid: linear between its lines, and beyond them as in the last cell."""

    def __init__(self, xs: Sequence[int], ys: Sequence[int], function: Callable[[int, int], float]) -> None:
        """Evaluate `function` at every crossing of two or more ascending lines each way."""
        self._xs, self._ys = tuple(xs), tuple(ys)
        self._rows = [[function(x, y) for y in ys] for x in xs]

    def at(self, x: float, y: float) -> float:
        """Return the value at a place; never below 0, whatever the last cell leads to."""
        xs, ys = self._xs, self._ys
        i = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
        j = min(max(bisect_right(ys, y) - 1, 0), len(ys) - 2)
        along_x = (x - xs[i]) / (xs[i + 1] - xs[i])
        along_y = (y - ys[j]) / (ys[j + 1] - ys[j])
        low, high = self._rows[i], self._rows[i + 1]
        at_low = low[j] + (low[j + 1] - low[j]) * along_y
        at_high = high[j] + (high[j + 1] - high[j]) * along_y
        return max(0.0, at_low + (at_high - at_low) * along_x)


class _Questions:
    """What is asked of the package, in milliseconds."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def decode(self, batch: int, context: int) -> float:
        latency_ms = self._kernels.decode_step_latency(batch, context - 2, 2)
        self._require_measured()
        return latency_ms

    def decode_attention(self, batch: int, context: int) -> float:
        return self._split(batch=batch, isl=context - 2)[3]

    def prompt_attention(self, tokens: int, start: int) -> float:
        return self._split(tokens=tokens, isl=start + tokens, prefix=start)[2]

    def rest(self, tokens: int, _: int) -> float:
        """Everything but attention sees only how many tokens there are."""
        return self._split(batch=tokens, isl=1)[1]

    def _split(self, *, tokens: int = 0, batch: int = 0, isl: int, prefix: int = 0) -> tuple[float, ...]:
        parts = self._kernels.mixed_step_breakdown(tokens, batch, isl, 2, prefix)
        if not parts[2 if tokens else 3]:
            # As with DeepSeek's latent attention: the rest then takes decodes for one long prompt.
            raise _Unknown("it does not tell attention from the rest of a step that mixes prompts and decodes")
        self._require_measured()
        return parts

    def _require_measured(self) -> None:
        provenance = self._kernels.last_provenance()
        if provenance is not None:
            raise _Unknown(f"it carried these kernels over from elsewhere ({provenance})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What is used of the package."""

    version: str
    #: Models whose config it carries.
    models: frozenset[str]
    #: Of system, back end and `current`: the back end's version whose kernels were measured.
    resolve_version: Callable[[str, str, str], str]
    #: Of model, system and back end, with parallelism and quantisation by keyword.
    compile: Callable[..., Kernels]


class _Unknown(Exception):
    """The package has no step times for this engine; the message says why."""


def load_library() -> Library | None:
    """Import the package, or return None where it is not installed."""
    try:
        sdk = importlib.import_module("aiconfigurator_core.sdk")
        common = importlib.import_module("aiconfigurator_core.sdk.common")
        database = importlib.import_module("aiconfigurator_core.sdk.perf_database")
    except ImportError:
        return None
    # It reports every table that it reads in place of another, most of them for models that nobody asked about.
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    return Library(
        version=importlib.metadata.version(PACKAGE),
        models=frozenset(common.get_default_models()),
        resolve_version=database.resolve_query_version,
        compile=sdk.EngineHandle.compile,
    )


def choose_step_times(
    settings: EngineSettings, *, accelerator: str, max_context: int, library: Library | None, backend: str = "vllm"
) -> TimeSource:
    """Make an engine's step times from measured kernels, or say why its own model must do.

    `accelerator` is a key of `probes.simulated.accelerators.ACCELERATORS`, `max_context` the longest prompt plus output
    to be served, `library` what `load_library` returned. The first engine of a process takes some 3 s (tables are
    read), each further one 0.1 s.
    """
    try:
        if library is None:
            raise _Unknown("not installed; the extra `aic` brings it")
        return _choose(library, settings, accelerator, max_context, backend)
    except _Unknown as why:
        return TimeSource(times=None, source=f"own model ({PACKAGE}: {why})")


def _choose(library: Library, settings: EngineSettings, accelerator: str, max_context: int, backend: str) -> TimeSource:
    name, model = _model(settings.model, library)
    system = SYSTEMS.get(accelerator)
    if system is None:
        raise _Unknown(f"no kernels were measured on {accelerator}")
    options = {**_parallelism(settings), **_quantisation(name, settings)}
    try:
        version = library.resolve_version(system, backend, "current")
        kernels = library.compile(model, system, backend, **options)
        times = StepTimes(kernels, settings, max_context=max_context)
    except (KeyError, RuntimeError, ValueError) as error:
        # Missing tables are RuntimeErrors there, layouts and arithmetic that cannot be ValueErrors.
        raise _Unknown(f"{type(error).__name__} for {model} on {system}: {_first_words(error)}") from error
    return TimeSource(times=times, source=f"{PACKAGE} {library.version} ({backend} {version} on {system})")


def _model(model: str, library: Library) -> tuple[str, str]:
    """Return a model's name in the catalogue and in the package."""
    try:
        name, _ = catalogue.find(model)
    except UnknownModel as error:
        raise _Unknown(f"it knows models by name only, and {model!r} is none") from error
    known = MODELS.get(name)
    if known is None or known not in library.models:
        raise _Unknown(f"it does not have {name}")
    return name, known


def _parallelism(settings: EngineSettings) -> dict[str, int]:
    """Return the layout of one replica, or of all of them where they share experts."""
    tensor, replicas = settings.tensor_parallel, settings.data_parallel
    if settings.expert_parallel:
        experts = {"attention_dp_size": replicas, "moe_tp_size": 1, "moe_ep_size": tensor * replicas}
    else:
        experts = {"attention_dp_size": 1, "moe_tp_size": tensor, "moe_ep_size": 1}
    return {"tp_size": tensor, "pp_size": settings.pipeline_parallel, **experts}


def _quantisation(name: str, settings: EngineSettings) -> dict[str, str]:
    """Return the package's names of an engine's precisions."""
    keys_and_values = KEYS_AND_VALUES.get(settings.kv_precision)
    if keys_and_values is None:
        raise _Unknown(f"it has no keys and values in {settings.kv_precision}")
    if name in MXFP4_EXPERTS and settings.precision in {"bf16", "mxfp4"}:
        products, experts = "bfloat16", "w4a16_mxfp4"
    else:
        products = experts = PRODUCTS.get(settings.precision, "")
        if not products:
            raise _Unknown(f"it has no {settings.precision} for {name}")
    return {"gemm_quant_mode": products, "moe_quant_mode": experts, "kvcache_quant_mode": keys_and_values}


def _lines(first: int, last: int, ratio: float) -> tuple[int, ...]:
    """Return whole numbers from `first` to `last`, each about `ratio` times the one before."""
    lines = itertools.accumulate(itertools.repeat(ratio), lambda line, r: max(line + 1, round(line * r)), initial=first)
    return (*itertools.takewhile(lambda line: line < last, lines), last)


def _first_words(error: Exception) -> str:
    """Return a message without the folders that it names."""
    message = " ".join(word for word in str(error).split() if "/" not in word)
    return message if len(message) <= 160 else f"{message[:160]}..."
