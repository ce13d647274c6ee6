"""Storage formats of weights: plain records, how they are made, and what they mean.

`dequantise` is the definition of a format: whatever multiplies a record must give what the fp32 matrix that it returns
gives, up to rounding of the sum. Every row is quantised by itself, so that rows may be joined or cut (fused
projections), and so that the same functions serve a product's inputs, one row per token, whatever stands beside it.

Two 4-bit values share a byte: the even column is the low nibble. Groups run along a row; where the group size does not
divide it, the last group is shorter. Knows nothing of models and of what a device can do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

#: The largest finite value of float8_e4m3fn.
E4M3_MAX = 448.0
#: Its smallest normal value: below that a block's scale has fewer than three bits.
_E4M3_TINY = 2.0**-6
#: The values of e2m1 by their lower three bits; the fourth is the sign.
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: Where magnitudes round up to the next of them. Halfway goes to the even code (IEEE 754), so three of the borders lie
#: just below the middle.
_E2M1_BORDERS = (0.25, 0.75 - 2.0**-24, 1.25, 1.75 - 2.0**-23, 2.5, 3.5 - 2.0**-22, 5.0)
NVFP4_GROUP = 16
MXFP4_GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Int8Rows:
    """w = data x scale of the row: symmetric, so that a row's zero is zero."""

    #: int8 (out, in), within -127..127.
    data: torch.Tensor
    #: fp32 (out,).
    scales: torch.Tensor

    def dequantise(self) -> torch.Tensor:
        """Return fp32 (out, in)."""
        return self.data.float() * self.scales[:, None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Int4Groups:
    """w = data x scale + offset of the group.

    The sixteen levels lie between the group's smallest and largest value. Symmetric levels would have to reach the
    larger of the two on both sides: with groups of 32 to 128 normal values that is a fifth more between levels.
    """

    #: uint8 (out, in / 2): two values of 0..15.
    data: torch.Tensor
    #: fp16 (out, groups).
    scales: torch.Tensor
    #: fp16 (out, groups).
    offsets: torch.Tensor
    group_size: int

    def dequantise(self) -> torch.Tensor:
        """Return fp32 (out, in)."""
        levels = unpacked(self.data).float()
        scales, offsets = (_spread(part.float(), self.group_size, levels) for part in (self.scales, self.offsets))
        return levels * scales + offsets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fp8Rows:
    """w = data x scale of the row."""

    #: float8_e4m3fn (out, in).
    data: torch.Tensor
    #: fp32 (out,).
    scales: torch.Tensor

    def dequantise(self) -> torch.Tensor:
        """Return fp32 (out, in)."""
        return self.data.float() * self.scales[:, None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nvfp4Groups:
    """w = e2m1 x scale of the group of 16 x scale of the row (NVIDIA's format, which has one a tensor in its place)."""

    #: uint8 (out, in / 2): two e2m1 codes.
    data: torch.Tensor
    #: float8_e4m3fn (out, groups).
    scales: torch.Tensor
    #: fp32 (out,).
    row_scales: torch.Tensor

    def dequantise(self) -> torch.Tensor:
        """Return fp32 (out, in)."""
        values = _e2m1_values(unpacked(self.data))
        return values * _spread(self.scales.float() * self.row_scales[:, None], NVFP4_GROUP, values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mxfp4Groups:
    """w = e2m1 x power of two of the group of 32 (OCP Microscaling Formats 1.0)."""

    #: uint8 (out, in / 2): two e2m1 codes.
    data: torch.Tensor
    #: float8_e8m0fnu (out, groups).
    scales: torch.Tensor

    def dequantise(self) -> torch.Tensor:
        """Return fp32 (out, in)."""
        values = _e2m1_values(unpacked(self.data))
        return values * _spread(self.scales.float(), MXFP4_GROUP, values)


def to_int8(weight: torch.Tensor) -> Int8Rows:
    """Quantise fp32 (out, in): scale = max |w| / 127; a row of zeros stays zeros."""
    scales = weight.abs().amax(dim=1) / 127
    data = (weight / _divisor(scales)[:, None]).round().clamp_(-127, 127).to(torch.int8)
    return Int8Rows(data=data, scales=scales)


def to_int4(weight: torch.Tensor, group_size: int) -> Int4Groups:
    """Quantise fp32 (out, in) in groups; levels are those of the scale and offset as they are stored."""
    groups = _groups(weight, group_size)
    lowest, highest = groups.aminmax(dim=2)
    offsets, scales = lowest.half(), ((highest - lowest) / 15).half()
    levels = ((groups - offsets.float()[:, :, None]) / _divisor(scales.float())[:, :, None]).round_().clamp_(0, 15)
    data = _packed(_joined(levels, weight).to(torch.uint8))
    return Int4Groups(data=data, scales=scales, offsets=offsets, group_size=group_size)


def to_fp8(weight: torch.Tensor) -> Fp8Rows:
    """Quantise fp32 (out, in): scale = max |w| / 448."""
    scales = weight.abs().amax(dim=1) / E4M3_MAX
    return Fp8Rows(data=as_e4m3(weight / _divisor(scales)[:, None]), scales=scales)


def to_nvfp4(weight: torch.Tensor) -> Nvfp4Groups:
    """Quantise fp32 (out, in): a row's scale makes its largest group scale 448, a group's its largest value 6."""
    groups = _groups(weight, NVFP4_GROUP)
    largest = groups.abs().amax(dim=2)
    row_scales = largest.amax(dim=1) / (E4M3_MAX * E2M1_VALUES[-1])
    scales = as_e4m3((largest / E2M1_VALUES[-1] / _divisor(row_scales)[:, None]).clamp(min=_E4M3_TINY))
    steps = scales.float() * row_scales[:, None]
    codes = _e2m1_codes(_joined(groups / _divisor(steps)[:, :, None], weight))
    return Nvfp4Groups(data=_packed(codes), scales=scales, row_scales=row_scales)


def to_mxfp4(weight: torch.Tensor) -> Mxfp4Groups:
    """Quantise fp32 (out, in): scale = 2^(floor(log2 max |w|) - 2); beyond 6 scales saturates (OCP MX 1.0, 6.3)."""
    groups = _groups(weight, MXFP4_GROUP)
    largest = groups.abs().amax(dim=2)
    exponents = (torch.frexp(largest).exponent - 1 - 2).clamp_(-127, 127)
    steps = torch.ldexp(torch.ones_like(largest), exponents).masked_fill_(~largest.isfinite(), torch.nan)
    codes = _e2m1_codes(_joined(groups / steps[:, :, None], weight))
    return Mxfp4Groups(data=_packed(codes), scales=steps.to(torch.float8_e8m0fnu))


def as_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Round to float8_e4m3fn; what is beyond its largest value saturates, and NaN stays NaN."""
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def as_tf32(values: torch.Tensor) -> torch.Tensor:
    """Round fp32 to ten bits of fraction, halfway to even: what tensor cores multiply in TF32."""
    bits = values.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(values.isfinite(), rounded.view(torch.float32), values)


def unpacked(data: torch.Tensor) -> torch.Tensor:
    """Return the nibbles (rows, 2 x columns) of packed bytes (rows, columns)."""
    return torch.stack([data & 0xF, data >> 4], dim=2).flatten(1)


def _packed(nibbles: torch.Tensor) -> torch.Tensor:
    """Pack uint8 (rows, columns) of 0..15 in pairs. Raises ValueError for an odd number of columns."""
    if nibbles.shape[1] % 2:
        raise ValueError(f"a row of {nibbles.shape[1]} values cannot be packed in pairs")
    return nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)


def _groups(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return (out, groups, group_size); a short last group is filled with its last value, which changes no extreme."""
    missing = -weight.shape[1] % group_size
    if missing:
        weight = functional.pad(weight[None], (0, missing), mode="replicate")[0]
    return weight.view(weight.shape[0], -1, group_size)


def _joined(groups: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Undo `_groups`."""
    return groups.flatten(1)[:, : like.shape[1]]


def _spread(scales: torch.Tensor, group_size: int, like: torch.Tensor) -> torch.Tensor:
    """Return each column's scale (out, in) from each group's (out, groups)."""
    return scales.repeat_interleave(group_size, dim=1)[:, : like.shape[1]]


def _divisor(scales: torch.Tensor) -> torch.Tensor:
    """Return scales to divide by: a scale of zero has nothing but zeros under it, whatever they are divided by."""
    return torch.where(scales == 0, torch.ones_like(scales), scales)


def _e2m1_codes(values: torch.Tensor) -> torch.Tensor:
    """Return the nearest e2m1 codes, uint8; beyond 6 values saturate."""
    borders = torch.tensor(_E2M1_BORDERS, device=values.device)
    codes = torch.bucketize(values.abs().contiguous(), borders).to(torch.uint8)
    return codes | (values.signbit().to(torch.uint8) << 3)


def _e2m1_values(codes: torch.Tensor) -> torch.Tensor:
    """Return fp32 values of e2m1 codes."""
    values = torch.tensor((*E2M1_VALUES, *(-value for value in E2M1_VALUES)), device=codes.device)
    return values[codes.long()]
