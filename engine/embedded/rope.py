"""Rotary position embeddings (Su et al., RoFormer, 2021) with the scaling variants that configs use.

linear: position interpolation (Chen et al., 2023). yarn: Peng et al., 2023, section 3. llama3: the rule of the
Llama 3.1 release. factors: a GGUF file's own divisors. dynamic: no scaling, for the context ends where it would begin
(see `ModelConfig.usable_context`).
"""

from __future__ import annotations

import math

import torch

from engine.embedded.config import ModelConfig, RopeConfig


def rope_table(config: ModelConfig, max_context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and signed sin, both (max_context, head_dim) fp32.

    `rotate(x) = x * cos + roll(x, head_dim / 2) * sin`: the sign of the rolled half is in the table.
    """
    frequencies, scale = _frequencies(config.rope, config.head_dim, config.max_context)
    angles = torch.arange(max_context, dtype=torch.float32)[:, None] * frequencies[None, :]
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads x (tokens, heads, head_dim) by the tokens' rows of the table, (tokens, 1, head_dim) each."""
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin)


def _frequencies(rope: RopeConfig, head_dim: int, max_context: int) -> tuple[torch.Tensor, float]:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim, max_context), _yarn_scale(rope)
    if rope.kind == "factors":
        return plain / torch.tensor(rope.factors, dtype=torch.float32), 1.0
    return plain, 1.0


def _llama3(rope: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    original = rope.original_max_context or 8192
    wavelengths = 2 * math.pi / plain
    smooth = (original / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * plain / rope.factor + smooth * plain
    scaled = torch.where(wavelengths > original / rope.low_freq_factor, plain / rope.factor, blended)
    return torch.where(wavelengths < original / rope.high_freq_factor, plain, scaled)


def _yarn(rope: RopeConfig, plain: torch.Tensor, head_dim: int, max_context: int) -> torch.Tensor:
    original = rope.original_max_context or max_context

    def dimension_of(rotations: float) -> float:
        """Return the dimension that turns this many times over the trained length."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return float(rope.attention_factor)

    def scale(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
