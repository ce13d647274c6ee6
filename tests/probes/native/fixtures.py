"""The fake driver as fixtures; a conftest elsewhere imports both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.probes.native.fake_library import NativeNvml, build


@pytest.fixture(scope="session")
def native_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def native_nvml(native_library: Path, tmp_path: Path) -> Iterator[NativeNvml]:
    nvml = NativeNvml(native_library, tmp_path / "gpus")
    yield nvml
    nvml.close()
