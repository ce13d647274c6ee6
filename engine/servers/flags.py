"""Flags of servers, and what of an engine's settings no flag says. Knows no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import InvalidSettings
from engine.settings import EngineSettings

#: A flag alone, or with its value.
Flag = tuple[str] | tuple[str, str | int | float]
#: A knob's default, the values that are tried when a job names none, and all words it has; none of numbers.
KnobTable = Mapping[str, tuple[str | int, tuple[str | int, ...], tuple[str, ...]]]

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
#: What the checkpoint must be stored in, as servers take that format from the checkpoint.
CHECKPOINTS = {
    "int8": "int8 weights and activations (compressed-tensors W8A8)",
    "int4": "int4 weights (AWQ, GPTQ or compressed-tensors W4A16)",
    "nvfp4": "NVFP4 (ModelOpt or compressed-tensors)",
    "mxfp4": "MXFP4",
}
#: The knobs that say which GPUs do what, of every server for data centres.
LAYOUT_KNOBS: KnobTable = {
    "tensor_parallel": (1, (), ()),
    "pipeline_parallel": (1, (), ()),
    "data_parallel": (1, (), ()),
    "expert_parallel": ("off", (), ("off", "on")),
}
#: Batch sizes and chunks that are tried of a server for data centres.
BATCHES = (8, 16, 32, 64, 128, 256, 512)
CHUNKS = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A setting that no flag of a server says."""

    knob: str
    value: str | int
    #: What the server does instead, or what else says it.
    words: str
    #: Whether the server runs at the setting all the same, as where the checkpoint has it.
    is_said_elsewhere: bool = False

    def __str__(self) -> str:
        """Return the gap in a line."""
        return f"{self.knob} {self.value}: {self.words}"


def own_gaps(settings: EngineSettings) -> list[Gap]:
    """Return what of a point only engines of ours can be told; a server's prefix cache is at its own default."""
    gaps = []
    if settings.max_prefill_fraction != 1.0:
        words = "no flag says how much of a step prompts may be"
        gaps.append(Gap(knob="max_prefill_fraction", value=f"{settings.max_prefill_fraction:g}", words=words))
    if settings.prefix_caching:
        gaps.append(Gap(knob="prefix_caching", value="on", words="left at the server's own default, which is not off"))
    return gaps


def words_of(flags: Sequence[Flag]) -> list[str]:
    """Return flags as the words of a command."""
    return [str(word) for flag in flags for word in flag]


def refuse(kind: str, gaps: Sequence[Gap]) -> None:
    """Raise InvalidSettings for gaps that the server would silently serve at another setting."""
    fatal = [str(gap) for gap in gaps if not gap.is_said_elsewhere]
    if fatal:
        raise InvalidSettings(f"{kind} cannot be started so: {'; '.join(fatal)}")
