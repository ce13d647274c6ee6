"""The gated MLP: down(activation(gate(x)) * up(x)), gate and up as one product (Shazeer, 2020)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from engine.embedded.linears import Linear, add_product
from engine.embedded.native.library import kernels_for
from engine.embedded.native.rows import NativeRows

#: (rows, size) of gate and up side by side, (rows, 2 x size).
Gate = Callable[[torch.Tensor], torch.Tensor]


class Mlp:
    """One MLP, or one expert."""

    def __init__(self, gate_up: Linear, down: Linear, gate: Gate) -> None:
        self._gate_up = gate_up
        self._down = down
        self._gate = gate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return (rows, hidden_size) of x (rows, hidden_size)."""
        return self._down(self._gate(self._gate_up(x)))

    def add_to(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return y plus what the call returns; y may be overwritten."""
        return add_product(self._down, self._gate(self._gate_up(x)), y)


def make_gate(activation: str, device: torch.device, dtype: torch.dtype) -> Gate:
    """Return activation(gate) * up for hidden states of a type; the activation is `silu` or tanh's gelu."""
    kernels = kernels_for(device)
    if kernels is not None and dtype is torch.float32:
        return partial(NativeRows(kernels).gate, activation=activation)
    return partial(_gated, activation=activation)


def _gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    activated = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    return activated * up
