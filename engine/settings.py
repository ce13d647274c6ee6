"""The knobs an engine understands, validated, and what an opened engine says of itself. Free of torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.errors import InvalidSettings

#: What weights are stored in and products are computed in, widest first. Which of them an engine and its device have,
#: and whether activations are as narrow as weights, is theirs to say (docs/knobs.md).
PRECISIONS = (
    "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int8_dynamic", "int4_g32", "int4", "int4_g128", "nvfp4", "mxfp4",
)  # fmt: skip
#: What the model's own file is stored in: of servers that no flag tells, and that no job sets.
AS_STORED = "as_stored"
#: What keys and values are stored in; `auto` is what the precision says.
KV_PRECISIONS = ("auto", "bf16", "fp8", "int8", "nvfp4")
#: Who goes first in a step: running decodes beside which prompts fit, or waiting prompts while decodes pause.
POLICIES = ("decode_first", "prefill_first")
#: Decodes first, too, but requests by their class: of our own engines, for loads whose requests have one.
PRIORITY = "priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One launch of an engine. Of ours, changing anything but `prefill_chunk` needs a new launch."""

    #: A folder, a .gguf file, a Hugging Face id or a built-in name.
    model: str
    #: `cpu`, or the UUID of the one NVIDIA GPU that the engine may see.
    device: str = "cpu"
    precision: str = "fp32"
    kv_precision: str = "auto"
    #: Whether the embedded engine may emulate a precision that the device lacks. Answers only: such an engine's speed
    #: and energy are nobody's, and it says so (`EngineInfo.is_emulated`).
    can_emulate: bool = False
    #: Sequences that run at once, in each replica.
    max_batch: int = 8
    #: Prompt tokens a step computes at most in each replica, beside one token of every running decode.
    prefill_chunk: int = 256
    policy: str = "decode_first"
    #: Most that prompts may be of a step's tokens while decodes run, above 0 and up to 1; see `prompt_budget`.
    max_prefill_fraction: float = 1.0
    #: Whether the embedded engine keeps computed blocks of keys and values for prompts that begin alike.
    prefix_caching: bool = False
    #: GPUs that share every layer.
    tensor_parallel: int = 1
    #: Stages that the layers are cut into.
    pipeline_parallel: int = 1
    #: Replicas that share the requests; of a mixture of experts they may share the experts, too.
    data_parallel: int = 1
    #: Whether each expert lies on one GPU, all of them spread over the replicas, instead of being cut like the rest.
    expert_parallel: bool = False
    #: GPUs that compute prompts only and hand their keys and values on; 0 computes both in one place.
    prefill_gpus: int = 0
    #: Longest prompt plus output; None takes the model's own.
    max_context: int | None = None
    #: Tokens in one KV-cache block.
    block_size: int = 16
    #: Blocks in the KV cache; None takes enough for max_batch sequences of max_context.
    num_kv_blocks: int | None = None
    #: Compute threads; None takes one per core this process may use.
    num_threads: int | None = None
    #: Share of a GPU's memory that the embedded engine fills, its weights included; what others hold of it counts.
    gpu_memory_fraction: float = 0.9

    def __post_init__(self) -> None:
        """Refuse values no engine can take, naming field, value and remedy."""
        if self.precision not in (*PRECISIONS, AS_STORED):
            raise InvalidSettings(f"precision is {self.precision!r}; choose one of {', '.join(PRECISIONS)}")
        if self.kv_precision not in KV_PRECISIONS:
            raise InvalidSettings(f"kv_precision is {self.kv_precision!r}; choose one of {', '.join(KV_PRECISIONS)}")
        if self.policy not in (*POLICIES, PRIORITY):
            raise InvalidSettings(f"policy is {self.policy!r}; choose one of {', '.join((*POLICIES, PRIORITY))}")
        if not 0.0 < self.max_prefill_fraction <= 1.0:
            raise InvalidSettings(
                f"max_prefill_fraction is {self.max_prefill_fraction}; give a share above 0 and up to 1"
            )
        if self.prefill_gpus < 0:
            raise InvalidSettings(f"prefill_gpus is {self.prefill_gpus}; give 0 or more")
        for field in ("max_batch", "prefill_chunk", "block_size", "tensor_parallel", "pipeline_parallel",
                      "data_parallel"):  # fmt: skip
            _require_positive(field, getattr(self, field))
        for field in ("max_context", "num_kv_blocks", "num_threads"):
            value = getattr(self, field)
            if value is not None:
                _require_positive(field, value)
        if not 0.0 < self.gpu_memory_fraction <= 1.0:
            raise InvalidSettings(
                f"gpu_memory_fraction is {self.gpu_memory_fraction}; give a share above 0 and up to 1"
            )

    @property
    def num_gpus(self) -> int:
        """GPUs that the settings take."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel + self.prefill_gpus

    def needs_relaunch(self, other: EngineSettings, *, live: Collection[str] = ("prefill_chunk",)) -> bool:
        """Tell whether going from these settings to `other` takes a new engine process; `live` fields do not."""
        return any(
            getattr(self, field) != getattr(other, field) for field in self.__dataclass_fields__ if field not in live
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an opened engine is, for the record of every trial."""

    engine: str
    version: str
    model: str
    #: SHA-256 over the weights, so that a changed checkpoint is another model.
    model_hash: str
    precision: str
    #: What the model runs on: `cpu` or a GPU's UUID.
    device: str
    max_context: int
    num_kv_blocks: int
    num_parameters: int
    #: Seconds from asking for the engine to it being ready.
    start_s: float
    #: Instruction set the CPU kernels use, or the GPU's compute capability.
    isa: str
    #: Processes whose CPU time is the engine's.
    pids: tuple[int, ...]
    #: Whether the device lacks the precision and its rounding alone is imitated: no figure of speed or energy counts.
    is_emulated: bool = False


def prompt_budget(prefill_chunk: int, max_prefill_fraction: float, *, num_decodes: int) -> int:
    """Return how many prompt tokens a step may have beside one token of each decode.

    The most p <= prefill_chunk for which p <= max_prefill_fraction x (num_decodes + p), but never none, so that prompts
    get to their end; without decodes all of prefill_chunk.
    """
    if not num_decodes or max_prefill_fraction == 1.0:
        return prefill_chunk
    share = max_prefill_fraction / (1.0 - max_prefill_fraction)
    return min(prefill_chunk, max(1, int(num_decodes * share + 1e-9)))  # 7 x 0.3 / 0.7 is 3, not 2.9999999999999996


def _require_positive(field: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidSettings(f"{field} is {value!r}; give a whole number of 1 or more")
