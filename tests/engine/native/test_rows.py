"""Norms and gates."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch.nn import functional

from engine.embedded.native.rows import NativeRows


@pytest.mark.parametrize("size", [1, 16, 63, 64, 576])
@pytest.mark.parametrize("num_rows", [1, 3, 40])
def test_norms_are_torchs(kernels: ctypes.CDLL, num_rows: int, size: int) -> None:
    """The kernel's RMSNorm is torch's within fp32 rounding, whatever the size."""
    x, weight = 3 * torch.randn(num_rows, size), torch.randn(size)

    assert torch.allclose(
        functional.rms_norm(x, (size,), weight, 1e-5), NativeRows(kernels).norm(x, weight, 1e-5), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("size", [1, 17, 64, 300])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates_are_torchs(kernels: ctypes.CDLL, activation: str, size: int) -> None:
    """The gate is torch's within fp32 rounding, also where the exponential leaves its range."""
    gate_up = torch.cat([torch.linspace(-120, 120, 9)[:, None].expand(9, size), torch.randn(9, size)], dim=1)
    gate, up = gate_up.chunk(2, dim=1)
    activated = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")

    assert torch.allclose(activated * up, NativeRows(kernels).gate(gate_up, activation), rtol=1e-5, atol=1e-6)


def test_what_is_not_finite_stays_so(kernels: ctypes.CDLL) -> None:
    """BUG-39: a NaN passes norm and gate, and stays in its row."""
    x = torch.ones(2, 64)
    x[0, 3] = float("nan")
    rows = NativeRows(kernels)

    assert rows.norm(x, torch.ones(64), 1e-5).isfinite().all(dim=1).tolist() == [False, True]
    assert rows.gate(x, "silu").isfinite().all(dim=1).tolist() == [False, True]
