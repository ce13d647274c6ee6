"""What GPUs send one another per token of a step, split into what stays in a scale-up domain and what leaves it.

Neighbours in a tensor-parallel group sit side by side; pipeline stages follow one another; replicas come last. Bytes
are what one GPU sends, in 16 bit unless said. Knows nothing of links' speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.simulated.shapes import ModelShape

_ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How many GPUs share what."""

    tensor: int
    pipeline: int
    data: int
    #: GPUs of one stage, over all replicas, that experts are spread over; 1 cuts experts like the rest.
    experts_over: int
    #: GPUs in one scale-up domain.
    domain_size: int

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return self.tensor * self.pipeline * self.data


class Sent(NamedTuple):
    """Bytes one GPU sends inside a scale-up domain and beyond it, and in how many collectives of either kind."""

    up_bytes: float = 0.0
    num_up: float = 0.0
    out_bytes: float = 0.0
    num_out: float = 0.0

    def plus(self, other: Sent) -> Sent:
        """Add another kind of message."""
        return Sent(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Sent:
        """Repeat it."""
        return Sent(*(value * factor for value in self))


def all_gather(num_bytes: float, group: int, domain_size: int) -> Sent:
    """Have each of a group end up with all of `num_bytes`, of which it had its share; reduce-scatter is its mirror.

    A group wider than a domain first shares between domains, then within, as NCCL does.
    """
    if group == 1:
        return Sent()
    inside = min(group, domain_size)
    domains = -(-group // inside)
    if domains == 1:
        return Sent(up_bytes=num_bytes * (inside - 1) / inside, num_up=1)
    out_bytes = num_bytes / inside * (domains - 1) / domains
    up_bytes = num_bytes * (inside - 1) / inside
    return Sent(up_bytes=up_bytes, num_up=1 if inside > 1 else 0, out_bytes=out_bytes, num_out=1)


def all_reduce(num_bytes: float, group: int, domain_size: int) -> Sent:
    """Have each of a group end up with the sum of `num_bytes` of each: a reduce-scatter and an all-gather."""
    half = all_gather(num_bytes, group, domain_size)
    return Sent(2 * half.up_bytes, half.num_up, 2 * half.out_bytes, half.num_out)


def per_token(shape: ModelShape, grid: Grid, *, dispatch_bytes: float) -> Sent:
    """What one GPU sends for one token of its replica, averaged over the stages.

    Tensor parallelism sums the embedding and every block's output. Where experts lie on several replicas' GPUs, tokens
    travel to them and back instead, `dispatch_bytes` per value on the way there. Experts spread over one replica's
    GPUs alone need no such journey: every GPU there has all tokens, and the sum is the one of tensor parallelism.
    """
    hidden_bytes = shape.hidden_size * _ACTIVATION_BYTES
    is_routed = grid.experts_over > 1 and grid.data > 1
    num_routed = shape.num_expert_layers if is_routed else 0
    sums = all_reduce(hidden_bytes, grid.tensor, grid.domain_size).times(shape.num_blocks - num_routed + 1)
    # The sequence is cut over the tensor group before routing and put together after it (vLLM does so, too).
    rejoin = all_gather(hidden_bytes, grid.tensor, grid.domain_size).times(num_routed)
    routed = _routed(shape, grid, dispatch_bytes=dispatch_bytes).times(num_routed)
    within = sums.plus(rejoin).plus(routed).times(1 / grid.pipeline)
    return within.plus(_hand_on(hidden_bytes / grid.tensor, grid))


def per_sampled(shape: ModelShape, grid: Grid) -> Sent:
    """What one GPU sends for one sampled token: the logits, which the tensor group cuts by vocabulary."""
    logits = shape.vocab_size * _ACTIVATION_BYTES
    return all_gather(logits, grid.tensor, grid.domain_size).times(1 / grid.pipeline)


def _routed(shape: ModelShape, grid: Grid, *, dispatch_bytes: float) -> Sent:
    """One layer's way to the experts and back; copies of a token for one GPU travel once, as in DeepEP."""
    experts = shape.experts
    if experts is None or grid.experts_over == 1:
        return Sent()
    group = grid.experts_over
    copies = group * (1.0 - (1.0 - 1.0 / group) ** experts.top_k)
    num_bytes = copies * shape.hidden_size * (dispatch_bytes + _ACTIVATION_BYTES) / grid.tensor
    # Of one stage's GPUs, those in a domain: whole replicas lie between them when there are more stages.
    near = min(group, max(min(grid.tensor, grid.domain_size),
                          grid.domain_size // (grid.tensor * grid.pipeline) * grid.tensor))  # fmt: skip
    return Sent(
        up_bytes=num_bytes * (near - 1) / group,
        num_up=2 if near > 1 else 0,
        out_bytes=num_bytes * (group - near) / group,
        num_out=2 if group > near else 0,
    )


def _hand_on(num_bytes: float, grid: Grid) -> Sent:
    """Activations from stage to stage, averaged over the stages."""
    borders = grid.pipeline - 1
    near_stages = max(1, grid.domain_size // grid.tensor)
    out = -(-grid.pipeline // near_stages) - 1
    share = 1 / grid.pipeline
    up = borders - out
    return Sent(num_bytes * up * share, up * share, num_bytes * out * share, out * share)
