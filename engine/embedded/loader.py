"""A checkpoint's tensors as layers: stacked, folded, in a precision and on a device.

What a family stores otherwise than the decoder computes is put right here, once, so that no step pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.embedded.config import ModelConfig
from engine.embedded.experts import Experts
from engine.embedded.linears import Linear, hidden_dtype, kept_dtype, make_linear
from engine.embedded.mlp import Mlp, make_gate
from engine.embedded.norm import RMSNorm
from engine.embedded.rope import pair_order
from engine.embedded.weights import Weights


class Loader:
    """Builds the parts of one model."""

    def __init__(self, config: ModelConfig, weights: Weights, *, precision: str, device: torch.device) -> None:
        self._config = config
        self._weights = weights
        self._precision = precision
        self._device = device
        self._dtype = hidden_dtype(precision, device)
        self._gate = make_gate(config.activation, device, self._dtype)

    def embedding(self) -> tuple[torch.Tensor, Linear]:
        """Return the embedding table (vocab_size, hidden_size) and the head."""
        config = self._config
        shape = (config.vocab_size, config.hidden_size)
        table = self._weights.take("model.embed_tokens.weight", shape)
        # A tied checkpoint may carry a copy of the head; the config is what counts.
        head = table if config.is_tied else self._weights.take("lm_head.weight", shape)
        dtype = kept_dtype(self._precision, self._device)
        embedding = table.to(device=self._device, dtype=dtype)
        if config.family.scales_embedding:
            embedding = embedding * torch.tensor(config.hidden_size**0.5, dtype=dtype)
        return embedding, make_linear(head, None, precision=self._precision, device=self._device, is_head=True)

    def norm(self, name: str) -> RMSNorm:
        """Return the norm over hidden states of that name."""
        return self._norm(self._norm_weight(name, self._config.hidden_size))

    def qk_norm(self, prefix: str) -> RMSNorm | None:
        """Return the norm of query and key heads as one, where the family has it."""
        config = self._config
        if not config.family.has_qk_norm:
            return None
        query, key = (self._norm_weight(f"{prefix}self_attn.{letter}_norm", config.head_dim) for letter in "qk")
        return self._norm(torch.cat([query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)]))

    def qkv(self, prefix: str) -> Linear:
        """Return query, key and value projections as one product, rotary pairs head_dim / 2 apart."""
        config = self._config
        rows = [heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        weight, bias = self._stack(prefix, config.family.names.qkv, rows, config.hidden_size, config.has_qkv_bias)
        if config.rope.rotary_dim < config.head_dim:
            heads = torch.arange(config.num_heads + config.num_kv_heads)[:, None] * config.head_dim
            order = (heads + pair_order(config.rope.rotary_dim, config.head_dim)).flatten()
            weight[: len(order)] = weight[order]
        return self._linear(weight, bias)

    def out(self, prefix: str) -> Linear:
        """Return the attention's output projection."""
        config = self._config
        num_inputs = config.num_heads * config.head_dim
        name = ("self_attn.o_proj",)
        return self._linear(*self._stack(prefix, name, [config.hidden_size], num_inputs, config.has_out_bias))

    def mlp(self, prefix: str) -> Mlp:
        """Return a layer's MLP."""
        names = (self._config.family.names.gate_up, "mlp.down_proj")
        return self._mlp(prefix, *names, self._config.intermediate_size, self._config.has_mlp_bias)

    def experts(self, prefix: str) -> Experts:
        """Return a layer's mixture of experts."""
        config, names = self._config, self._config.family.names
        assert config.experts is not None  # a layer has experts only where the config has
        router = self._weights.take(f"{prefix}{names.router}.weight", (config.experts.num_experts, config.hidden_size))
        gate, up, down = names.expert
        mlps = [
            self._mlp(f"{prefix}{names.experts}.{i}.", (gate, up), down, config.experts.intermediate_size, False)
            for i in range(config.experts.num_experts)
        ]
        return Experts(config.experts, router.to(device=self._device, dtype=self._dtype), mlps)

    def _mlp(self, prefix: str, gate_up: Sequence[str], down: str, size: int, has_bias: bool) -> Mlp:
        hidden_size = self._config.hidden_size
        stacked = self._stack(prefix, gate_up, [size, size], hidden_size, has_bias)
        last = self._stack(prefix, (down,), [hidden_size], size, has_bias)
        return Mlp(self._linear(*stacked), self._linear(*last), self._gate)

    def _stack(
        self, prefix: str, names: Sequence[str], rows: Sequence[int], num_inputs: int, has_bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Join projections of the same input; a file may have them joined under one name."""
        rows = [sum(rows)] if len(names) == 1 else rows
        named = [(f"{prefix}{name}", n) for name, n in zip(names, rows, strict=True)]
        weight = torch.cat([self._weights.take(f"{name}.weight", (n, num_inputs)) for name, n in named])
        if not has_bias:
            return weight, None
        return weight, torch.cat([self._weights.take(f"{name}.bias", (n,)) for name, n in named])

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return make_linear(weight, bias, precision=self._precision, device=self._device)

    def _norm_weight(self, name: str, size: int) -> torch.Tensor:
        return self._weights.take(f"{name}.weight", (size,)) + self._config.family.norm_offset

    def _norm(self, weight: torch.Tensor) -> RMSNorm:
        return RMSNorm(weight.to(self._device), self._config.rms_norm_eps)
