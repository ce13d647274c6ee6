"""What precisions weigh and compute in."""

from __future__ import annotations

import pytest

from tests.engine.simulated.layouts import BLACKWELL, HOPPER, make_model


@pytest.mark.parametrize(
    ("precision", "arithmetics", "arithmetic"),
    [
        ("bf16", HOPPER, "bf16"),
        ("fp8", HOPPER, "fp8"),
        ("int4", HOPPER, "bf16"),
        ("int4", frozenset({"fp16"}), "fp16"),
        ("mxfp4", HOPPER, "bf16"),
        ("mxfp4", BLACKWELL, "mxfp4"),
        ("nvfp4", BLACKWELL, "nvfp4"),
    ],
)
def test_weight_only_precisions_compute_in_16_bit(precision: str, arithmetics: frozenset[str], arithmetic: str) -> None:
    """INT4, and MXFP4 where the machine lacks it, are weights alone; the others are arithmetic, too."""
    assert make_model(precision=precision, arithmetics=arithmetics).arithmetic == arithmetic


@pytest.mark.parametrize(
    ("precision", "width"), [("bf16", 2.0), ("fp8", 1.0), ("int8", 1.0), ("int4", 0.53125), ("nvfp4", 0.5625)]
)
def test_weights_weigh_by_precision(precision: str, width: float) -> None:
    """Llama's linear weights take the bytes of the precision, embedding and output matrix 16 bit."""
    model = make_model("llama-3.1-8b", precision=precision, arithmetics=BLACKWELL)
    embeddings = 2 * 128256 * 4096
    linear = model.shape.num_parameters - embeddings
    assert model.weight_bytes_resident == pytest.approx(linear * width + 2 * embeddings, rel=0.001)


def test_kv_precision_narrows_keys_and_values_alone() -> None:
    """FP8 keys and values take half the bytes; weights stay."""
    wide, narrow = make_model("llama-3.1-8b"), make_model("llama-3.1-8b", kv_precision="fp8")
    assert narrow.kv_bytes_per_token == wide.kv_bytes_per_token / 2
    assert narrow.weight_bytes_resident == wide.weight_bytes_resident


def test_published_mxfp4_experts_stay_narrow() -> None:
    """gpt-oss takes about 61 GiB in the precision it is published in, and its experts do not widen to bf16."""
    in_bf16, as_published = make_model("gpt-oss-120b"), make_model("gpt-oss-120b", precision="mxfp4")
    assert in_bf16.weight_bytes_resident == as_published.weight_bytes_resident
    assert in_bf16.weight_bytes_resident / 2**30 == pytest.approx(60.8, rel=0.02)
