"""The Llama-family decoder: RMSNorm, rotary attention with grouped queries, SwiGLU. Weights in, hidden states out.

Query, key and value projections are one product, gate and up another. Knows nothing of requests or scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.embedded.attention import Region, attend
from engine.embedded.config import ModelConfig
from engine.embedded.kv_cache import KVCache
from engine.embedded.quantize import Linear, hidden_dtype, make_linear
from engine.embedded.rope import rope_table, rotate
from engine.embedded.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """A step's rows as tensors."""

    #: (rows,)
    token_ids: torch.Tensor
    #: (rows,) position of each token in its sequence.
    positions: torch.Tensor
    #: (rows,) where each token's key and value go: block x block_size + offset.
    slots: torch.Tensor
    regions: list[Region]


class Llama:
    """A loaded model."""

    def __init__(
        self, config: ModelConfig, weights: Weights, *, precision: str, max_context: int, device: torch.device
    ) -> None:
        self.config = config
        self._dtype = hidden_dtype(precision)
        self._device = device
        embedding = weights.take("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        self._embedding = embedding.to(device=device, dtype=self._dtype)
        self._layers = [_Layer(config, weights, i, precision, device) for i in range(config.num_layers)]
        self._norm = RMSNorm(weights.take("model.norm.weight", (config.hidden_size,)), config.rms_norm_eps, device)
        # A tied checkpoint may carry a copy of the head; the config is what counts.
        head = embedding if config.is_tied else weights.take("lm_head.weight", (config.vocab_size, config.hidden_size))
        self._head = make_linear(head, None, precision=precision, device=device, is_head=True)
        cos, sin = rope_table(config, max_context)
        self._cos, self._sin = cos.to(device, self._dtype)[:, None], sin.to(device, self._dtype)[:, None]

    def forward(self, step: StepInput, cache: KVCache) -> torch.Tensor:
        """Return the last layer's hidden states (rows, hidden_size), writing keys and values to the cache."""
        hidden = self._embedding[step.token_ids]
        cos, sin = self._cos[step.positions], self._sin[step.positions]
        for i, layer in enumerate(self._layers):
            hidden = layer.forward(hidden, cos, sin, step, cache, i)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return fp32 logits (rows, vocab_size) of hidden states."""
        return self._head(self._norm(hidden)).float()


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019), computed in fp32."""

    def __init__(self, weight: torch.Tensor, eps: float, device: torch.device) -> None:
        self._weight = weight.to(device)
        self._eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True).add_(self._eps))
        return (wide * scale).mul_(self._weight).to(x.dtype)


class _Layer:
    """One decoder layer."""

    def __init__(self, config: ModelConfig, weights: Weights, index: int, precision: str, device: torch.device) -> None:
        self._config = config
        self._is_local = config.local_layers[index]
        prefix = f"model.layers.{index}."
        hidden, head_dim = config.hidden_size, config.head_dim

        def linear(names: dict[str, int], num_inputs: int, has_bias: bool) -> Linear:
            """Join projections of the same input into one layer."""
            stacked = torch.cat([weights.take(f"{prefix}{name}.weight", (n, num_inputs)) for name, n in names.items()])
            bias = None
            if has_bias:
                bias = torch.cat([weights.take(f"{prefix}{name}.bias", (n,)) for name, n in names.items()])
            return make_linear(stacked, bias, precision=precision, device=device)

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.take(f"{prefix}{name}.weight", (hidden,)), config.rms_norm_eps, device)

        num_q, num_kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
        projections = {"self_attn.q_proj": num_q, "self_attn.k_proj": num_kv, "self_attn.v_proj": num_kv}
        self._qkv = linear(projections, hidden, config.has_qkv_bias)
        self._out = linear({"self_attn.o_proj": hidden}, num_q, config.has_out_bias)
        gate_up = {"mlp.gate_proj": config.intermediate_size, "mlp.up_proj": config.intermediate_size}
        self._gate_up = linear(gate_up, hidden, config.has_mlp_bias)
        self._down = linear({"mlp.down_proj": hidden}, config.intermediate_size, config.has_mlp_bias)
        self._attention_norm = norm("input_layernorm")
        self._mlp_norm = norm("post_attention_layernorm")

    def forward(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: StepInput, cache: KVCache, index: int
    ) -> torch.Tensor:
        """Return the hidden states after this layer."""
        hidden = hidden + self._attend(self._attention_norm(hidden), cos, sin, step, cache, index)
        gate, up = self._gate_up(self._mlp_norm(hidden)).chunk(2, dim=-1)
        return hidden + self._down(functional.silu(gate) * up)

    def _attend(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: StepInput, cache: KVCache, index: int
    ) -> torch.Tensor:
        config = self._config
        rows, num_heads, num_kv_heads = x.shape[0], config.num_heads, config.num_kv_heads
        qkv = self._qkv(x).view(rows, num_heads + 2 * num_kv_heads, config.head_dim)
        rotated = rotate(qkv[:, : num_heads + num_kv_heads], cos, sin)
        keys_values = torch.stack([rotated[:, num_heads:], qkv[:, num_heads + num_kv_heads :]], dim=1)
        cache.write(index, step.slots, keys_values)
        attended = attend(rotated[:, :num_heads], keys_values, cache, index, step.regions, is_local=self._is_local)
        return self._out(attended.reshape(rows, num_heads * config.head_dim))
