"""Linear layers in each precision: what the weights are stored in and what the product is computed in.

| precision | weights                          | product            | hidden states, KV cache |
|-----------|----------------------------------|--------------------|-------------------------|
| fp32      | fp32, prepacked by oneDNN on CPU | fp32               | fp32                    |
| bf16      | bf16                             | bf16               | bf16                    |
| fp16      | fp16                             | fp16               | fp16                    |
| int8      | int8, one scale per output row   | bf16 x int8, or fp32 after unpacking for many rows | fp32 |

Prepacking is what makes small-batch fp32 fast on a CPU (measured: docs/log.md, 2026-11-30). Knows nothing of models.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

#: Rows up to which int8 weights are multiplied as they are; above, unpacking them to fp32 first is faster
#: (measured on AVX2: docs/log.md, 2026-11-30).
INT8_MAX_ROWS = 16


class Linear(Protocol):
    """x (rows, in) -> (rows, out)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""


def hidden_dtype(precision: str) -> torch.dtype:
    """Return what hidden states and the KV cache are held in."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, *, precision: str, device: torch.device, is_head: bool = False
) -> Linear:
    """Build a layer from an fp32 weight (out, in).

    The head is never int8: its rows are the vocabulary, whose rare tokens are the first to suffer.
    """
    if precision == "int8" and not is_head:
        return Int8Linear(weight, bias, device)
    dtype = hidden_dtype(precision)
    weight = weight.to(device=device, dtype=dtype)
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    if dtype is torch.float32 and device.type == "cpu" and torch._C._has_mkldnn:
        return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)


class DenseLinear:
    """The weight as it is."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """An fp32 weight in oneDNN's own blocked layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return product


class Int8Linear:
    """Symmetric int8 weights with one fp32 scale per output row: q = round(w / s), s = max |w| / 127."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, device: torch.device) -> None:
        scale = (weight.abs().amax(dim=1) / 127).clamp_min(1e-12)
        self._quantised = (weight / scale[:, None]).round().clamp(-127, 127).to(torch.int8).to(device)
        self._scale = scale.to(device)
        self._scale_bf16 = self._scale.to(torch.bfloat16)
        self._bias = None if bias is None else bias.to(device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        if x.shape[0] <= INT8_MAX_ROWS:
            product = torch._weight_int8pack_mm(x.to(torch.bfloat16), self._quantised, self._scale_bf16).to(x.dtype)
            return product if self._bias is None else product + self._bias
        return functional.linear(x, self._quantised.to(x.dtype) * self._scale[:, None], self._bias)
