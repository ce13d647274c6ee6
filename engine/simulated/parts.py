"""What decoder layers are made of, and how many weights, cached values and multiplications each part takes.

Counts only: knows nothing of precisions, GPUs or time. Formulas follow the reference implementations in Hugging Face
transformers; multiply-adds count as two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: Operations per element of a Mamba-2 state and token: decay, input and read-out, each a multiply-add.
_STATE_FLOPS = 6


class Matrices(NamedTuple):
    """Weights of one part by how tensor parallelism treats them."""

    #: Cut evenly over the GPUs.
    cut: int
    #: Cut by key-value heads, so never thinner than one head.
    cut_by_kv_head: int = 0
    #: Held by every GPU.
    whole: int = 0
    #: Biases, norms, convolutions, routers: held by every GPU, and never quantized.
    unquantized: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention; multi-head is the case of as many key-value heads as heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    #: Sees only the last tokens, as many as the model's window.
    is_local: bool = False
    #: Values in biases, query and key norms, and sinks.
    num_small: int = 0

    def matrices(self, hidden_size: int) -> Matrices:
        """Count the weights of query, key, value and output projections."""
        return Matrices(
            cut=2 * hidden_size * self.num_heads * self.head_dim,
            cut_by_kv_head=2 * hidden_size * self.num_kv_heads * self.head_dim,
            unquantized=self.num_small,
        )

    @property
    def kv_values_per_token(self) -> int:
        """Values that one token leaves in the KV cache."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def flops_per_pair(self) -> int:
        """Operations for one token to attend to one: its score and its share of the sum."""
        return 4 * self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one low-rank vector per token is cached.

    Decoding absorbs the up-projection of keys and values into queries and outputs, and so works on the cached vectors
    themselves; prompts are computed with keys and values unfolded.
    """

    num_heads: int
    #: None projects queries in one go.
    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def matrices(self, hidden_size: int) -> Matrices:
        """Count the weights; the projections into the low ranks are held by every GPU."""
        queries = self.num_heads * (self.nope_dim + self.rope_dim)
        whole = hidden_size * (self.kv_rank + self.rope_dim)
        norms = self.kv_rank
        if self.query_rank is None:
            cut = hidden_size * queries
        else:
            cut = self.query_rank * queries
            whole += hidden_size * self.query_rank
            norms += self.query_rank
        cut += self.unfolding_weights + self.num_heads * self.value_dim * hidden_size
        return Matrices(cut=cut, whole=whole, unquantized=norms)

    @property
    def unfolding_weights(self) -> int:
        """Weights that turn a cached vector into keys and values of all heads."""
        return self.kv_rank * self.num_heads * (self.nope_dim + self.value_dim)

    @property
    def kv_values_per_token(self) -> int:
        """Values that one token leaves in the KV cache, the same for every GPU."""
        return self.kv_rank + self.rope_dim

    @property
    def flops_per_pair(self) -> int:
        """Operations for a decoded token to attend to one, on cached vectors."""
        return 2 * self.num_heads * (2 * self.kv_rank + self.rope_dim)

    @property
    def prompt_flops_per_pair(self) -> int:
        """Operations for a prompt token to attend to one, on unfolded keys and values."""
        return 2 * self.num_heads * (self.nope_dim + self.rope_dim + self.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """A Mamba-2 mixer (arXiv 2405.21060): a state per sequence instead of keys and values per token."""

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    conv_kernel: int
    #: Bytes of one value of the recurrent state; the convolution's is kept in 16 bit.
    state_value_bytes: int = 2

    def matrices(self, hidden_size: int) -> Matrices:
        """Count the weights of input and output projections; convolution, decays and norm stay whole."""
        inner = self.num_heads * self.head_dim
        into = hidden_size * (inner + self._conv_dim + self.num_heads)
        small = self._conv_dim * (self.conv_kernel + 1) + 3 * self.num_heads + inner
        return Matrices(cut=into + inner * hidden_size, unquantized=small)

    @property
    def _conv_dim(self) -> int:
        return self.num_heads * self.head_dim + 2 * self.num_groups * self.state_size

    @property
    def state_bytes(self) -> int:
        """Bytes that one sequence keeps, however long it is."""
        recurrent = self.num_heads * self.head_dim * self.state_size * self.state_value_bytes
        return recurrent + 2 * self._conv_dim * (self.conv_kernel - 1)

    @property
    def flops_per_token(self) -> int:
        """Operations of the recurrence for one token."""
        return _STATE_FLOPS * self.num_heads * self.head_dim * self.state_size


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """A dense feed-forward block: three matrices when gated (SwiGLU), else two."""

    intermediate_size: int
    num_matrices: int = 3

    def matrices(self, hidden_size: int) -> Matrices:
        """Count the weights."""
        return Matrices(cut=self.num_matrices * hidden_size * self.intermediate_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: a router picks `top_k` of them per token; a shared one, if any, sees every token."""

    num_experts: int
    top_k: int
    intermediate_size: int
    num_matrices: int = 3
    #: Width of what every token passes besides; 0 where there is nothing of the kind.
    shared_size: int = 0
    #: Values in the biases of one expert.
    num_biases: int = 0

    def matrices(self, hidden_size: int) -> Matrices:
        """Count the weights of shared expert and router, without the routed experts."""
        return Matrices(
            cut=self.num_matrices * hidden_size * self.shared_size, unquantized=hidden_size * self.num_experts
        )

    def expert_weights(self, hidden_size: int) -> int:
        """Count the weights of one routed expert's matrices."""
        return self.num_matrices * hidden_size * self.intermediate_size

    @property
    def miss_chance(self) -> float:
        """Chance that a token leaves one given expert out, so that n tokens all do with its n-th power.

        Assumes that tokens choose independently and that all experts are equally likely. Trained routers are less even
        and neighbouring tokens agree more, so that fewer experts are in use: what follows is an upper estimate.
        """
        return 1.0 - self.top_k / self.num_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One entry of the decoder's stack; hybrids have layers with only one of the two parts."""

    mixer: Attention | LatentAttention | Mamba | None
    feed_forward: FeedForward | Experts | None
    #: Norms of the hidden size.
    num_norms: int = 2

    @property
    def num_blocks(self) -> int:
        """Parts there are: 2 in a plain transformer layer."""
        return (self.mixer is not None) + (self.feed_forward is not None)

    def matrices(self, hidden_size: int) -> Matrices:
        """Sum the weights of both parts and the norms, without routed experts."""
        total = Matrices(cut=0, unquantized=self.num_norms * hidden_size)
        for part in (self.mixer, self.feed_forward):
            if part is not None:
                total = Matrices(*(a + b for a, b in zip(total, part.matrices(hidden_size), strict=True)))
        return total
