"""NVIDIA Dynamo 1.6: a frontend and its workers (vLLM, SGLang, TensorRT-LLM, mocker) on one machine.

Which worker it is the profile's command says by its module, as in `python3 -m dynamo.sglang`; the frontend is started
with the same words, `dynamo.frontend` in place of that module. They find each other through a folder of the launch, so
neither etcd nor NATS is needed. Replicas are so many workers, each with its share of the GPUs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from engine.errors import InvalidSettings, NotScored
from engine.servers import sglang, trtllm, vllm
from engine.servers.dialect import Dialect
from engine.servers.flags import BATCHES, CHUNKS, LAYOUT_KNOBS, Flag, Gap, KnobTable, refuse, words_of
from engine.servers.metrics import MetricNames, Sample
from engine.servers.paths import Paths
from engine.servers.profile import HOST, Command, Place, ServerProfile, Start, filled, gpus_of
from engine.serving import TokenScores
from engine.settings import EngineSettings

#: How frontend and workers find each other.
_PLANES: tuple[Flag, ...] = (("--discovery-backend", "file"), ("--request-plane", "tcp"), ("--event-plane", "zmq"))
_FRONTEND = "dynamo.frontend"


class Dynamo:
    """`python3 -m dynamo.frontend` with workers of vLLM unless the profile names others."""

    kind = "dynamo"
    knobs: ClassVar[KnobTable] = {
        "max_batch": (256, BATCHES, ()),
        "precision": vllm.Vllm.knobs["precision"],
        "prefill_chunk": (8192, CHUNKS, ()),
        "kv_precision": vllm.Vllm.knobs["kv_precision"],
        **LAYOUT_KNOBS,
    }
    #: Those of the frontend; the KV cache is the workers', who tell of it on ports of their own.
    metrics = MetricNames(
        running=("dynamo_frontend_inflight_requests",),
        waiting=("dynamo_frontend_queued_requests",),
        prefix_hits=("dynamo_frontend_cached_tokens_sum",),
        prefix_queries=("dynamo_frontend_input_sequence_tokens_sum",),
        prompt_tokens=("dynamo_frontend_input_sequence_tokens_sum",),
        generated_tokens=("dynamo_frontend_output_tokens_total", "dynamo_frontend_output_sequence_tokens_sum"),
    )

    def paths(self, profile: ServerProfile) -> Paths:
        """Return where it answers what. The model is in its list once a worker is ready."""
        return Paths()

    def dialect(self, profile: ServerProfile) -> Dialect:
        """Return what it takes beside the plain fields: counts in every piece of completions."""
        if profile.api == "chat":
            return Dialect(api="chat")
        usage = (("include_usage", True), ("continuous_usage_stats", True))
        return Dialect(takes_token_ids=True, usage_options=usage)

    def served_name(self, model: str, profile: ServerProfile) -> str:
        """Return what it calls the model."""
        return profile.served_model or model

    def start(self, settings: EngineSettings, profile: ServerProfile, *, model: str, place: Place) -> Start:
        """Return what a launch runs. Raises InvalidSettings for a setting that the workers would not serve at."""
        gpus = gpus_of(settings.device)
        words = filled(profile.command or ("python3", "-m", "dynamo.vllm"), place=place, model=model, gpus=gpus)
        worker = next((word for word in words if word.startswith("dynamo.")), None)
        if worker not in _FLAGS:
            raise InvalidSettings(f"command is {' '.join(words)!r}; it must name one of {', '.join(_FLAGS)}")
        refuse(worker, _gaps(worker, settings))
        flags = [*_FLAGS[worker](settings, model), *_name_flags(worker, profile), *_PLANES]
        extra = filled(profile.extra_args, place=place, model=model, gpus=gpus)
        env = (("DYN_FILE_KV", str(place.folder / "dynamo")), ("DYN_TCP_RPC_HOST", HOST))
        front = [_FRONTEND if word == worker else word for word in words]
        front_flags = words_of([("--http-host", HOST), ("--http-port", place.port), *_PLANES])
        workers = tuple(
            Command(
                words=(*words, *words_of(flags), *extra),
                env=(*env, ("CUDA_VISIBLE_DEVICES", share), *profile.env),
            )
            for share in _shares(gpus, _num_workers(settings))
        )
        return Start(commands=(Command(words=(*front, *front_flags), env=(*env, *profile.env)), *workers))

    def num_kv_blocks(self, samples: Sequence[Sample]) -> int | None:
        """Return None: the frontend does not say how many blocks its workers have."""
        return None

    def score_request(self, token_ids: tuple[int, ...], model: str) -> tuple[str, dict[str, Any]] | None:
        """Return None: the frontend gives no probabilities of a prompt."""
        return None

    def scores_of(self, answer: Mapping[str, Any], num_tokens: int) -> TokenScores:
        """Raise NotScored."""
        raise NotScored(f"{self.kind} gives no probabilities of a prompt")


def _vllm(settings: EngineSettings, model: str) -> list[Flag]:
    context: list[Flag] = [] if settings.max_context is None else [("--max-model-len", settings.max_context)]
    return [("--model", model), *vllm.flags_of(settings, is_pool=True), *context]


def _sglang(settings: EngineSettings, model: str) -> list[Flag]:
    context: list[Flag] = [] if settings.max_context is None else [("--context-length", settings.max_context)]
    pool = settings if settings.expert_parallel else _single(settings)
    return [("--model-path", model), *sglang.flags_of(pool), *context]


def _trtllm(settings: EngineSettings, model: str) -> list[Flag]:
    """Return the worker's own spelling of what `trtllm-serve` is told by flags and file."""
    shared = settings.data_parallel if settings.expert_parallel else 1
    flags: list[Flag] = [
        ("--model", model),
        ("--max-batch-size", settings.max_batch),
        ("--max-num-tokens", settings.prefill_chunk + settings.max_batch),
        ("--tensor-parallel-size", settings.tensor_parallel * shared),
        ("--pipeline-parallel-size", settings.pipeline_parallel),
    ]
    if settings.expert_parallel:
        flags.append(("--expert-parallel-size", settings.tensor_parallel * shared))
    if settings.max_context is not None:
        flags.append(("--max-seq-len", settings.max_context))
    options = trtllm.options_of(settings)
    return [*flags, ("--override-engine-args", json.dumps(options))]


