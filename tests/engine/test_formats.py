"""Storage formats: what they keep of a matrix, bounded; what they keep exactly; and that every row stands alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.embedded import formats


class Record(Protocol):
    """A quantised matrix."""

    def dequantise(self) -> torch.Tensor:
        """Return what it means."""


FORMATS: dict[str, Callable[[torch.Tensor], Record]] = {
    "int8": formats.to_int8,
    "int4_g32": lambda weight: formats.to_int4(weight, 32),
    "int4": lambda weight: formats.to_int4(weight, 64),
    "int4_g128": lambda weight: formats.to_int4(weight, 128),
    "fp8": formats.to_fp8,
    "nvfp4": formats.to_nvfp4,
    "mxfp4": formats.to_mxfp4,
}
#: Relative error of normally distributed values: what is reached, rounded up.
ERRORS = {
    "int8": 0.009, "int4_g32": 0.08, "int4": 0.095, "int4_g128": 0.105, "fp8": 0.027, "nvfp4": 0.1, "mxfp4": 0.12,
}  # fmt: skip


def normal(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("columns", [64, 160, 576])
def test_normal_values_are_kept_within_the_formats_error(name: str, columns: int) -> None:
    """Of normal values each format keeps all but its share, whether or not its groups divide the row."""
    weight = normal(48, columns)
    kept = FORMATS[name](weight).dequantise()
    assert kept.dtype == torch.float32
    assert float((kept - weight).norm() / weight.norm()) < ERRORS[name]


@pytest.mark.parametrize("name", FORMATS)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 5),
    pairs=st.integers(1, 100),
    exponent=st.integers(-10, 10),
    zeros=st.floats(0, 1),
)
def test_a_row_is_quantised_alone(name: str, seed: int, rows: int, pairs: int, exponent: int, zeros: float) -> None:
    """Whatever stands beside it, a row becomes the same, bit by bit, and is finite; a zero row stays zero."""
    weight = normal(rows, 2 * pairs, seed) * 2.0**exponent
    weight[torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed)) < zeros] = 0.0
    weight[-1] = 0.0
    kept = FORMATS[name](weight).dequantise()
    assert torch.equal(kept, torch.cat([FORMATS[name](row[None]).dequantise() for row in weight]))
    assert bool(kept.isfinite().all())
    assert not bool(kept[-1].any())


@pytest.mark.parametrize("name", ["int8", "fp8", "mxfp4"])
def test_what_a_format_holds_it_keeps(name: str) -> None:
    """Quantising what was dequantised changes nothing where scales are told by the largest value alone."""
    kept = FORMATS[name](normal(8, 128)).dequantise()
    assert torch.equal(kept, FORMATS[name](kept).dequantise())


@pytest.mark.parametrize("group_size", [32, 64, 128])
@given(seed=st.integers(0, 10**6))
def test_int4_is_off_by_half_a_level_at_most(group_size: int, seed: int) -> None:
    """No value is further from its own than half the group's level, and what fp16 scales and offsets round away."""
    weight = normal(3, 2 * group_size, seed)
    record = formats.to_int4(weight, group_size)
    groups = weight.view(3, -1, group_size)
    level = (groups.amax(2) - groups.amin(2)) / 15
    error = (record.dequantise() - weight).abs().view(3, -1, group_size).amax(2)
    assert bool((error <= 0.5 * level + 16 * level * 2**-11 + groups.abs().amax(2) * 2**-11).all())


def test_offsets_are_worth_their_bytes() -> None:
    """Sixteen levels between a group's extremes are off by 15 % less than fifteen that are symmetric around zero."""
    weight = normal(64, 1024)
    groups = weight.view(64, -1, 64)
    level = groups.abs().amax(2, keepdim=True) / 7
    symmetric = (groups / level).round() * level - groups
    assert float((formats.to_int4(weight, 64).dequantise() - weight).norm()) < 0.85 * float(symmetric.norm())


