"""The table of precisions: what there is, what the hardware must offer, and how the lack of it is told."""

from __future__ import annotations

import pytest

from engine.embedded.config import model_config
from engine.embedded.precision import (
    KV_PRECISIONS,
    MODES,
    Capability,
    is_native,
    kv_bytes_per_token,
    require_native,
    weight_bytes,
)
from engine.errors import InvalidSettings, NotNative
from engine.settings import KV_PRECISIONS as ALL_KV_PRECISIONS
from engine.settings import PRECISIONS
from tests.engine.conftest import OpenTiny
from tests.engine.requests import make_request, serve
from tests.tiny_model import tiny_config

ON_CPU = ("fp32", "bf16", "fp16", "int8", "int8_dynamic", "int4_g32", "int4", "int4_g128")


def test_every_name_is_one_that_settings_know() -> None:
    """The embedded engine has every precision of the settings, widest first, and of KV formats all but nvfp4."""
    assert tuple(MODES) == PRECISIONS
    assert set(ALL_KV_PRECISIONS) - set(KV_PRECISIONS) == {"nvfp4"}


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [
        (None, {"tf32", "fp8", "nvfp4", "mxfp4"}),
        ((7, 0), {"tf32", "bf16", "fp8", "int8_dynamic", "nvfp4", "mxfp4"}),
        ((7, 5), {"tf32", "bf16", "fp8", "nvfp4", "mxfp4"}),
        ((8, 0), {"fp8", "nvfp4", "mxfp4"}),
        ((8, 9), {"nvfp4", "mxfp4"}),
        ((9, 0), {"nvfp4", "mxfp4"}),
        ((10, 0), set()),
        ((12, 0), set()),
    ],
)
def test_each_device_lacks_what_its_generation_lacks(capability: Capability | None, lacking: set[str]) -> None:
    """A CPU (None) and GPUs from Volta to Blackwell lack these precisions and no others."""
    assert {name for name in MODES if not is_native(name, capability)} == lacking


def test_what_is_lacking_is_refused_with_what_it_needs() -> None:
    """The refusal names the precision, what it needs, what there is, and what could be chosen."""
    with pytest.raises(NotNative, match=r"'fp8', which needs an NVIDIA GPU of compute capability 8\.9 or higher"):
        require_native("fp8", (8, 6))
    with pytest.raises(NotNative, match=rf"needs .*\(Blackwell\); this is a CPU, which has {', '.join(ON_CPU)}"):
        require_native("nvfp4", None)
    require_native("fp8", (9, 0))


@pytest.mark.parametrize("precision", ["tf32", "fp8", "nvfp4", "mxfp4"])
def test_the_engine_refuses_or_emulates(open_tiny: OpenTiny, precision: str) -> None:
    """On a CPU a GPU's precision does not open; where settings allow, it opens as emulated, and answers."""
    with pytest.raises(NotNative, match=f"precision is '{precision}'"):
        open_tiny(precision=precision)
    emulated = open_tiny(precision=precision, can_emulate=True)
    assert (emulated.info.precision, emulated.info.is_emulated) == (precision, True)
    assert len(serve(emulated, [make_request(max_tokens=4)])[0].token_ids) == 4


@pytest.mark.parametrize("precision", ON_CPU)
def test_what_the_device_has_is_not_emulated(open_tiny: OpenTiny, precision: str) -> None:
    """Leave to emulate changes nothing where the device has the precision."""
    assert open_tiny(precision=precision, can_emulate=True).info.is_emulated is False


def test_unknown_names_are_refused(open_tiny: OpenTiny) -> None:
    """What a server's file may be in, and a KV format that only others have, are refused with what there is."""
    with pytest.raises(InvalidSettings, match="precision is 'as_stored'; the embedded engine has fp32, tf32"):
        open_tiny(precision="as_stored")
    with pytest.raises(InvalidSettings, match="kv_precision is 'nvfp4'; the embedded engine has auto, bf16, fp8, int8"):
        open_tiny(kv_precision="nvfp4")


def test_bytes_are_those_of_the_formats() -> None:
    """A weight's bytes have its share of scales, an int8 key's its head's; what may be emulated is counted as fp32."""
    config = model_config(tiny_config(), source="test")
    values = 2 * 2 * 2 * 16  # keys and values, layers, heads, head_dim
    assert [kv_bytes_per_token(config, name, 4) for name in KV_PRECISIONS] == [
        4 * values, 2 * values, values, values + 4 * values // 16,
    ]  # fmt: skip
    assert [weight_bytes(name, can_emulate=False) for name in ("int8", "int4", "nvfp4")] == [1.0, 0.5625, 0.5625]
    assert weight_bytes("nvfp4", can_emulate=True) == 4.0