def _mocker(settings: EngineSettings, model: str) -> list[Flag]:
    """Return the flags of an engine on paper: batch, budget and context are all that it has."""
    flags: list[Flag] = [
        ("--model-path", model),
        ("--max-num-seqs", settings.max_batch),
        ("--max-num-batched-tokens", settings.prefill_chunk + settings.max_batch),
    ]
    if settings.max_context is not None:
        flags.append(("--max-model-len", settings.max_context))
    if settings.num_kv_blocks is not None:
        flags.append(("--num-gpu-blocks-override", settings.num_kv_blocks))
    return flags


_FLAGS = {"dynamo.vllm": _vllm, "dynamo.sglang": _sglang, "dynamo.trtllm": _trtllm, "dynamo.mocker": _mocker}


def _gaps(worker: str, settings: EngineSettings) -> list[Gap]:
    """Return what a worker's flags do not say; replicas are so many workers, whatever one server of the kind has."""
    single = settings if settings.expert_parallel else _single(settings)
    if worker == "dynamo.sglang":
        return sglang.gaps_of(single)
    return trtllm.gaps_of(single) if worker == "dynamo.trtllm" else vllm.gaps_of(single)


def _name_flags(worker: str, profile: ServerProfile) -> list[Flag]:
    if profile.served_model is None:
        return []
    return [("--model-name" if worker == "dynamo.mocker" else "--served-model-name", profile.served_model)]


def _single(settings: EngineSettings) -> EngineSettings:
    """Return the settings of one worker out of several replicas."""
    return dataclasses.replace(settings, data_parallel=1)


def _num_workers(settings: EngineSettings) -> int:
    return 1 if settings.expert_parallel else settings.data_parallel


def _shares(gpus: str, count: int) -> list[str]:
    """Return the GPUs of each worker; with fewer than workers, or none, all of them see the same ones."""
    names = [name for name in gpus.split(",") if name]
    size = len(names) // count
    return [",".join(names[i * size : (i + 1) * size]) for i in range(count)] if size else [gpus] * count
