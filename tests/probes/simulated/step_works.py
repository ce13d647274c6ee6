"""Steps of an 8-billion-parameter model in 16 bit on one GPU, in round figures."""

from __future__ import annotations

from typing import NamedTuple

NUM_LAYERS = 32
PARAMETERS = 7.5e9
KV_BYTES_PER_TOKEN = 131_072.0
#: Operations of attention per token and token attended to.
ATTENTION_FLOPS = 4.0 * NUM_LAYERS * 4096


class StepWork(NamedTuple):
    """What a response needs to know of a step; see `probes.simulated.work`."""

    num_gpus: int = 1
    arithmetic: str = "bf16"
    gemm_flops: float = 0.0
    attention_flops: float = 0.0
    weight_bytes: float = 2 * PARAMETERS
    kv_bytes: float = 0.0
    num_layers: int = NUM_LAYERS
    num_tokens: int = 1
    num_sampled: int = 1
    num_experts: float = 0.0
    scale_up_bytes: float = 0.0
    num_scale_up: float = 0.0
    scale_out_bytes: float = 0.0
    num_scale_out: float = 0.0
    num_stages: int = 1
    kernel_s: float = 0.0


def make_decode(batch: int, context: int = 600) -> StepWork:
    """Return a step of `batch` sequences that each get a token after `context` others."""
    return StepWork(
        gemm_flops=2 * PARAMETERS * batch,
        attention_flops=ATTENTION_FLOPS * context * batch,
        kv_bytes=KV_BYTES_PER_TOKEN * context * batch,
        num_tokens=batch,
        num_sampled=batch,
    )


def make_prefill(tokens: int) -> StepWork:
    """Return a step that computes one prompt."""
    return StepWork(
        gemm_flops=2 * PARAMETERS * tokens,
        attention_flops=ATTENTION_FLOPS * tokens * tokens / 2,
        kv_bytes=KV_BYTES_PER_TOKEN * tokens,
        num_tokens=tokens,
    )
