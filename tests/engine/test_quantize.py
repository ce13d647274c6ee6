"""Linear layers in each precision."""

from __future__ import annotations

import pytest
import torch

from engine.embedded.quantize import INT8_MAX_ROWS, Int8Linear, make_linear

CPU = torch.device("cpu")


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, INT8_MAX_ROWS, INT8_MAX_ROWS + 1, 100])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 0.02), ("fp16", 2e-3), ("int8", 0.02)])
def test_products_are_near_the_exact_ones(precision: str, tolerance: float, num_rows: int, has_bias: bool) -> None:
    """Each precision multiplies within its rounding, for few rows and many, with and without bias."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 64, generator=generator)
    bias = torch.randn(48, generator=generator) if has_bias else None
    x = torch.randn(num_rows, 64, generator=generator)
    expected = x @ weight.T + (0 if bias is None else bias)

    layer = make_linear(weight, bias, precision=precision, device=CPU)
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    product = layer(x.to(narrow))

    assert product.dtype == narrow
    assert (product.float() - expected).norm() / expected.norm() < tolerance


def test_the_head_is_never_int8() -> None:
    """The head keeps full precision, whose rare tokens are the first to suffer."""
    head = make_linear(torch.randn(8, 4), None, precision="int8", device=CPU, is_head=True)

    assert not isinstance(head, Int8Linear)


def test_a_row_of_zeros_quantises_to_zeros() -> None:
    """An all-zero row gives zeros, not a division by zero."""
    layer = Int8Linear(torch.zeros(8, 32), None, CPU)

    assert torch.equal(layer(torch.ones(1, 32)), torch.zeros(1, 8))
