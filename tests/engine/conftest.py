"""Engines on the tiny model, and the real checkpoint where it can be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.embedded.loop import EmbeddedEngine
from engine.embedded.models import ModelFiles, default_cache_dir, resolve
from engine.errors import UnknownModel
from engine.settings import EngineSettings
from tests.tiny_model import write_tiny_model

OpenTiny = Callable[..., EmbeddedEngine]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def open_tiny(tiny_folder: Path) -> OpenTiny:
    """Open an engine on the tiny model; settings by keyword, `folder` for another checkpoint."""

    def open_engine(*, folder: Path = tiny_folder, **settings: Any) -> EmbeddedEngine:
        chosen: dict[str, Any] = {"max_batch": 4, "prefill_chunk": 64, "num_threads": 1, "max_context": 256}
        return EmbeddedEngine(EngineSettings(model="tiny", **chosen | settings), folder)

    return open_engine


@pytest.fixture(scope="session")
def smollm() -> ModelFiles:
    """SmolLM2-135M-Instruct, fetched and converted once per machine."""
    try:
        return resolve("smollm2-135m", cache_dir=default_cache_dir(), progress=lambda what, share: None)
    except UnknownModel as error:
        pytest.skip(f"the SmolLM2 checkpoint cannot be fetched here: {error}")