def test_int4_holds_ggufs_q4_1_as_it_is() -> None:
    """Groups that are sixteen levels over a 16-bit offset already, as in a Q4_1 file, are kept to fp16's rounding."""
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 16, (4, 8, 32), generator=generator).float()
    levels[..., 0], levels[..., 1] = 0.0, 15.0
    weight = (levels * 0.03125 - 0.25).view(4, 256)
    assert torch.equal(formats.to_int4(weight, 32).dequantise(), weight)


def test_two_values_share_a_byte() -> None:
    """The even column is the low nibble, the odd one the high nibble, in int4 as in e2m1."""
    record = formats.to_int4(torch.arange(16.0)[None].repeat(1, 2), 32)
    assert record.data[0, :4].tolist() == [0x10, 0x32, 0x54, 0x76]
    assert formats.unpacked(record.data)[0].tolist() == [*range(16), *range(16)]
    assert formats.to_mxfp4(torch.tensor([[0.0, 4.0, -6.0, 0.5]])).data[0].tolist() == [0x60, 0x1F]


def test_an_odd_row_cannot_be_packed() -> None:
    """A row of an odd number of values is refused, not filled up."""
    with pytest.raises(ValueError, match="a row of 3 values cannot be packed in pairs"):
        formats.to_int4(torch.ones(1, 3), 32)


def test_e2m1_rounds_to_the_nearest_and_halfway_to_even() -> None:
    """Magnitudes between two values go to the nearer one, halfway to the one with an even code; signs are kept."""
    asked = [0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, -0.75, -5.0, 4.0]
    expected = [0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, -1.0, -4.0, 4.0]
    assert formats.to_mxfp4(torch.tensor([asked])).dequantise()[0].tolist() == expected


def test_mxfp4_scales_are_powers_of_two() -> None:
    """A group's scale is the power of two below its largest value over 4 (OCP MX 1.0); above 6 scales it saturates."""
    record = formats.to_mxfp4(torch.tensor([[7.9, 1.0] * 16 + [0.3, 0.1] * 16]))
    assert record.scales.float().tolist() == [[1.0, 0.0625]]
    assert record.dequantise()[0, 0].item() == 6.0


def test_nvfp4_scales_use_all_of_e4m3() -> None:
    """The largest group of a row has the scale 448, the others the nearest that e4m3 has."""
    weight = torch.cat([torch.full((1, 16), 6.0), torch.full((1, 16), 3.0)], dim=1)
    record = formats.to_nvfp4(weight)
    assert record.scales.float().tolist() == [[448.0, 224.0]]
    torch.testing.assert_close(record.dequantise(), weight, rtol=1e-6, atol=0)


def test_e4m3_saturates() -> None:
    """What is beyond e4m3's largest value becomes it, whatever its sign; NaN stays NaN."""
    rounded = formats.as_e4m3(torch.tensor([1e9, -500.0, 448.0, torch.nan])).float()
    assert rounded[:3].tolist() == [448.0, -448.0, 448.0]
    assert bool(rounded[3].isnan())


def test_tf32_keeps_ten_bits() -> None:
    """Ten bits of fraction stay, halfway goes to even, and what is not finite stays as it is."""
    tick = 2.0**-10
    asked = [1.0 + tick, 1.0 + tick / 2, 1.0 + 1.5 * tick, -(1.0 + 0.75 * tick), torch.inf]
    assert formats.as_tf32(torch.tensor(asked)).tolist() == [1.0 + tick, 1.0, 1.0 + 2 * tick, -(1.0 + tick), torch.inf]


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_finite_does_not_vanish(name: str) -> None:
    """A NaN in a row comes out of every format as one: no precision hides that a model overflowed."""
    weight = normal(2, 64)
    weight[0, 5] = torch.nan
    kept = FORMATS[name](weight).dequantise()
    assert bool(kept[0].isnan().any())
    assert bool(kept[1].isfinite().all())
