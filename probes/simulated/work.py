"""What a simulated device must be told of a piece of work to say how long it takes and what it draws.

Structural: an engine's own record fits when it has these fields. Knows nothing of models or tokens' meaning.
"""

from __future__ import annotations

from typing import Protocol


class Work(Protocol):
    """Bytes, FLOPs, launches and messages of one step; per GPU unless it says otherwise."""

    @property
    def num_gpus(self) -> int:
        """GPUs that take the step together."""

    @property
    def arithmetic(self) -> str:
        """Arithmetic of the matrix products: bf16, fp16, fp8, int8, nvfp4, mxfp4."""

    @property
    def gemm_flops(self) -> float:
        """FLOPs of matrix products, a multiply-add counting as two."""

    @property
    def attention_flops(self) -> float:
        """FLOPs of attention, in 16-bit arithmetic."""

    @property
    def weight_bytes(self) -> float:
        """Weights read from memory."""

    @property
    def kv_bytes(self) -> float:
        """Keys and values read and written."""

    @property
    def num_layers(self) -> int:
        """Layers run one after the other."""

    @property
    def num_tokens(self) -> float:
        """Tokens through one replica, which has a host of its own."""

    @property
    def num_sampled(self) -> float:
        """Tokens that one replica samples."""

    @property
    def num_experts(self) -> float:
        """Expert matrices in use."""

    @property
    def scale_up_bytes(self) -> float:
        """Bytes sent inside the scale-up domain."""

    @property
    def num_scale_up(self) -> float:
        """Collectives inside it."""

    @property
    def scale_out_bytes(self) -> float:
        """Bytes sent between domains."""

    @property
    def num_scale_out(self) -> float:
        """Collectives between them."""

    @property
    def num_stages(self) -> int:
        """Pipeline stages passed one after the other."""

    @property
    def kernel_s(self) -> float:
        """Seconds of the step's kernels at the highest clock, where somebody measured them, else 0."""
