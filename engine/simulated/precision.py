"""What precisions weigh in memory, and in what arithmetic they are computed. Knows nothing of models."""

from __future__ import annotations

from engine.errors import InvalidSettings
from engine.settings import EngineSettings

#: Bytes of one weight with its share of scales. FP8: a 32-bit scale per 128 x 128 block (DeepSeek-V3, arXiv
#: 2412.19437); INT8: a 16-bit scale per channel, too few to count; INT4: a 16-bit scale and zero point per group of
#: 128; NVFP4: an 8-bit scale per 16 values (NVIDIA); MXFP4: an 8-bit scale per 32 values (OCP MX 1.0).
WEIGHT_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0 + 4.0 / (128 * 128),
    "int8": 1.0,
    "int4": 0.5 + 4.0 / 128,
    "nvfp4": 0.5 + 1.0 / 16,
    "mxfp4": 0.5 + 1.0 / 32,
}
#: Bytes of one cached key or value; scales are per tensor but for NVFP4's.
KV_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5 + 1.0 / 16}
#: Weights alone are narrow; products are computed in 16 bit.
_WEIGHT_ONLY = ("int4", "mxfp4")


def unquantized_bytes(precision: str) -> float:
    """Bytes of a weight that is never quantized: embeddings, output matrix, norms, routers."""
    return 4.0 if precision == "fp32" else 2.0


def kv_value_bytes(settings: EngineSettings, arithmetics: frozenset[str]) -> float:
    """Bytes of one cached value; `auto` is what activations are in: 16 bit, or 32 with fp32.

    Raises InvalidSettings for 4-bit keys and values on a machine without 4-bit arithmetic.
    """
    if settings.kv_precision == "auto":
        return unquantized_bytes(settings.precision)
    if settings.kv_precision == "nvfp4" and "nvfp4" not in arithmetics:
        raise InvalidSettings(
            f"kv_precision is 'nvfp4', which this machine lacks (it has {_listed(arithmetics)}); choose fp8 or auto"
        )
    return KV_BYTES[settings.kv_precision]


def arithmetic_of(settings: EngineSettings, arithmetics: frozenset[str]) -> str:
    """Name the arithmetic of the matrix products.

    Raises InvalidSettings when the machine does not have it, listing the precisions that it can serve.
    """
    precision = settings.precision
    wanted = precision
    if precision == "int4" or (precision == "mxfp4" and "mxfp4" not in arithmetics):
        wanted = "bf16" if "bf16" in arithmetics else "fp16"
    if wanted in arithmetics:
        return wanted
    has_16_bit = bool(arithmetics & {"bf16", "fp16"})
    possible = sorted(arithmetics | (set(_WEIGHT_ONLY) if has_16_bit else set()))
    raise InvalidSettings(
        f"precision is {precision!r}, which this machine does not compute in at speed; choose one of "
        + ", ".join(possible)
    )


def _listed(arithmetics: frozenset[str]) -> str:
    return ", ".join(sorted(arithmetics))
