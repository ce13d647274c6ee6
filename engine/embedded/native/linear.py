"""Products of fp32 rows with weights stored in fp32, bf16, int8 or int4, which the kernel widens in registers.

Every output adds its products in one order, whatever the number of rows: a row's result does not depend on its company.
On a CPU that multiplies pairs of bf16 (AVX512_BF16), inputs of bf16 and int8 weights are rounded to bf16 first, at any
number of rows; elsewhere they stay fp32.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_int64, c_void_p
from typing import Any

import torch
from torch.nn import functional

from engine.embedded.formats import Int4Groups, Int8Rows

#: What `wf_linear` calls the formats.
_FP32, _BF16, _INT8, _INT4 = 0, 1, 3, 4
#: Inputs must be a multiple of it (STEP in linear.cpp).
_STEP = 4
_ARGUMENTS: list[type[Any]] = [c_int, *[c_void_p] * 5, *[c_int64] * 6, c_int, c_int]

StoredWeight = torch.Tensor | Int8Rows | Int4Groups


class NativeLinear:
    """A weight (out, in) as the kernel reads it: fp32 or bf16 as they are, or a record of int8 or int4."""

    def __init__(self, kernels: ctypes.CDLL, weight: StoredWeight, bias: torch.Tensor | None) -> None:
        """Pack the weight; `fits` must hold."""
        self._run = kernels.wf_linear
        self._run.argtypes, self._run.restype = _ARGUMENTS, None
        panel = kernels.wf_panel()
        data = weight if isinstance(weight, torch.Tensor) else weight.data
        self._num_outputs = len(data)
        self._num_inputs = data.shape[1] * (2 if isinstance(weight, Int4Groups) else 1)
        self._group = weight.group_size if isinstance(weight, Int4Groups) else 0
        self._format, packed, scales = _packed(weight, panel, makes_pairs=bool(kernels.wf_makes_pairs()))
        #: Holds what the pointers below point to.
        self._held = (packed, scales, None if bias is None else bias.float().contiguous())
        self._pointers = tuple(None if part is None else part.data_ptr() for part in self._held)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return fp32 (rows, out) of x (rows, in)."""
        y = torch.empty((x.shape[0], self._num_outputs))
        self._multiply(x, y, is_added=False)
        return y

    def add_to(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add the product of x (rows, in) to fp32 y (rows, out), in place."""
        self._multiply(x, y, is_added=True)
        return y

    def _multiply(self, x: torch.Tensor, y: torch.Tensor, *, is_added: bool) -> None:
        if x.dtype is not torch.float32 or x.stride(1) != 1:
            x = x.float().contiguous()
        num_rows, num_inputs = x.shape
        if num_inputs != self._num_inputs:
            raise ValueError(f"rows have {num_inputs} inputs, the weight takes {self._num_inputs}")
        self._run(
            self._format,
            x.data_ptr(),
            *self._pointers,
            y.data_ptr(),
            num_rows,
            num_inputs,
            self._num_outputs,
            self._group,
            x.stride(0),
            y.stride(0),
            is_added,
            torch.get_num_threads(),
        )


def fits(weight: StoredWeight) -> bool:
    """Tell whether the kernel takes a weight's shape."""
    if isinstance(weight, Int4Groups):
        num_inputs = 2 * weight.data.shape[1]
        return num_inputs % weight.group_size == 0 and weight.group_size % _STEP == 0
    data = weight if isinstance(weight, torch.Tensor) else weight.data
    return data.shape[1] % _STEP == 0


def _packed(weight: StoredWeight, panel: int, *, makes_pairs: bool) -> tuple[int, torch.Tensor, torch.Tensor | None]:
    """Return what `wf_linear` calls the format, the weight as it reads it, and its scales."""
    if isinstance(weight, Int8Rows):
        panels = _panels(weight.data, panel)
        return _INT8, _in_pairs(panels) if makes_pairs else panels, weight.scales.contiguous()
    if isinstance(weight, Int4Groups):
        scales, offsets = (_panels(part.float(), panel) for part in (weight.scales, weight.offsets))
        return _INT4, _panels(weight.data, panel), torch.stack([scales, offsets], dim=2).contiguous()
    if weight.dtype is torch.bfloat16:
        return _BF16, _in_pairs(_panels(weight, panel)), None
    return _FP32, _panels(weight.float(), panel), None


def _panels(weight: torch.Tensor, panel: int) -> torch.Tensor:
    """Return (panels, columns, panel) of (out, columns), filled up with zeros."""
    padded = functional.pad(weight, (0, 0, 0, -len(weight) % panel))
    return padded.view(-1, panel, weight.shape[1]).transpose(1, 2).contiguous()


def _in_pairs(panels: torch.Tensor) -> torch.Tensor:
    """Put two inputs of an output side by side: (panels, columns / 2, panel, 2)."""
    return panels.view(panels.shape[0], -1, 2, panels.shape[2]).transpose(2, 3).contiguous()
