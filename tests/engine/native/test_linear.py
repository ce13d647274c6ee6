"""Products with narrow weights."""

from __future__ import annotations

import ctypes

import pytest
import torch

from engine.embedded.formats import Int4Groups, to_int4, to_int8
from engine.embedded.native.linear import NativeLinear, StoredWeight, fits

FORMATS = ("fp32", "bf16", "int8", "int4")
#: Of the sum of the products' magnitudes: fp32 sums, or inputs rounded to bf16 (half of 2^-8 of each) where the CPU
#: multiplies those.
TOLERANCES = {"fp32": 1e-6, "bf16": 2**-8, "int8": 2**-8, "int4": 1e-6}


def make_weight(stored: str, num_outputs: int, num_inputs: int) -> tuple[StoredWeight, torch.Tensor]:
    """Return a weight as it is stored and what it means in fp32."""
    weight = torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(0))
    if stored == "fp32":
        return weight, weight
    if stored == "bf16":
        return weight.bfloat16(), weight.bfloat16().float()
    record = to_int8(weight) if stored == "int8" else to_int4(weight, 32)
    return record, record.dequantise()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1, 32), (31, 64), (100, 288), (160, 32)])
@pytest.mark.parametrize("stored", FORMATS)
def test_products_are_those_of_the_dequantised_weight(
    kernels: ctypes.CDLL, stored: str, num_outputs: int, num_inputs: int, has_bias: bool
) -> None:
    """Whatever the shape and the number of rows, the product is that with the fp32 matrix which the format means."""
    weight, meant = make_weight(stored, num_outputs, num_inputs)
    bias = torch.randn(num_outputs) if has_bias else None
    layer = NativeLinear(kernels, weight, bias)
    for num_rows in (1, 2, 3, 5, 12, 13, 97, 200):
        x = torch.randn(num_rows, num_inputs)
        expected = torch.nn.functional.linear(x, meant, bias)

        allowed = TOLERANCES[stored] * (x.abs() @ meant.abs().T + 1)
        assert ((layer(x) - expected).abs() <= allowed).all()


@pytest.mark.parametrize("stored", FORMATS)
def test_a_row_does_not_depend_on_its_company(kernels: ctypes.CDLL, stored: str) -> None:
    """A row's product is the same bit by bit alone and among any number of others."""
    layer = NativeLinear(kernels, make_weight(stored, 70, 64)[0], None)
    x = torch.randn(200, 64)
    together = layer(x)

    for first, count in ((0, 1), (3, 2), (5, 7), (100, 12), (150, 50)):
        assert torch.equal(together[first : first + count], layer(x[first : first + count]))


@pytest.mark.parametrize("stored", FORMATS)
def test_products_are_added_in_place(kernels: ctypes.CDLL, stored: str) -> None:
    """`add_to` adds the product to what is there, also for rows that lie apart."""
    layer = NativeLinear(kernels, make_weight(stored, 40, 64)[0], None)
    x, y = torch.randn(5, 128)[:, :64], torch.randn(5, 40)
    expected = y + layer(x)

    assert layer.add_to(y, x) is y
    assert torch.allclose(expected, y, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("stored", FORMATS)
def test_what_is_not_finite_stays_so(kernels: ctypes.CDLL, stored: str, value: float) -> None:
    """BUG-39: NaN and infinity in a row reach its product and no other row's."""
    layer = NativeLinear(kernels, make_weight(stored, 40, 64)[0], None)
    x = torch.randn(3, 64)
    x[1, 7] = value

    assert layer(x).isfinite().all(dim=1).tolist() == [True, False, True]


def test_shapes_that_do_not_fit_are_told() -> None:
    """An odd number of inputs, or a group that is cut short, is left to torch."""
    assert not fits(torch.zeros(8, 6))
    assert fits(torch.zeros(8, 8))
    cut_short: Int4Groups = to_int4(torch.zeros(8, 48), 32)
    assert not fits(cut_short)
