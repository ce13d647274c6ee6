"""Linear layers in each precision: near the exact product, by the same arithmetic whatever the number of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.embedded.formats import as_tf32, to_fp8, to_int4, to_int8, to_mxfp4, to_nvfp4
from engine.embedded.linears import Fp8Linear, hidden_dtype, make_linear, swizzled
from engine.embedded.precision import MODES

CPU = torch.device("cpu")
#: Relative error of a product of normal values: what is reached, rounded up.
TOLERANCES = {
    "fp32": 1e-5, "tf32": 5e-4, "bf16": 0.01, "fp16": 2e-3, "fp8": 0.045, "int8": 0.012, "int8_dynamic": 0.016,
    "int4_g32": 0.1, "int4": 0.11, "int4_g128": 0.12, "nvfp4": 0.16, "mxfp4": 0.2,
}  # fmt: skip


def inputs_and_weight(num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(48, 64, generator=generator), torch.randn(48, generator=generator)
    return torch.randn(num_rows, 64, generator=generator), weight, bias


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 16, 17, 100])
@pytest.mark.parametrize(("precision", "tolerance"), TOLERANCES.items())
def test_products_are_near_the_exact_ones(precision: str, tolerance: float, num_rows: int, has_bias: bool) -> None:
    """Each precision multiplies within its rounding, for few rows and many, with and without bias."""
    x, weight, some = inputs_and_weight(num_rows)
    bias = some if has_bias else None
    expected = x @ weight.T + (0 if bias is None else bias)

    product = make_linear(weight, bias, precision=precision, device=CPU)(x.to(hidden_dtype(precision)))

    assert product.dtype == hidden_dtype(precision)
    assert (product.float() - expected).norm() / expected.norm() < tolerance


@pytest.mark.parametrize("precision", MODES)
def test_the_head_is_no_narrower_than_bf16(precision: str) -> None:
    """The head's product is within bf16's rounding in every precision: rare tokens are the first to suffer."""
    x, weight, _ = inputs_and_weight(20)
    head = make_linear(weight, None, precision=precision, device=CPU, is_head=True)
    product, expected = head(x.to(hidden_dtype(precision))).float(), x @ weight.T
    assert (product - expected).norm() / expected.norm() < TOLERANCES["bf16"]


@pytest.mark.parametrize("precision", MODES)
def test_a_weight_of_zeros_gives_zeros(precision: str) -> None:
    """An all-zero weight and all-zero inputs give zeros, not a division by zero."""
    dtype = hidden_dtype(precision)
    layer = make_linear(torch.zeros(8, 32), None, precision=precision, device=CPU)
    random = make_linear(torch.randn(8, 32), None, precision=precision, device=CPU)

    assert torch.equal(layer(torch.ones(1, 32, dtype=dtype)), torch.zeros(1, 8, dtype=dtype))
    assert torch.equal(random(torch.zeros(1, 32, dtype=dtype)), torch.zeros(1, 8, dtype=dtype))


@pytest.mark.parametrize("precision", ["int8", "int4_g32", "int4", "int4_g128"])
def test_weight_only_products_are_those_of_what_the_format_means(precision: str) -> None:
    """Weights-only layers give what the dequantised matrix gives, within bf16's rounding of the inputs."""
    x, weight, _ = inputs_and_weight(9)
    record = to_int8(weight) if precision == "int8" else to_int4(weight, MODES[precision].group_size or 0)
    product = make_linear(weight, None, precision=precision, device=CPU)(x)
    expected = x @ record.dequantise().T
    assert (product - expected).norm() / expected.norm() < 2**-8


def test_integer_products_do_not_depend_on_the_batch() -> None:
    """With int8 inputs a row's product is the same, bit by bit, alone and among a hundred."""
    x, weight, bias = inputs_and_weight(100)
    layer = make_linear(weight, bias, precision="int8_dynamic", device=CPU)
    assert torch.equal(layer(x), torch.cat([layer(row[None]) for row in x]))


def test_emulated_products_are_those_of_rounded_operands() -> None:
    """An emulated layer gives what inputs and weights give that were rounded before, to the dtype of hidden states."""
    x, weight, _ = inputs_and_weight(5)
    roundings: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "tf32": as_tf32,
        "fp8": lambda values: to_fp8(values).dequantise(),
        "nvfp4": lambda values: to_nvfp4(values).dequantise(),
        "mxfp4": lambda values: to_mxfp4(values).dequantise(),
    }
    for precision, rounded in roundings.items():
        narrow = x.to(hidden_dtype(precision))
        expected = (rounded(narrow.float()) @ rounded(weight).T).to(narrow.dtype)
        product = make_linear(weight, None, precision=precision, device=CPU)(narrow)
        torch.testing.assert_close(product, expected)


def test_emulation_is_what_the_native_product_gives() -> None:
    """fp8's own product, which torch has for CPUs too, and its emulation agree within bf16's rounding of the result."""
    x, weight, bias = (part.to(torch.bfloat16) for part in inputs_and_weight(7))
    native = Fp8Linear(to_fp8(weight.float()), bias)
    emulated = make_linear(weight.float(), bias, precision="fp8", device=CPU)
    torch.testing.assert_close(native(x), emulated(x), rtol=2**-7, atol=2**-5)


def test_scales_are_ordered_as_tensor_cores_read_them() -> None:
    """The scale of row r and group g lies where cuBLAS looks for it, and what fills up the last tile is zero."""
    rows, groups = 130, 6
    scales = torch.arange(1, rows * groups + 1).remainder(251).to(torch.uint8).view(rows, groups)
    flat = swizzled(scales.view(torch.float8_e4m3fn)).view(torch.uint8)
    expected = torch.zeros(256 * 8, dtype=torch.uint8)
    for r in range(rows):
        for g in range(groups):
            tile = (r // 128) * 2 + g // 4
            expected[tile * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + g % 4] = scales[r, g]
    assert torch.equal(flat, expected)
