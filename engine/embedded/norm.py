"""RMSNorm (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch

from engine.embedded.native.library import kernels_for
from engine.embedded.native.rows import NativeRows


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, computed in fp32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight = weight.contiguous()
        self._eps = eps
        kernels = kernels_for(weight.device)
        self._native = None if kernels is None or weight.dim() > 1 else NativeRows(kernels)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis."""
        if self._native is not None and x.dtype is torch.float32:
            return self._native.norm(x, self._weight, self._eps)
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True).add_(self._eps))
        return (wide * scale).mul_(self._weight).to(x.dtype)
