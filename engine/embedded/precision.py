"""The precisions of the embedded engine: what each stores and multiplies, and what the hardware must offer for it.

A format whose products the device lacks is refused by name. It can be *emulated* where settings say so: the numbers
are rounded as the format would round them and multiplied in a wider one, so the answers are about right and the time
and energy are nobody's. Free of torch: `linears` has the layers, `formats` the storage.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.embedded.config import ModelConfig
from engine.errors import InvalidSettings, NotNative

#: Compute capability of an NVIDIA GPU, as (9, 0).
Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One precision."""

    #: What the weights of a layer's linear products are stored in.
    weights: str
    #: What a product's inputs are rounded to, each row by itself; None leaves them as hidden states are.
    inputs: str | None = None
    #: What hidden states are in.
    hidden: str = "fp32"
    #: What embedding and head are in on a CPU, and keys and values unless `kv_precision` says otherwise; None is as
    #: hidden states. On a GPU they always are.
    kept: str | None = None
    #: The same on a GPU, whose fp32 units are a fraction of its 16-bit ones; None is as on a CPU.
    hidden_on_gpu: str | None = None
    #: Weights that share a scale, where it is not a whole row.
    group_size: int | None = None
    #: Bytes of one weight with its share of scales.
    weight_bytes: float = 4.0
    #: Whether a CPU can do it.
    on_cpu: bool = True
    #: The lowest compute capability that can.
    capability: Capability = (0, 0)
    #: What to tell whoever has less.
    needs: str = ""


#: By name. `int8` is of weights only, as in every version; with dynamic inputs it is `int8_dynamic`.
MODES: dict[str, Mode] = {
    "fp32": Mode(weights="fp32"),
    "tf32": Mode(
        weights="fp32",
        inputs="tf32",
        on_cpu=False,
        capability=(8, 0),
        needs="an NVIDIA GPU of compute capability 8.0 or higher (Ampere)",
    ),
    "bf16": Mode(
        weights="bf16",
        kept="bf16",
        hidden_on_gpu="bf16",
        weight_bytes=2.0,
        capability=(8, 0),
        needs="a CPU, or an NVIDIA GPU of compute capability 8.0 or higher (Ampere)",
    ),
    "fp16": Mode(weights="fp16", hidden="fp16", weight_bytes=2.0),
    "fp8": Mode(
        weights="fp8",
        inputs="fp8",
        hidden="bf16",
        weight_bytes=1.0,
        on_cpu=False,
        capability=(8, 9),
        needs="an NVIDIA GPU of compute capability 8.9 or higher (Ada, Hopper)",
    ),
    "int8": Mode(weights="int8", kept="bf16", hidden_on_gpu="bf16", weight_bytes=1.0),
    "int8_dynamic": Mode(
        weights="int8",
        inputs="int8",
        kept="bf16",
        hidden_on_gpu="bf16",
        weight_bytes=1.0,
        capability=(7, 5),
        needs="a CPU, or an NVIDIA GPU of compute capability 7.5 or higher (Turing)",
    ),
    "int4_g32": Mode(weights="int4", kept="bf16", hidden_on_gpu="bf16", group_size=32, weight_bytes=0.5 + 4 / 32),
    "int4": Mode(weights="int4", kept="bf16", hidden_on_gpu="bf16", group_size=64, weight_bytes=0.5 + 4 / 64),
    "int4_g128": Mode(weights="int4", kept="bf16", hidden_on_gpu="bf16", group_size=128, weight_bytes=0.5 + 4 / 128),
    "nvfp4": Mode(
        weights="nvfp4",
        inputs="nvfp4",
        hidden="bf16",
        group_size=16,
        weight_bytes=0.5 + 1 / 16,
        on_cpu=False,
        capability=(10, 0),
        needs="an NVIDIA GPU of compute capability 10.0 or higher (Blackwell)",
    ),
    "mxfp4": Mode(
        weights="mxfp4",
        inputs="mxfp4",
        hidden="bf16",
        group_size=32,
        weight_bytes=0.5 + 1 / 32,
        on_cpu=False,
        capability=(10, 0),
        needs="an NVIDIA GPU of compute capability 10.0 or higher (Blackwell)",
    ),
}
#: What keys and values may be stored in; they are read in what hidden states are in, so no hardware lacks one.
KV_PRECISIONS = ("auto", "bf16", "fp8", "int8")
#: Bytes of one key or value in each but `auto`, and of the scale that every head of a token has beside them.
_KV_BYTES = {"bf16": (2, 0), "fp8": (1, 0), "int8": (1, 4)}


def mode_of(precision: str) -> Mode:
    """Return a precision's row of the table. Raises InvalidSettings for one that this engine has not."""
    if precision not in MODES:
        raise InvalidSettings(f"precision is {precision!r}; the embedded engine has {', '.join(MODES)}")
    return MODES[precision]


def is_native(precision: str, capability: Capability | None) -> bool:
    """Tell whether a device computes in a precision itself: a GPU of this compute capability, or a CPU (None)."""
    mode = mode_of(precision)
    return mode.on_cpu if capability is None else capability >= mode.capability


def require_native(precision: str, capability: Capability | None) -> None:
    """Raise NotNative, naming what the precision needs and what there is, where the device lacks it."""
    if is_native(precision, capability):
        return
    found = "a CPU" if capability is None else "a GPU of compute capability {}.{}".format(*capability)
    possible = ", ".join(name for name in MODES if is_native(name, capability))
    raise NotNative(
        f"precision is {precision!r}, which needs {mode_of(precision).needs}; this is {found}, which has {possible}"
    )


def weight_bytes(precision: str, *, can_emulate: bool) -> float:
    """Return the bytes of one weight of a layer; what may be emulated may be held in fp32."""
    return 4.0 if can_emulate else mode_of(precision).weight_bytes


def kv_bytes_per_token(config: ModelConfig, kv_precision: str, hidden_bytes: int) -> int:
    """Return the bytes of one token's keys and values over all layers; `hidden_bytes` is a value's in `auto`."""
    value_bytes, scale_bytes = _KV_BYTES.get(kv_precision, (hidden_bytes, 0))
    num_values = config.kv_bytes_per_token(1)
    return num_values * value_bytes + num_values // config.head_dim * scale_bytes


def require_kv_precision(kv_precision: str) -> None:
    """Raise InvalidSettings for a format of keys and values that this engine has not."""
    if kv_precision not in KV_PRECISIONS:
        raise InvalidSettings(f"kv_precision is {kv_precision!r}; the embedded engine has {', '.join(KV_PRECISIONS)}")
