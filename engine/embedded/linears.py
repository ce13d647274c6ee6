"""Linear layers in each precision: one class for each way in which a product is computed.

| layer              | weights                 | product                                              |
|--------------------|-------------------------|------------------------------------------------------|
| `NativeLinear`     | fp32, bf16, int8, int4  | on a CPU: widened in registers (`native.linear`)     |
| `DenseLinear`      | fp32, bf16 or fp16      | as the weights                                       |
| `PackedLinear`     | fp32 in oneDNN's layout | fp32, on a CPU without the kernels                   |
| `WeightOnlyLinear` | int8 or int4            | as hidden states, after unpacking                    |
| `Int8Linear`       | int8                    | int8 x int8 summed in int32, inputs rounded per row  |
| `Fp8Linear`        | e4m3                    | e4m3 x e4m3, inputs rounded per row                  |
| `Fp4Linear`        | nvfp4 or mxfp4          | e2m1 x e2m1 with group scales, inputs rounded        |
| `EmulatedLinear`   | fp32, rounded before    | fp32 of rounded inputs: the numbers, not the speed   |

What a precision is made of stands in `precision`, what a format means in `formats`. Prepacking is what makes
small-batch fp32 fast on a CPU (measured: docs/log.md, 2026-11-30). Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional
from torch.nn.functional import ScalingType, SwizzleType

from engine.embedded.formats import (
    Fp8Rows,
    Int4Groups,
    Int8Rows,
    Mxfp4Groups,
    Nvfp4Groups,
    as_tf32,
    to_fp8,
    to_int4,
    to_int8,
    to_mxfp4,
    to_nvfp4,
)
from engine.embedded.native.library import kernels_for
from engine.embedded.native.linear import NativeLinear, fits
from engine.embedded.precision import Capability, Mode, is_native, mode_of
from engine.errors import InvalidSettings

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Rows of inputs below which CUDA has no int8 product (torch._int_mm).
_MIN_CUDA_INT8_ROWS = 32
#: What the tensor cores' 8-bit and 4-bit products ask of a layer's sizes (torch's scaled_mm).
_MULTIPLES = {"int8": (8, 8), "fp8": (16, 16), "nvfp4": (16, 32), "mxfp4": (16, 32)}


class Linear(Protocol):
    """x (rows, in) -> (rows, out)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""


def capability_of(device: torch.device) -> Capability | None:
    """Return a GPU's compute capability; None of a CPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def hidden_dtype(precision: str, device: torch.device | None = None) -> torch.dtype:
    """Return what hidden states are held in on a device (a CPU)."""
    mode = mode_of(precision)
    is_gpu = device is not None and device.type == "cuda"
    return _DTYPES[mode.hidden_on_gpu or mode.hidden if is_gpu else mode.hidden]


def kept_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return what embedding and head are held in, and keys and values unless settings say otherwise."""
    kept = mode_of(precision).kept
    return hidden_dtype(precision, device) if kept is None or device.type == "cuda" else _DTYPES[kept]


def prepare_device(precision: str, device: torch.device) -> None:
    """Let fp32 products of this process round their inputs to TF32, or not: torch has one switch for all of them."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, *, precision: str, device: torch.device, is_head: bool = False
) -> Linear:
    """Build a layer from an fp32 weight (out, in); where the device lacks the precision it is emulated.

    The head is no narrower than 16 bits: its rows are the vocabulary, whose rare tokens are the first to suffer.
    Raises InvalidSettings where the device's products do not take the layer's sizes.
    """
    mode, dtype = mode_of(precision), hidden_dtype(precision, device)
    weight = weight.to(device)
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    is_emulated = not is_native(precision, capability_of(device))
    if mode.inputs == "tf32" and is_emulated:
        return EmulatedLinear(as_tf32(weight), bias, as_tf32)
    if is_head:
        return _dense(weight.to(kept_dtype(precision, device)), bias)
    if mode.weights in _DTYPES:
        return _dense(weight.to(_DTYPES[mode.weights]), bias)
    if is_emulated:
        return EmulatedLinear(_rounded(weight, mode), bias, lambda x: _rounded(x, mode))
    if mode.inputs is None:
        return _weight_only(to_int8(weight) if mode.group_size is None else to_int4(weight, mode.group_size), bias)
    return _narrow(weight, bias, precision)


def add_product(linear: Linear, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return y + linear(x), (rows, out); y may be overwritten."""
    return linear.add_to(y, x) if isinstance(linear, NativeLinear) else y + linear(x)


def _dense(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    kernels = kernels_for(weight.device)
    if kernels is not None and weight.dtype in (torch.float32, torch.bfloat16) and fits(weight):
        return NativeLinear(kernels, weight, bias)
    if weight.dtype is torch.float32 and weight.device.type == "cpu" and torch._C._has_mkldnn:
        return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)


def _weight_only(weight: Int8Rows | Int4Groups, bias: torch.Tensor | None) -> Linear:
    kernels = kernels_for(weight.data.device)
    if kernels is not None and fits(weight):
        return NativeLinear(kernels, weight, bias)
    return WeightOnlyLinear(weight, bias)


