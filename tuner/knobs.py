"""The knobs of each engine: their defaults, and what is tried of them. Those of devices are in `probes.settings`.

docs/knobs.md says what each does. Knows nothing of what a machine has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.embedded.precision import KV_PRECISIONS, MODES
from engine.servers.adapter import ADAPTERS
from engine.settings import POLICIES
from probes.simulated.names import is_simulated_name
from tuner.errors import InvalidRequest
from tuner.request import KnobValue

EMBEDDED = "embedded"
SIMULATED = "simulated"
#: Real servers, by their kind; the last one runs already, somewhere.
SERVERS = tuple(ADAPTERS)
OPENAI = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobRule:
    """One knob of an engine."""

    #: Whether another value needs another launch of the engine.
    needs_launch: bool
    #: What an untuned deployment uses.
    default: KnobValue
    #: Tried when a job names no knob; empty leaves the knob to jobs that name it.
    tried: tuple[KnobValue, ...] = ()
    #: All that the engine knows of words; numbers are the engine settings' to judge.
    words: tuple[str, ...] = ()


_EMBEDDED_RULES: dict[str, KnobRule] = {
    "max_batch": KnobRule(needs_launch=True, default=8, tried=(1, 2, 4, 8, 16, 32)),
    "precision": KnobRule(
        needs_launch=True,
        default="fp32",
        tried=("fp32", "bf16", "int8"),
        words=tuple(MODES),
    ),
    "prefill_chunk": KnobRule(needs_launch=False, default=256, tried=(32, 64, 128, 256, 512)),
    "kv_precision": KnobRule(needs_launch=True, default="auto", words=KV_PRECISIONS),
    "policy": KnobRule(needs_launch=True, default="decode_first", words=POLICIES),
    "max_prefill_fraction": KnobRule(needs_launch=True, default=1.0),
    "prefix_caching": KnobRule(needs_launch=True, default="off", words=("off", "on")),
}
#: Batch and chunk default to those of vLLM's V1 engine on data-centre GPUs (max_num_seqs 256, max_num_batched_tokens
#: 8192). A layout is searched where a job names one; else the smallest that holds the model (`tuner.layout`).
_SIMULATED_RULES: dict[str, KnobRule] = {
    "max_batch": KnobRule(needs_launch=True, default=256, tried=(8, 16, 32, 64, 128, 256, 512)),
    "precision": KnobRule(
        needs_launch=True,
        default="bf16",
        tried=("bf16", "fp8", "nvfp4"),
        words=("bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp4"),
    ),
    "prefill_chunk": KnobRule(needs_launch=False, default=8192, tried=(512, 1024, 2048, 4096, 8192)),
    "kv_precision": KnobRule(needs_launch=True, default="auto", words=("auto", "bf16", "fp8", "int8", "nvfp4")),
    "policy": KnobRule(needs_launch=True, default="decode_first", words=POLICIES),
    "max_prefill_fraction": KnobRule(needs_launch=True, default=1.0),
    "tensor_parallel": KnobRule(needs_launch=True, default=1),
    "pipeline_parallel": KnobRule(needs_launch=True, default=1),
    "data_parallel": KnobRule(needs_launch=True, default=1),
    "expert_parallel": KnobRule(needs_launch=True, default="off", words=("off", "on")),
    "prefill_gpus": KnobRule(needs_launch=True, default=0),
}
#: Of a server every knob is a flag of its start.
_SERVER_RULES: dict[str, dict[str, KnobRule]] = {
    kind: {
        name: KnobRule(needs_launch=True, default=default, tried=tried, words=words)
        for name, (default, tried, words) in adapter.knobs.items()
    }
    for kind, adapter in ADAPTERS.items()
}
#: Of such a server only the load is ours: so many requests are kept in flight.
_OPENAI_RULES = {"max_batch": KnobRule(needs_launch=False, default=8, tried=(1, 2, 4, 8, 16, 32))}
_RULES: dict[str, dict[str, KnobRule]] = {
    EMBEDDED: _EMBEDDED_RULES,
    SIMULATED: _SIMULATED_RULES,
    **_SERVER_RULES,
    OPENAI: _OPENAI_RULES,
}
ENGINES = tuple(_RULES)
#: About how long a launch takes until the first request is served: what a search weighs against a window. A data-centre
#: server loads some hundred GB and captures graphs; ours loads a small model.
_LAUNCH_S = {EMBEDDED: 5.0, SIMULATED: 60.0} | dict.fromkeys(SERVERS, 60.0)
#: The knobs that are shares, and those that are switches: of the others numbers are counts.
SHARE_KNOBS = ("max_prefill_fraction",)
SWITCH_KNOBS = ("expert_parallel", "prefix_caching")
#: The knobs that say which GPUs do what.
LAYOUT_KNOBS = ("tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel", "prefill_gpus")


def usual_engine(device: str) -> str:
    """Return the engine that a device of this name takes where a job names none."""
    return SIMULATED if is_simulated_name(device) else EMBEDDED


def rules_of(engine: str) -> Mapping[str, KnobRule]:
    """Return an engine's knobs by name. Raises InvalidRequest for an engine that there is not."""
    if engine not in _RULES:
        raise InvalidRequest("engine", engine, f"this version has {', '.join(ENGINES)}")
    return _RULES[engine]


def live_knobs(engine: str) -> frozenset[str]:
    """Return the knobs that an open engine can be given another value of."""
    return frozenset(name for name, rule in rules_of(engine).items() if not rule.needs_launch)


def launch_s(engine: str) -> float:
    """Return about how many seconds a launch of the engine keeps the device."""
    return _LAUNCH_S[engine]
