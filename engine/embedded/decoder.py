"""The decoder: norms, rotary attention with grouped queries, gated MLPs or experts. Tokens in, hidden states out.

One for all families: what they differ in is in the config, or put right when the weights are loaded. Knows nothing of
requests or scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.embedded.attention import Angles, AttentionSpec, PagedAttention, softcap
from engine.embedded.config import ModelConfig
from engine.embedded.kv_cache import KVCache
from engine.embedded.linears import add_product, hidden_dtype
from engine.embedded.loader import Loader
from engine.embedded.native.attention import NativeAttention
from engine.embedded.norm import RMSNorm
from engine.embedded.rope import rope_table
from engine.embedded.rope_config import RopeConfig
from engine.embedded.step_input import StepInput
from engine.embedded.weights import Weights


class Decoder:
    """A loaded model."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        cache: KVCache,
        *,
        precision: str,
        max_context: int,
        device: torch.device,
    ) -> None:
        """Load a model that keeps its keys and values in `cache`."""
        self.config = config
        loader = Loader(config, weights, precision=precision, device=device)
        self._embedding, self._head = loader.embedding()
        ropes = _ropes(config)
        self._layers = [_Layer(config, loader, index, ropes, cache) for index in range(config.num_layers)]
        self._norm = loader.norm("model.norm")
        weights.require_all_taken()
        self._dtype = hidden_dtype(precision, device)
        self._tables = [_table(config, rope, max_context, self._dtype, device) for rope in ropes]

    def forward(self, step: StepInput) -> torch.Tensor:
        """Return the last layer's hidden states (rows, hidden_size), writing keys and values to the cache."""
        hidden = self._embedding[step.token_ids].to(self._dtype)
        angles = self._angles(step)
        for layer in self._layers:
            hidden = layer.forward(hidden, angles[layer.table], step)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return fp32 logits (rows, vocab_size) of hidden states."""
        logits = self._head(self._norm(hidden)).float()
        return logits if self.config.logit_softcap is None else softcap(logits, self.config.logit_softcap)

    def _angles(self, step: StepInput) -> list[Angles]:
        """Return the rows' cos and sin of each table; the native kernel looks them up itself, in all of it."""
        if step.tables is not None:
            return self._tables
        return [(cos[step.positions], sin[step.positions]) for cos, sin in self._tables]


class _Layer:
    """One decoder layer."""

    def __init__(
        self, config: ModelConfig, loader: Loader, index: int, ropes: Sequence[RopeConfig], cache: KVCache
    ) -> None:
        self._config = config
        is_local = config.local_layers[index]
        #: Which of `ropes` it rotates by.
        self.table = ropes.index(config.local_rope if is_local else config.rope)
        spec = AttentionSpec(
            scale=config.attention_scale,
            softcap=config.attention_softcap,
            window=config.sliding_window if is_local else None,
        )
        self._attention = _attention(cache, index, spec, config.num_heads)
        prefix = f"model.layers.{index}."
        self._qkv, self._out = loader.qkv(prefix), loader.out(prefix)
        self._qk_norm = loader.qk_norm(prefix)
        self._mlp = loader.experts(prefix) if config.expert_layers[index] else loader.mlp(prefix)
        self._attention_norm = loader.norm(f"{prefix}input_layernorm")
        self._mlp_norm = loader.norm(f"{prefix}{config.family.names.mlp_norm}")
        self._post_attention_norm: RMSNorm | None = None
        self._post_mlp_norm: RMSNorm | None = None
        if config.family.has_post_norms:
            self._post_attention_norm = loader.norm(f"{prefix}post_attention_layernorm")
            self._post_mlp_norm = loader.norm(f"{prefix}post_feedforward_layernorm")

    def forward(self, hidden: torch.Tensor, angles: Angles, step: StepInput) -> torch.Tensor:
        """Return the hidden states after this layer; those that come in may be overwritten."""
        attended = self._attention(self._heads(hidden), angles, step)
        if self._post_attention_norm is None:
            hidden = add_product(self._out, attended, hidden)
        else:
            hidden = hidden + self._post_attention_norm(self._out(attended))
        normed = self._mlp_norm(hidden)
        if self._post_mlp_norm is None:
            return self._mlp.add_to(hidden, normed)
        return hidden + self._post_mlp_norm(self._mlp(normed))

    def _heads(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the queries, keys and values, (rows, num_heads + 2 num_kv_heads, head_dim)."""
        config = self._config
        qkv = self._qkv(self._attention_norm(hidden)).view(len(hidden), -1, config.head_dim)
        if self._qk_norm is not None:
            num_normed = config.num_heads + config.num_kv_heads
            qkv[:, :num_normed] = self._qk_norm(qkv[:, :num_normed])
        return qkv


def _attention(cache: KVCache, layer: int, spec: AttentionSpec, num_heads: int) -> PagedAttention | NativeAttention:
    """Return a layer's attention: the kernel's where it reads the cache."""
    kernels = cache.kernels
    if kernels is None:
        return PagedAttention(cache, layer, spec, num_heads)
    return NativeAttention(kernels, cache, layer, spec, num_heads)


def _ropes(config: ModelConfig) -> list[RopeConfig]:
    """Return the rotary embeddings that the layers use, each once."""
    return list(dict.fromkeys(config.local_rope if is_local else config.rope for is_local in config.local_layers))


def _table(
    config: ModelConfig, rope: RopeConfig, max_context: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin, (max_context, 1, head_dim) each."""
    cos, sin = rope_table(rope, config.head_dim, max_context)
    return cos.to(device, dtype)[:, None], sin.to(device, dtype)[:, None]
