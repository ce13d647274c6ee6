"""The knobs an engine understands, validated, and what an opened engine says of itself. Free of torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.errors import InvalidSettings

#: What weights are stored in and products are computed in. `int4` and `mxfp4` keep activations in 16 bit, the others
#: have weights and activations alike. Which of them an engine and its device have is theirs to say.
PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp4")
#: What the model's own file is stored in: of servers that no flag tells, and that no job sets.
AS_STORED = "as_stored"
#: Those of the embedded engine.
EMBEDDED_PRECISIONS = ("fp32", "bf16", "fp16", "int8")
#: What keys and values are stored in; `auto` is what the model computes in.
KV_PRECISIONS = ("auto", "bf16", "fp8", "int8", "nvfp4")
#: Who goes first in a step: running decodes beside which prompts fit, or waiting prompts while decodes pause.
POLICIES = ("decode_first", "prefill_first")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One launch of an engine. Of ours, changing anything but `prefill_chunk` needs a new launch."""

    #: A folder, a .gguf file, a Hugging Face id or a built-in name.
    model: str
    #: `cpu`, or the UUID of the one NVIDIA GPU that the engine may see.
    device: str = "cpu"
    precision: str = "fp32"
    kv_precision: str = "auto"
    #: Sequences that run at once, in each replica.
    max_batch: int = 8
    #: Prompt tokens a step computes at most in each replica, beside one token of every running decode.
    prefill_chunk: int = 256
    policy: str = "decode_first"
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

    def __post_init__(self) -> None:
        """Refuse values no engine can take, naming field, value and remedy."""
        if self.precision not in (*PRECISIONS, AS_STORED):
            raise InvalidSettings(f"precision is {self.precision!r}; choose one of {', '.join(PRECISIONS)}")
        if self.kv_precision not in KV_PRECISIONS:
            raise InvalidSettings(f"kv_precision is {self.kv_precision!r}; choose one of {', '.join(KV_PRECISIONS)}")
        if self.policy not in POLICIES:
            raise InvalidSettings(f"policy is {self.policy!r}; choose one of {', '.join(POLICIES)}")
        if self.prefill_gpus < 0:
            raise InvalidSettings(f"prefill_gpus is {self.prefill_gpus}; give 0 or more")
        for field in ("max_batch", "prefill_chunk", "block_size", "tensor_parallel", "pipeline_parallel",
                      "data_parallel"):  # fmt: skip
            _require_positive(field, getattr(self, field))
        for field in ("max_context", "num_kv_blocks", "num_threads"):
            value = getattr(self, field)
            if value is not None:
                _require_positive(field, value)

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


def _require_positive(field: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidSettings(f"{field} is {value!r}; give a whole number of 1 or more")
