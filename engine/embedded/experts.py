"""Mixture of experts: each token goes through the MLPs that the router finds likeliest (Mixtral, Qwen3-MoE)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from engine.embedded.layer_config import ExpertsConfig
from engine.embedded.mlp import Mlp


class Experts:
    """A layer's experts, in the MLP's place."""

    def __init__(self, config: ExpertsConfig, router: torch.Tensor, mlps: Sequence[Mlp]) -> None:
        self._config = config
        self._router = router
        self._mlps = mlps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return (rows, hidden_size) of x (rows, hidden_size).

        Each expert takes the rows that chose it as one product; a row's sum is taken in the order of the experts, so
        that it does not depend on the rows beside it.
        """
        shares, chosen = route(x, self._router, self._config)
        output = torch.zeros_like(x)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, places = torch.where(chosen == expert)
            output.index_add_(0, rows, self._mlps[expert](x[rows]) * shares[rows, places, None])
        return output

    def add_to(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return y plus what the call returns."""
        return y + self(x)


def route(x: torch.Tensor, router: torch.Tensor, config: ExpertsConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the shares of each row's experts and which they are, both (rows, top_k).

    The router's probabilities are of all experts, in fp32; `is_normalised` makes those of the chosen ones sum to 1.
    """
    probabilities = torch.softmax(functional.linear(x, router).float(), dim=-1)
    shares, chosen = torch.topk(probabilities, config.top_k, dim=-1)
    if config.is_normalised:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return shares.to(x.dtype), chosen