def _narrow(weight: torch.Tensor, bias: torch.Tensor | None, precision: str) -> Linear:
    """Build a layer whose inputs are rounded, too."""
    weights = mode_of(precision).weights
    rows, columns = weight.shape
    of_rows, of_columns = _MULTIPLES[weights]
    if weight.device.type == "cuda" and (rows % of_rows or columns % of_columns):
        raise InvalidSettings(
            f"precision is {precision!r}, whose products need layers of multiples of {of_rows} outputs and "
            f"{of_columns} inputs; this model has one of {rows} and {columns}: choose another precision"
        )
    if weights == "int8":
        return Int8Linear(to_int8(weight), bias)
    if weights == "fp8":
        return Fp8Linear(to_fp8(weight), bias)
    return Fp4Linear(to_nvfp4(weight) if weights == "nvfp4" else to_mxfp4(weight), bias)


def _rounded(values: torch.Tensor, mode: Mode) -> torch.Tensor:
    """Return fp32 values as a format that the device lacks would hold them, each row by itself."""
    rounding: dict[str, Callable[[torch.Tensor], Int8Rows | Fp8Rows | Nvfp4Groups | Mxfp4Groups]] = {
        "int8": to_int8, "fp8": to_fp8, "nvfp4": to_nvfp4, "mxfp4": to_mxfp4,
    }  # fmt: skip
    return rounding[mode.weights](values).dequantise()


class DenseLinear:
    """The weight as it is; wider inputs are rounded to it."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        if x.dtype is self._weight.dtype:
            return functional.linear(x, self._weight, self._bias)
        return _with_bias(functional.linear(x.to(self._weight.dtype), self._weight), self._bias, x.dtype)


class PackedLinear:
    """An fp32 weight in oneDNN's own blocked layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return product


class WeightOnlyLinear:
    """Weights that are unpacked to what hidden states are in before every product."""

    def __init__(self, weight: Int8Rows | Int4Groups, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        return functional.linear(x, self._weight.dequantise().to(x.dtype), self._bias)


class Int8Linear:
    """Int8 weights and inputs: integer products have no rounding, so an answer does not depend on the batch."""

    def __init__(self, weight: Int8Rows, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        inputs = to_int8(x.float())
        rows = inputs.data
        if x.is_cuda and len(x) < _MIN_CUDA_INT8_ROWS:
            rows = functional.pad(rows, (0, 0, 0, _MIN_CUDA_INT8_ROWS - len(x)))
        sums = torch._int_mm(rows, self._weight.data.T)[: len(x)]
        return _with_bias(sums * inputs.scales[:, None] * self._weight.scales, self._bias, x.dtype)


class Fp8Linear:
    """E4m3 weights and inputs, a scale for each row of both."""

    def __init__(self, weight: Fp8Rows, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        inputs = to_fp8(x.float())
        product = torch._scaled_mm(
            inputs.data,
            self._weight.data.T,
            scale_a=inputs.scales[:, None],
            scale_b=self._weight.scales[None],
            out_dtype=torch.bfloat16,
        )
        return _with_bias(product, self._bias, x.dtype)


class Fp4Linear:
    """E2m1 weights and inputs with a scale for each group of both."""

    def __init__(self, weight: Nvfp4Groups | Mxfp4Groups, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._scales = swizzled(weight.scales)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        is_nvfp4 = isinstance(self._weight, Nvfp4Groups)
        inputs = to_nvfp4(x.float()) if is_nvfp4 else to_mxfp4(x.float())
        recipe = ScalingType.BlockWise1x16 if is_nvfp4 else ScalingType.BlockWise1x32
        product = functional.scaled_mm(
            inputs.data.view(torch.float4_e2m1fn_x2),
            self._weight.data.view(torch.float4_e2m1fn_x2).T,
            swizzled(inputs.scales),
            recipe,
            self._scales,
            recipe,
            swizzle_a=SwizzleType.SWIZZLE_32_4_4,
            swizzle_b=SwizzleType.SWIZZLE_32_4_4,
            output_dtype=torch.bfloat16,
        )
        if isinstance(inputs, Nvfp4Groups) and isinstance(self._weight, Nvfp4Groups):
            product = product * inputs.row_scales[:, None] * self._weight.row_scales
        return _with_bias(product, self._bias, x.dtype)


class EmulatedLinear:
    """Weights and inputs that were rounded to a format which the device lacks, multiplied in fp32."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, rounded: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._rounded = rounded

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply and add the bias, if any."""
        return _with_bias(functional.linear(self._rounded(x.float()), self._weight), self._bias, x.dtype)


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """Return group scales (rows, groups) in the order in which tensor cores read them, flat.

    In tiles of 128 rows and 4 groups, filled up with zeros: the scale of row r and group g of a tile is at
    16 (r mod 32) + 4 (r div 32) + g (cuBLAS, "1D block scaling factors layout").
    """
    rows, groups = scales.shape
    raw = functional.pad(scales.view(torch.uint8), (0, -groups % 4, 0, -rows % 128))
    tiles = raw.view(raw.shape[0] // 128, 4, 32, raw.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(scales.dtype)


def _with_bias(product: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    return (product if bias is None else product + bias).to(dtype)
