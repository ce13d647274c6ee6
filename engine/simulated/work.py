"""What one engine step asks of each GPU that serves it: bytes, FLOPs, launches and messages, on paper.

Knows nothing of how long that takes or what it costs: a device says so.
"""

from __future__ import annotations

from typing import NamedTuple


class StepWork(NamedTuple):
    """One step of one engine. Every figure is per GPU unless it says otherwise; the GPUs share the work evenly."""

    #: GPUs that take this step together, waiting for one another.
    num_gpus: int
    #: Arithmetic of the matrix products: `bf16`, `fp16`, `fp8`, `int8`, `nvfp4` or `mxfp4`.
    arithmetic: str
    #: Multiply-adds count as two. Projections, feed-forward and experts.
    gemm_flops: float
    #: Scores and weighted sums of attention, in 16-bit arithmetic whatever the weights are.
    attention_flops: float
    #: Read from memory: weights once a step, of experts only those that some token is routed to.
    weight_bytes: float
    #: Keys and values (or recurrent state) read and written.
    kv_bytes: float
    #: Layers that this GPU runs one after the other.
    num_layers: int
    #: Tokens that go through the fullest replica, and those it samples: what its own host handles one by one.
    num_tokens: float
    num_sampled: float
    #: Expert matrices (one layer's one expert) with at least one token; 0 in dense models.
    num_experts: float = 0.0
    #: Sent inside one scale-up domain (NVLink), and in how many collectives.
    scale_up_bytes: float = 0.0
    num_scale_up: float = 0.0
    #: Sent between such domains (InfiniBand, Ethernet), and in how many collectives.
    scale_out_bytes: float = 0.0
    num_scale_out: float = 0.0
    #: Pipeline stages the step passes through one after the other; each waits for the others' share of it.
    num_stages: int = 1
    #: Seconds of the step's kernels at the highest clock, where somebody measured them; 0 leaves that to the device.
    kernel_s: float = 0.0
