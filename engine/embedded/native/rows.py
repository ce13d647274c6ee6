"""What a decoder does with rows beside products: norms and gates, in fp32."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p

import torch


class NativeRows:
    """The kernels of `rows.cpp` that need no cache."""

    def __init__(self, kernels: ctypes.CDLL) -> None:
        self._norm, self._gate = kernels.wf_norm, kernels.wf_gate
        self._norm.argtypes = (c_void_p, c_void_p, c_float, c_void_p, c_int64, c_int64, c_int64, c_int64, c_int)
        self._gate.argtypes = (c_void_p, c_void_p, c_int64, c_int64, c_int, c_int)

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return x / sqrt(mean(x^2) + eps) * weight over the last axis of fp32 x, contiguous."""
        size = x.shape[-1]
        x = x.contiguous()
        y = torch.empty_like(x)
        num_rows = x.numel() // size
        self._norm(
            x.data_ptr(), weight.data_ptr(), eps, y.data_ptr(), num_rows, size, size, size, torch.get_num_threads()
        )
        return y

    def gate(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """Return activation(gate) * up, fp32 (rows, size), of both side by side, (rows, 2 x size) contiguous."""
        num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        y = torch.empty(num_rows, size)
        is_gelu = activation != "silu"
        self._gate(gate_up.data_ptr(), y.data_ptr(), num_rows, size, is_gelu, torch.get_num_threads())
        return y
