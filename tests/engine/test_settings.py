"""What settings an engine takes."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import InvalidSettings
from engine.settings import EngineSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("precision", "fp7"),
        ("max_batch", 0),
        ("max_batch", True),
        ("max_batch", 2.0),
        ("prefill_chunk", -1),
        ("block_size", 0),
        ("max_context", 0),
        ("num_kv_blocks", 0),
        ("num_threads", 0),
        ("policy", "last_come"),
        ("max_prefill_fraction", 0.0),
        ("max_prefill_fraction", 1.01),
        ("gpu_memory_fraction", 0.0),
        ("gpu_memory_fraction", 1.5),
    ],
)
def test_values_no_engine_takes_are_refused(field: str, value: Any) -> None:
    """The refusal names the field and the value."""
    with pytest.raises(InvalidSettings, match=f"{field} is {value!r}"):
        EngineSettings(model="m", **{field: value})


def test_only_the_prefill_chunk_is_live() -> None:
    """Every other setting needs a new launch."""
    settings = EngineSettings(model="m")

    assert settings.needs_relaunch(EngineSettings(model="m", prefill_chunk=1)) is False
    assert settings.needs_relaunch(EngineSettings(model="m", max_batch=1)) is True
    assert settings.needs_relaunch(EngineSettings(model="m", precision="bf16")) is True
