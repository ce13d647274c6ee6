"""Rotary position embeddings (Su et al., RoFormer, 2021) with the scaling variants that configs use.

linear: position interpolation (Chen et al., 2023). yarn: Peng et al., 2023, section 3. llama3: the rule of the
Llama 3.1 release. factors: a GGUF file's own divisors. longrope: the divisors for contexts up to the trained length,
where the context ends. dynamic: no scaling, for the context ends where it would begin (see
`RopeConfig.usable_context`).
"""

from __future__ import annotations

import math

import torch

from engine.embedded.rope_config import RopeConfig


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and signed sin, both (num_positions, head_dim) fp32.

    `rotate(x) = x * cos + roll(x, head_dim / 2) * sin`: the sign of the rolled half is in the table. Where only a part
    of a head is rotated, the rest has cos 1 and sin 0, and heads must be ordered by `pair_order`.
    """
    frequencies, scale = _frequencies(rope)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    num_still = (head_dim - rope.rotary_dim) // 2
    still = torch.zeros(num_positions, num_still)
    cos = torch.cat([angles.cos() * scale, still + 1], dim=-1)
    sin = torch.cat([angles.sin() * scale, still], dim=-1)
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def pair_order(rotary_dim: int, head_dim: int) -> torch.Tensor:
    """Return the order of a head's values that puts the two of each rotary pair head_dim / 2 apart.

    Applied to the rows of query and key weights alike, it leaves every score as it was.
    """
    half, num_still = rotary_dim // 2, (head_dim - rotary_dim) // 2
    first, second, still = torch.arange(half), torch.arange(half, rotary_dim), torch.arange(rotary_dim, head_dim)
    return torch.cat([first, still[:num_still], second, still[num_still:]])


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads x (tokens, heads, head_dim) by the tokens' rows of the table, (tokens, 1, head_dim) each."""
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin)


def _frequencies(rope: RopeConfig) -> tuple[torch.Tensor, float]:
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).to(torch.float32) / rope.rotary_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain), _yarn_scale(rope)
    if rope.kind in ("factors", "longrope"):
        return plain / torch.tensor(rope.factors, dtype=torch.float32), float(rope.attention_factor or 1.0)
    return plain, 1.0


def _llama3(rope: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    original = rope.original_max_context
    wavelengths = 2 * math.pi / plain
    smooth = (original / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * plain / rope.factor + smooth * plain
    scaled = torch.where(wavelengths > original / rope.low_freq_factor, plain / rope.factor, blended)
    return torch.where(wavelengths < original / rope.high_freq_factor, plain, scaled)


def _yarn(rope: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    rotary_dim = rope.rotary_dim

    def dimension_of(rotations: float) -> float:
        """Return the dimension that turns this many times over the trained length."""
        turns = rope.original_max_context / (rotations * 2 * math.pi)
        return rotary_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return float(rope.attention_factor)

    def scale(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
